"""Listing and verification of a remote."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from embedcache.errors import RemoteError
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.share.manifest import Manifest, digest_in, names_beginning
from embedcache.share.remote import MissingError, Remote, object_path
from embedcache.share.transfer import DamagedError


@dataclass(frozen=True)
class PushedManifest:
    """One push: its digest, the card, and how many keys have signed it."""

    digest: str
    manifest: Manifest
    signatures: int

    def to_json(self) -> dict[str, object]:
        """Return the card as a JSON object, with counts instead of the files."""
        card = self.manifest.model_dump(exclude={"files", "version"})
        files = self.manifest.files
        counts = {"files": len(files), "bytes": sum(file.bytes for file in files)}
        return {"manifest": self.digest, **card, **counts, "signatures": self.signatures}


@dataclass(frozen=True)
class Listing:
    """Pushes to a remote.

    Attributes:
        remote: its URL.
        pushes: oldest first.
        refused: digest -> reason, of manifests that cannot be used.
    """

    remote: str
    pushes: list[PushedManifest]
    refused: dict[str, str]

    def to_json(self) -> dict[str, object]:
        """Return it as a JSON object."""
        pushes = [push.to_json() for push in self.pushes]
        return {"remote": self.remote, "pushes": pushes, "refused": self.refused}


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

    def to_json(self) -> dict[str, object]:
        """Return it as a JSON object."""
        return asdict(self)


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
    pushes, refused = [], {}

    def read(name: str) -> tuple[Manifest | None, int, str]:
        try:
            found = source.read_manifest(name)
        except RemoteError as error:
            return None, 0, str(error)
        return found, len(source.names_in(f"signatures/{digest_in(name)}")), "it is missing"

    for name, (found, signatures, why) in zip(names, source.in_threads(read, names), strict=True):
        if found is None:
            refused[digest_in(name)] = why
        else:
            pushes.append(PushedManifest(digest_in(name), found, signatures))
    return Listing(source.url, pushes, refused)


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
    stock = source.stock()
    objects = {sha256: size for one in stock.manifests.values() for sha256, size in one.objects().items()}
    progress.phase("verify", sum(objects.values()), "bytes")
    missing, damaged, deleted = {}, {}, 0
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
            if found == "missing":
                missing[sha256] = stock.pushed_by([sha256])
            elif found == "damaged":
                damaged[sha256] = stock.pushed_by([sha256])
                # A line that broke may have cut it off, so it is read once more before it is deleted.
                if delete_damaged and check(sha256) == "damaged":
                    source.delete(object_path(sha256))
                    deleted += 1
    return RemoteCheck(source.url, len(objects), sum(objects.values()), missing, damaged, deleted)
