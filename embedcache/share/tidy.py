"""Taking back a push, and garbage collection by age."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from embedcache.errors import InputError, RemoteError
from embedcache.fsio import TEMPORARY_PREFIX
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.share.location import READ_ONLY
from embedcache.share.manifest import (
    MOST_MANIFEST_BYTES,
    digest_in,
    is_manifest_name,
    names_beginning,
    parse_manifest,
)
from embedcache.share.push import DAY, LEAST_GRACE
from embedcache.share.remote import DROPPED, MANIFESTS, Remote, object_path, objects_among
from embedcache.share.transfer import DamagedError

DEFAULT_GRACE_DAYS = 14.0


@dataclass(frozen=True)
class TidyResult:
    """Result of deleting from a remote, or with ``dry_run`` what would go.

    Attributes:
        remote: its URL.
        files: how many files.
        bytes: their size.
        manifests: digests of the manifests that were taken back.
        kept: unlisted objects that are still too young.
    """

    remote: str
    files: int
    bytes: int
    manifests: list[str]
    kept: int = 0


def collect(
    remote: str,
    *,
    grace_days: float = DEFAULT_GRACE_DAYS,
    dry_run: bool = False,
    clock: Callable[[], float] = time.time,
    progress: Progress = NO_PROGRESS,
) -> TidyResult:
    """Delete objects older than the grace period that no manifest and no young tombstone lists.

    Safe while others push: a push relies on an unlisted object only while it is younger than half of the
    least grace period.

    Args:
        remote: name or URL of the remote.
        grace_days: age in days up to which everything is kept, at least 1.
        dry_run: delete nothing.
        clock: the time in seconds since 1970.
        progress: receives what is done.

    Raises:
        InputError: if the grace period is too short, or the remote is read-only.
        RemoteError: if it cannot be reached, a manifest cannot be used, or the place tells no times.
    """
    grace = grace_days * DAY
    if not grace >= LEAST_GRACE:
        raise InputError(
            f"--grace {grace_days:g}d: expected at least 1d, or objects of running pushes would go."
        )
    target = _writable(remote)
    # Objects before manifests: a push that relies on an object which is old now has its manifest written.
    before = clock() - grace
    files = target.find("")
    listed = set(target.manifests().objects)
    # After the manifests: a push that is taken back meanwhile is still among one of the two.
    expired = []
    for name in filter(is_manifest_name, target.names_in(DROPPED)):
        stat = target.stat(f"{DROPPED}/{name}")
        if stat is not None and stat.time <= before:
            expired.append(name)
        else:
            listed |= _objects_of(name, target.read(f"{DROPPED}/{name}", MOST_MANIFEST_BYTES)).keys()
    objects = objects_among(files)
    unlisted = {object_path(sha256): objects[sha256] for sha256 in objects.keys() - listed}
    if any(stat.time == 0 for stat in unlisted.values()):
        raise RemoteError(f"{target.url}: no modification times, so nothing can be collected.")
    unlisted |= {path: stat for path, stat in files.items() if f"/{TEMPORARY_PREFIX}" in path}
    old = {path: stat for path, stat in unlisted.items() if stat.time <= before}
    kept = len(unlisted) - len(old)
    if dry_run:
        return TidyResult(target.url, len(old), sum(stat.bytes for stat in old.values()), [], kept)
    progress.phase("delete", len(old), "files")

    def delete(path: str) -> int:
        # A push may have written it again since it was listed.
        stat = target.stat(path)
        if stat is None or stat.time > before:
            return 0
        target.delete(path)
        progress.advance()
        return 1

    deleted: list[int] = target.in_threads(delete, old)
    size = sum(stat.bytes for stat, done in zip(old.values(), deleted, strict=True) if done)
    for name in expired:
        target.delete(f"{DROPPED}/{name}")
    return TidyResult(target.url, sum(deleted), size, [], kept)


def drop(
    remote: str, manifests: Sequence[str], *, now: bool = False, progress: Progress = NO_PROGRESS
) -> TidyResult:
    """Take pushes back: what their manifests alone list is not on the remote any more.

    The objects stay until garbage collection, so that running pulls end well; with ``now`` they go at once.

    Args:
        remote: name or URL of the remote.
        manifests: beginnings of digests of manifests, six digits or more.
        now: delete the objects, for texts that should not have been shared. Nobody should push meanwhile.
        progress: receives what is done.

    Raises:
        InputError: if a beginning names no manifest, or several, or the remote is read-only.
        RemoteError: if the remote cannot be reached.
    """
    target = _writable(remote)
    names = names_beginning(target.manifest_names(), manifests, target.url)
    objects: dict[str, int] = {}
    for name in names:
        try:
            data = target.read(f"{MANIFESTS}/{name}", MOST_MANIFEST_BYTES)
        except DamagedError:
            # No push relies on a manifest that is too large to be read.
            data = None
        if data is not None:
            target.write(f"{DROPPED}/{name}", data)
            objects |= _objects_of(name, data)
        target.delete(f"{MANIFESTS}/{name}")
    files = size = 0
    if now:
        listed = target.manifests().objects
        unlisted = {sha256: size for sha256, size in objects.items() if sha256 not in listed}
        progress.phase("delete", len(unlisted), "files")
        target.in_threads(lambda sha256: target.delete(object_path(sha256)), unlisted)
        files, size = len(unlisted), sum(unlisted.values())
        for name in names:
            target.delete(f"{DROPPED}/{name}")
    return TidyResult(target.url, files, size, [digest_in(name) for name in names])


def _objects_of(name: str, data: bytes | None) -> dict[str, int]:
    """Return the objects that a manifest lists; none where it cannot be used, and so no push relies on it."""
    with suppress(ValueError):
        return parse_manifest(name, data or b"").objects()
    return {}


def _writable(remote: str) -> Remote:
    target = Remote(remote)
    if target.scheme in READ_ONLY:
        raise InputError(f"{target.url}: {target.scheme}:// remotes are read-only.")
    return target.open()
