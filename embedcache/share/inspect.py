"""Listing and verification of a remote."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from embedcache.errors import RemoteError
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.share.manifest import SharedCorpus, SharedTeacher, digest_in, names_beginning
from embedcache.share.remote import MissingError, Remote, object_path
from embedcache.share.transfer import DamagedError


@dataclass(frozen=True)
class Card:
    """Card of one push.

    Attributes:
        manifest: digest of its manifest.
        by, message, licence, when, teachers, corpora: as in the manifest.
        files, bytes: number and size of the files that it added.
        signatures: number of keys that have signed it.
    """

    manifest: str
    by: str
    message: str
    licence: str
    when: str
    teachers: list[SharedTeacher]
    corpora: list[SharedCorpus]
    files: int
    bytes: int
    signatures: int


@dataclass(frozen=True)
class Listing:
    """Pushes to a remote.

    Attributes:
        remote: its URL.
        pushes: oldest first.
        refused: digest -> reason, of manifests that cannot be used.
    """

    remote: str
    pushes: list[Card]
    refused: dict[str, str]


@dataclass(frozen=True)
class RemoteCheck:
    """Result of reading every object of a remote.

    Attributes:
        remote: its URL.
        objects: listed objects.
        bytes: their size.
        missing: digests of listed objects that are missing, and who pushed them.
        damaged: the same of objects with other bytes.
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


def list_remote(remote: str, manifest: str | None = None) -> Listing:
    """Return the pushes to a remote, or the one whose manifest begins so.

    Raises:
        InputError: if no manifest, or several, begin so.
        RemoteError: if the remote cannot be reached.
    """
    source = Remote(remote).open()
    names = source.manifest_names()
    if manifest is not None:
        names = names_beginning(names, [manifest], source.url)

    def read(name: str) -> Card | str:
        try:
            found = source.read_manifest(name)
        except RemoteError as error:
            return str(error)
        if found is None:
            return "it is missing"
        card = found.model_dump(include={"by", "message", "licence", "when"})
        signatures = len(source.names_in(f"signatures/{digest_in(name)}"))
        size = sum(file.bytes for file in found.files)
        card |= {"teachers": found.teachers, "corpora": found.corpora}
        return Card(digest_in(name), **card, files=len(found.files), bytes=size, signatures=signatures)

    found = dict(zip(map(digest_in, names), source.in_threads(read, names), strict=True))
    pushes = [card for card in found.values() if isinstance(card, Card)]
    return Listing(source.url, pushes, {digest: why for digest, why in found.items() if isinstance(why, str)})


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
    source = Remote(remote).open()
    listed = source.manifests()
    objects = listed.objects
    progress.phase("verify", sum(objects.values()), "bytes")
    wrong: dict[str, dict[str, str]] = {"missing": {}, "damaged": {}}
    with TemporaryDirectory(prefix="embedcache-verify-") as folder:

        def check(sha256: str) -> str:
            target = Path(folder) / sha256
            try:
                source.fetch(sha256, objects[sha256], target, progress.advance)
            except MissingError:
                return "missing"
            except DamagedError:
                return "damaged"
            finally:
                target.unlink(missing_ok=True)
            return ""

        for sha256, found in zip(objects, source.in_threads(check, objects), strict=True):
            if found:
                wrong[found][sha256] = listed.pushed_by([sha256])
        # A line that broke may have cut one off, so it is read once more before it is deleted.
        bad = [one for one in wrong["damaged"] if delete_damaged and check(one) == "damaged"]
    for sha256 in bad:
        source.delete(object_path(sha256))
    return RemoteCheck(source.url, len(objects), sum(objects.values()), **wrong, deleted=len(bad))
