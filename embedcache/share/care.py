"""Care of a remote: listing its pushes, verification, garbage collection by age, taking a push back."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from embedcache.errors import InputError
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.share.card import write_card
from embedcache.share.manifest import (
    MANIFESTS,
    MOST_MANIFEST_BYTES,
    Manifest,
    digest_in,
    is_manifest_name,
    manifest_names,
    names_beginning,
    parse_manifest,
    read_manifests,
)
from embedcache.share.remote import GRACE, DamagedError, Remote, object_path

DROPPED = "dropped"


@dataclass(frozen=True)
class RemoteCheck:
    """Result of reading every object of a remote.

    Attributes:
        remote: its URL.
        objects: listed objects.
        bytes: size of those that were read.
        missing: digests of listed objects that are missing, and who pushed them.
        damaged: the same for objects with other bytes.
        deleted: damaged objects that were deleted.
    """

    remote: str
    objects: int
    bytes: int
    missing: dict[str, str]
    damaged: dict[str, str]
    deleted: int

    @property
    def is_sound(self) -> bool:
        """True if every listed object is whole."""
        return not (self.missing or self.damaged)


@dataclass(frozen=True)
class Deleted:
    """Files that were deleted from a remote, or with ``dry_run`` would be.

    Attributes:
        remote: its URL.
        files: number of files.
        bytes: their size.
    """

    remote: str
    files: int
    bytes: int


def list_remote(remote: str) -> dict[str, Manifest]:
    """Return the manifests of the pushes to a remote by their digests, oldest first.

    Raises:
        RemoteError: if the remote cannot be reached, or a manifest cannot be used.
    """
    listed = read_manifests(Remote(remote).open())
    return {digest_in(name): one for name, one in listed.manifests.items()}


def verify_remote(
    remote: str, *, delete_damaged: bool = False, progress: Progress = NO_PROGRESS
) -> RemoteCheck:
    """Read every object that a manifest lists.

    Args:
        remote: name or URL of the remote.
        delete_damaged: delete damaged objects, so that the next push that has them sends them again.
        progress: receives what is done.

    Raises:
        RemoteError: if the remote cannot be reached, or a manifest cannot be used.
    """
    source = Remote(remote, to_write=delete_damaged).open()
    listed = read_manifests(source)
    progress.phase("verify", sum(listed.objects.values()), "bytes")
    with TemporaryDirectory(prefix="embedcache-verify-") as folder:

        def problem(sha256: str) -> str:
            target = Path(folder) / sha256
            try:
                source.fetch(sha256, listed.objects[sha256], target, progress.advance)
            except DamagedError:
                return "missing" if source.stat(object_path(sha256)) is None else "damaged"
            target.unlink()
            return ""

        found = dict(zip(listed.objects, source.in_threads(problem, listed.objects), strict=True))
        damaged = [sha256 for sha256, what in found.items() if what == "damaged"]
        # A line that broke may have cut one off, so it is read once more before it is deleted.
        bad = [sha256 for sha256 in damaged if delete_damaged and problem(sha256) == "damaged"]
    for sha256 in bad:
        source.delete(object_path(sha256))
    return RemoteCheck(
        source.url,
        len(found),
        sum(listed.objects[sha256] for sha256, what in found.items() if what != "missing"),
        missing={one: listed.pushed_by([one]) for one, what in found.items() if what == "missing"},
        damaged={one: listed.pushed_by([one]) for one in damaged},
        deleted=len(bad),
    )


def collect(
    remote: str,
    *,
    dry_run: bool = False,
    clock: Callable[[], float] = time.time,
    progress: Progress = NO_PROGRESS,
) -> Deleted:
    """Delete objects older than 14 days that no manifest and no younger tombstone lists.

    Safe while others push: a push relies on an unlisted object only while it is younger than half of that.

    Args:
        remote: name or URL of the remote.
        dry_run: delete nothing.
        clock: the time in seconds since 1970.
        progress: receives what is done.

    Raises:
        InputError: if the remote is read-only, or on the hub.
        RemoteError: if it cannot be reached, or a manifest cannot be used.
    """
    target = Remote(remote, to_write=True).open()
    _refuse_hub(target, "gc")
    # Objects before manifests: a push that relies on an object which is old now has its manifest written.
    before = clock() - GRACE
    files = target.find("objects")
    listed = set(read_manifests(target).objects)
    # After the manifests: a push that is taken back meanwhile is still among one of the two.
    dropped = {path: stat for path, stat in target.find(DROPPED).items() if is_manifest_name(_name(path))}
    expired = [path for path, stat in dropped.items() if stat.time <= before]
    for path in dropped.keys() - expired:
        listed |= _objects_of(_name(path), target.read(path, MOST_MANIFEST_BYTES)).keys()
    kept = set(map(object_path, listed))
    # Unfinished writes as well.
    old = {path: stat.bytes for path, stat in files.items() if stat.time <= before and path not in kept}
    if dry_run:
        return Deleted(target.url, len(old), sum(old.values()))
    progress.phase("delete", len(old), "files")

    def delete(path: str) -> bool:
        # A push may have written it again since it was listed.
        stat = target.stat(path)
        is_old = stat is not None and stat.time <= before
        if is_old:
            target.delete(path)
        progress.advance()
        return is_old

    sizes = [old[path] for path, done in zip(old, target.in_threads(delete, old), strict=True) if done]
    for path in expired:
        target.delete(path)
    return Deleted(target.url, len(sizes), sum(sizes))


def drop(remote: str, manifests: Sequence[str], *, now: bool = False) -> Deleted:
    """Take pushes back: what their manifests alone list is not on the remote any more.

    Args:
        remote: name or URL of the remote.
        manifests: beginnings of digests of manifests, six digits or more.
        now: delete the objects, for texts that should not have been shared. Safe only while no push runs.

    Raises:
        InputError: if a beginning names no manifest, or several, or the remote is read-only.
        RemoteError: if the remote cannot be reached.
    """
    target = Remote(remote, to_write=True).open()
    if now:
        _refuse_hub(target, "drop --now")
    names = names_beginning(manifest_names(target), manifests, target.url)
    objects: dict[str, int] = {}
    for name in names:
        data: bytes | None = None
        # No push relies on a manifest that is too large to be read.
        with suppress(DamagedError):
            data = target.read(f"{MANIFESTS}/{name}", MOST_MANIFEST_BYTES)
        if data is not None:
            target.write(f"{DROPPED}/{name}", data)
            objects |= _objects_of(name, data)
        target.delete(f"{MANIFESTS}/{name}")
    if target.hub is not None:
        write_card(target, [*read_manifests(target).manifests.values()])
    if not now:
        return Deleted(target.url, 0, 0)
    listed = read_manifests(target).objects
    unlisted = [sha256 for sha256 in objects if sha256 not in listed]
    paths = [*map(object_path, unlisted), *(f"{DROPPED}/{name}" for name in names)]
    target.in_threads(target.delete, paths)
    return Deleted(target.url, len(unlisted), sum(objects[sha256] for sha256 in unlisted))


def _refuse_hub(target: Remote, what: str) -> None:
    if target.hub is not None:
        raise InputError(
            f"{target.url}: {what} would free nothing, because the hub keeps every version of a file. Delete "
            "the repository, or squash its history with super_squash_history of huggingface_hub."
        )


def _objects_of(name: str, data: bytes | None) -> dict[str, int]:
    """Return the objects that a manifest lists; none where it cannot be used, and so no push relies on it."""
    with suppress(ValueError):
        return parse_manifest(name, data or b"").objects()
    return {}


def _name(path: str) -> str:
    return path.rpartition("/")[2]
