"""A remote: content-addressed objects and manifests on some place. Nothing is ever overwritten."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from embedcache.cache import Cache
from embedcache.errors import RemoteError, StorageError
from embedcache.fsio import parsed_json, sealed, spelled_json, write_bytes
from embedcache.share.manifest import MOST_MANIFEST_BYTES, Manifest, SharedFile
from embedcache.share.places import Location, Place, Stat, open_place
from embedcache.share.places.base import Data
from embedcache.share.retry import retrying

T = TypeVar("T")
U = TypeVar("U")

MARKER = "embedcache-remote.json"
REMOTE_VERSION = 1
KEEPER = "claims/README"
KEEPER_BYTES = b"Who is sending what at the moment. Nothing here is ever read once nobody pushes.\n"
MARKER_BYTES = spelled_json(sealed({"format": "embedcache-remote", "version": REMOTE_VERSION}))
LOOKING_THREADS = 16
BLOCK_BYTES = 16 << 20

# What even a remote of thousands of pushes does not reach; more would fill the disk with copies of manifests.
MOST_MANIFESTS = 50_000
MOST_MANIFESTS_BYTES = 4 << 30

_MANIFEST = re.compile(r"([0-9a-f]{64})\.json")
_FOLDERS = 256


def object_path(sha256: str) -> str:
    """Return where an object lies on a remote."""
    return f"objects/{sha256[:2]}/{sha256}"


class Remote:
    """What lies at a location.

    Args:
        location: where.
        place: the place there; default: it is opened.
        stop: once set, what fails is not tried again.
    """

    def __init__(
        self, location: Location, place: Place | None = None, stop: threading.Event | None = None
    ) -> None:
        self.location = location
        self.place = open_place(location) if place is None else place
        self.stop = stop or threading.Event()

    @property
    def where(self) -> str:
        """Its URL."""
        return self.location.url

    @property
    def id(self) -> str:
        """32 digits that stand for its location in a cache's derived files."""
        return hashlib.sha256(self.location.url.encode()).hexdigest()[:32]

    def is_there(self) -> bool:
        """Return whether something was pushed here before.

        Raises:
            RemoteError: if it cannot be reached, or a newer version of embedcache made it.
        """
        data = self.read(MARKER, most=1 << 16)
        if data is None:
            if self.files_in("") and self.read("cache.json", most=1 << 16) is not None:
                raise RemoteError(f"{self.where} is a cache, not a remote: give another folder to share by")
            return False
        if data != MARKER_BYTES:
            try:
                value = parsed_json(data)
            except ValueError:
                value = None
            version = value.get("version") if isinstance(value, dict) else None
            newer = type(version) is int and version > REMOTE_VERSION
            advice = "upgrade embedcache" if newer else "it was not made by embedcache, or is damaged"
            raise RemoteError(f"{MARKER} of {self.where} is not as this embedcache writes it: {advice}")
        return True

    def require(self) -> None:
        """See that there is a remote.

        Raises:
            RemoteError: if there is none, or as :meth:`is_there`.
        """
        if not self.is_there():
            raise RemoteError(
                f"no remote at {self.where}: it has no {MARKER}; see to the spelling, or push something "
                "there with 'embedcache push'"
            )

    def prepare(self) -> None:
        """Make this a remote where it is none yet.

        Raises:
            RemoteError: if it can only be read, or as :meth:`is_there`.
        """
        if self.place.read_only:
            raise RemoteError(
                f"{self.where} can only be read: push to a folder, s3://, gs:// or sftp://, and copy that "
                "there"
            )
        if not self.is_there():
            # Arrow makes an object of a folder whose last one it has deleted, which some servers take for a
            # file that nothing can lie in.
            self.write(KEEPER, KEEPER_BYTES)
            self.write(MARKER, MARKER_BYTES)

    def read(self, path: str, most: int) -> bytes | None:
        """Return a small file; None where there is none.

        Raises:
            RemoteError: if it cannot be read, or has more than ``most`` bytes.
        """

        def act() -> bytes:
            found = bytearray()
            for block in self.place.blocks(path, BLOCK_BYTES):
                found += block
                if len(found) > most:
                    raise RemoteError(
                        f"{path} of {self.where} has more than {most:,} bytes, and is not read further: it "
                        "is damaged or hostile"
                    )
            return bytes(found)

        try:
            return retrying(f"read {path}", self.where, act, self.stop)
        except FileNotFoundError:
            return None

    def write(self, path: str, data: Data) -> None:
        """Write a file, as a whole or not at all.

        Raises:
            RemoteError, StorageError: if it cannot be written.
        """
        retrying(f"write {path}", self.where, lambda: self.place.write(path, data), self.stop)

    def remove(self, path: str) -> None:
        """Delete a file; only claims are ever deleted."""
        retrying(f"delete {path}", self.where, lambda: self.place.remove(path), self.stop)

    def files_in(self, folder: str) -> dict[str, Stat]:
        """Return the files directly in ``folder``, by name."""
        return retrying(f"list {folder or 'files'}", self.where, lambda: self.place.list(folder), self.stop)

    def size(self, path: str) -> int | None:
        """Return how many bytes a file has; None where it is not there or nobody tells."""
        stat = retrying(f"look up {path}", self.where, lambda: self.place.stat(path), self.stop)
        return None if stat is None else stat.bytes

    def present(self, objects: Collection[SharedFile]) -> set[str]:
        """Return the digests of those ``objects`` that lie here with the size they should have."""
        sizes = {file.sha256: file.bytes for file in objects}
        folders = sorted({digest[:2] for digest in sizes})
        if len(sizes) > _FOLDERS:
            found = self.in_threads(lambda folder: self.files_in(f"objects/{folder}"), folders)
            stats = {name: stat.bytes for listed in found for name, stat in listed.items()}
            return {digest for digest, size in sizes.items() if stats.get(digest) == size}
        digests = sorted(sizes)
        looked_up = self.in_threads(lambda digest: self.size(object_path(digest)), digests)
        return {digest for digest, size in zip(digests, looked_up, strict=True) if size == sizes[digest]}

    def manifest_ids(self) -> list[str]:
        """Return the names of all manifests, sorted."""
        matches = map(_MANIFEST.fullmatch, self.files_in("manifests"))
        ids = sorted(match[1] for match in matches if match)
        if len(ids) > MOST_MANIFESTS:
            raise RemoteError(f"{self.where} has {len(ids):,} manifests, expected {MOST_MANIFESTS:,} at most")
        return ids

    def manifests(self, cache: Cache | None = None, only: Collection[str] | None = None) -> list[Manifest]:
        """Return the manifests, sorted by name.

        Args:
            cache: keeps copies of what is read, for the next time.
            only: read these alone; default: all.

        Raises:
            RemoteError: if one cannot be read, or is not what a manifest has to be.
        """
        ids = [one for one in self.manifest_ids() if only is None or one in only]
        left = MOST_MANIFESTS_BYTES
        lock = threading.Lock()

        def read(name: str) -> Manifest:
            nonlocal left
            data = _kept(cache, self.id, name)
            fresh = data is None
            if data is None:
                data = self.read(f"manifests/{name}.json", MOST_MANIFEST_BYTES)
            if data is None:
                raise RemoteError(
                    f"manifests/{name}.json of {self.where} is gone: run the same command again"
                )
            with lock:
                left -= len(data)
            if left < 0:
                raise RemoteError(
                    f"the manifests of {self.where} have more than {MOST_MANIFESTS_BYTES:,} bytes together"
                )
            try:
                manifest = Manifest.from_bytes(data, name)
            except (ValueError, TypeError) as error:
                raise RemoteError(
                    f"manifests/{name}.json of {self.where} is refused ({str(error)[:300]}): it is damaged "
                    "or hostile; delete it there, or take what one key has signed with --require-signature"
                ) from error
            if fresh:
                _keep(cache, self.id, name, data)
            return manifest

        return self.in_threads(read, ids)

    def in_threads(self, act: Callable[[T], U], items: Iterable[T]) -> list[U]:
        """Return what ``act`` returns for each item, in order; several are at work at once."""
        wanted = list(items)
        if len(wanted) < 2:
            return [act(one) for one in wanted]
        with ThreadPoolExecutor(min(LOOKING_THREADS, len(wanted))) as pool:
            return list(_or_cancel(pool, pool.map(act, wanted)))


def _or_cancel(pool: ThreadPoolExecutor, results: Iterator[U]) -> Iterator[U]:
    try:
        yield from results
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise


def _kept(cache: Cache | None, remote: str, name: str) -> bytes | None:
    if cache is None:
        return None
    path = cache.derived_folder / "remotes" / remote / f"{name}.json"
    try:
        if path.stat().st_size > MOST_MANIFEST_BYTES:
            return None
        data = path.read_bytes()
    except OSError:
        return None
    # It may have come with somebody else's cache.
    return data if hashlib.sha256(data).hexdigest() == name else None


def _keep(cache: Cache | None, remote: str, name: str, data: bytes) -> None:
    if cache is not None:
        try:
            write_bytes(cache.derived_folder / "remotes" / remote / f"{name}.json", data)
        except StorageError:
            # It is read again the next time.
            return
