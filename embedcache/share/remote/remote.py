"""A remote: content-addressed objects and manifests on some place. What is right is never overwritten."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from embedcache.cache import REMOTE_MARKER, Cache
from embedcache.errors import InputError, RemoteError, StorageError
from embedcache.fsio import parsed_json, sealed, spelled_json, write_bytes
from embedcache.share.places import Location, Place, Stat, open_place
from embedcache.share.places.base import Data
from embedcache.share.remote.manifest import MOST_MANIFEST_BYTES, Manifest
from embedcache.share.retry import retrying, shortened
from embedcache.share.transfer import map_all

T = TypeVar("T")
U = TypeVar("U")

MARKER = REMOTE_MARKER
REMOTE_VERSION = 1
KEEPER = "claims/README"
KEEPER_BYTES = b"Who is sending what at the moment. Nothing here is ever read once nobody pushes.\n"
MARKER_BYTES = spelled_json(sealed({"format": "embedcache-remote", "version": REMOTE_VERSION}))
LOOKING_THREADS = 16
# What only looks leaves nothing behind, and may wait for minutes until it is tried again.
_PATIENCE_SECONDS = 0.5
BLOCK_BYTES = 8 << 20
"""What one request asks for. Of 2 to 24 MiB this cost servers and this machine the least time by far."""

# What even a remote of thousands of pushes does not reach; more would fill the disk with copies of manifests.
MOST_MANIFESTS = 50_000
MOST_MANIFESTS_BYTES = 4 << 30

_MANIFEST = re.compile(r"([0-9a-f]{64})\.json")
_DIGITS = re.compile(r"[0-9a-f]{6,64}")
_FOLDERS = 256


def object_path(sha256: str) -> str:
    """Return where an object lies on a remote."""
    return f"objects/{sha256[:2]}/{sha256}"


class SharedObject(Protocol):
    """What lies on a remote under its digest: a file of a cache, or the row index of a shard."""

    @property
    def sha256(self) -> str:
        """The digest."""
        ...

    @property
    def bytes(self) -> int:
        """Its size."""
        ...


class TooLargeError(RemoteError):
    """A small file of a remote is too large to be one."""


@dataclass(frozen=True)
class Survey:
    """The manifests of a remote.

    Attributes:
        manifests: those that can be read, sorted by name.
        refused: the names of all others, and why they are refused.
    """

    manifests: tuple[Manifest, ...]
    refused: Mapping[str, str]


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
        self._is_there = False
        # What a manifest says never changes: it is called by its digest. One that is refused may be mended.
        self._read: dict[str, Manifest] = {}

    @property
    def where(self) -> str:
        """Its URL."""
        return self.location.url

    @property
    def id(self) -> str:
        """32 digits that stand for its location in a cache's derived files."""
        return hashlib.sha256(self.location.url.encode()).hexdigest()[:32]

    def is_there(self) -> bool:
        """Return whether something was pushed here before; once it was, nobody asks again.

        Raises:
            RemoteError: if it cannot be reached, or a newer version of embedcache made it.
        """
        if self._is_there:
            return True
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
        self._is_there = True
        return True

    def require(self) -> None:
        """See that there is a remote.

        Raises:
            RemoteError: if there is none, or as :meth:`is_there`.
        """
        if not self.is_there():
            push = "" if self.place.read_only else ", or push something there with 'embedcache push'"
            raise RemoteError(f"no remote at {self.where}: it has no {MARKER}; see to the spelling{push}")

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
            self._is_there = True

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
                    raise TooLargeError(
                        f"{path} of {self.where} has more than {most:,} bytes, and is not read further: it "
                        "is damaged or hostile"
                    )
            return bytes(found)

        try:
            return retrying(f"read {path}", self.where, act, self.stop)
        except FileNotFoundError:
            return None

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """Return ``length`` bytes of a file from ``start`` on.

        Raises:
            FileNotFoundError: if it is not there.
            RangesNotServedError: if the place gives whole files alone.
            RemoteError: if they cannot be read.
        """

        def act() -> bytes:
            found = self.place.read_range(path, start, length)
            if len(found) != length:
                raise OSError(f"{len(found):,} of {length:,} bytes arrived")
            return found

        return retrying(f"read a part of {path}", self.where, act, self.stop)

    def write(self, path: str, data: Data) -> None:
        """Write a file, as a whole or not at all.

        Raises:
            RemoteError, StorageError: if it cannot be written.
        """
        retrying(f"write {path}", self.where, lambda: self.place.write(path, data), self.stop)

    def remove(self, path: str) -> None:
        """Delete a file, where there is one: a claim, what nobody needs, or what is damaged.

        Raises:
            RemoteError: if it cannot be deleted.
        """
        retrying(f"delete {path}", self.where, lambda: self.place.remove(path), self.stop)

    def files_in(self, folder: str) -> dict[str, Stat]:
        """Return the files directly in ``folder``, by name."""
        return retrying(f"list {folder or 'files'}", self.where, lambda: self.place.list(folder), self.stop)

    def temporary_in(self, folder: str) -> dict[str, Stat]:
        """Return the temporary files in ``folder``, by name, whether they are being written or were left."""
        what = f"list temporary files{folder and f' in {folder}'}"
        return retrying(what, self.where, lambda: self.place.temporary(folder), self.stop)

    def stat(self, path: str) -> Stat | None:
        """Return what is known of a file; None where it is not there."""
        return retrying(f"look up {path}", self.where, lambda: self.place.stat(path), self.stop)

    def size(self, path: str) -> int | None:
        """Return how many bytes a file has; None where it is not there or nobody tells."""
        stat = self.stat(path)
        return None if stat is None else stat.bytes

    def present(self, objects: Iterable[SharedObject]) -> set[str]:
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

    def manifests(
        self, cache: Cache | None = None, only: Collection[str] | None = None, skip: Collection[str] = ()
    ) -> list[Manifest]:
        """Return the manifests, sorted by name.

        Args:
            cache: keeps copies of what is read, for the next time.
            only: read these alone; default: all.
            skip: leave out those whose names begin so, whatever they are.

        Raises:
            InputError: if there is none to leave out.
            RemoteError: if one cannot be read, or is not what a manifest has to be.
        """
        found = self.survey(cache, only, skip)
        for name, why in found.refused.items():
            more = f" and {len(found.refused) - 1:,} more" if len(found.refused) > 1 else ""
            raise RemoteError(
                f"manifests/{name}.json of {self.where}{more} is refused ({why}): it is damaged, hostile or "
                f"of a newer embedcache; do without it with --skip-manifest {name[:12]}, take what one key "
                "has signed with --require-signature, or delete it there with 'embedcache remote gc --drop'"
            )
        return list(found.manifests)

    def survey(
        self, cache: Cache | None = None, only: Collection[str] | None = None, skip: Collection[str] = ()
    ) -> Survey:
        """Return what can be read of the manifests, and what cannot. Arguments as :meth:`manifests`.

        Each that can be read is read once; who asks again sees which are there now.

        Raises:
            InputError: if there is none to leave out.
            RemoteError: if the remote cannot be reached, or they are too large together.
        """
        there = self.manifest_ids()
        left_out = {name for begin in skip for name in self._named(begin, there)}
        ids = [one for one in there if one not in left_out and (only is None or one in only)]
        room = _Room(MOST_MANIFESTS_BYTES, self.where)
        fresh = [one for one in ids if one not in self._read]
        read = self.in_threads(lambda one: self._manifest(one, cache, room), fresh)
        self._read.update((one.id, one) for one in read if isinstance(one, Manifest))
        refused = {name: one for name, one in zip(fresh, read, strict=True) if isinstance(one, str)}
        return Survey(tuple(self._read[one] for one in ids if one not in refused), refused)

    def _named(self, begin: str, ids: Collection[str]) -> list[str]:
        """Return the manifests whose names begin with some digits."""
        found = [one for one in ids if _DIGITS.fullmatch(begin) and one.startswith(begin)]
        if not found:
            raise InputError(
                f"no manifest {begin[:64]!r} on {self.where}: give six digits or more of its name, which "
                "'embedcache remote ls' shows"
            )
        return found

    def _manifest(self, name: str, cache: Cache | None, room: _Room) -> Manifest | str:
        """Return a manifest, or why it is refused."""
        data = _kept(cache, self.id, name)
        fresh = data is None
        if data is None:
            try:
                data = self.read(f"manifests/{name}.json", MOST_MANIFEST_BYTES)
            except TooLargeError as error:
                return str(error)
        if data is None:
            raise RemoteError(f"manifests/{name}.json of {self.where} is gone: run the same command again")
        room.take(len(data))
        try:
            manifest = Manifest.from_bytes(data, name)
        except (ValueError, TypeError) as error:
            return shortened(str(error))
        if fresh:
            _keep(cache, self.id, name, data)
        return manifest

    def in_threads(self, act: Callable[[T], U], items: Iterable[T]) -> list[U]:
        """Return what ``act`` returns for each item, in order; several are at work at once.

        An interrupt sets ``stop``, so that nothing is tried again behind its back; an error of one does not,
        for whoever asks may go on without it.
        """
        ended = threading.Event()
        try:
            return map_all(act, items, jobs=LOOKING_THREADS, stop=ended, patience=_PATIENCE_SECONDS)
        except BaseException as error:
            if not isinstance(error, Exception):
                self.stop.set()
            raise


class _Room:
    """How many bytes all manifests may have together; safe from several threads."""

    def __init__(self, most: int, where: str) -> None:
        self._most = self._left = most
        self._where = where
        self._lock = threading.Lock()

    def take(self, size: int) -> None:
        """Take so many of them; raise :class:`RemoteError` where there are not."""
        with self._lock:
            self._left -= size
            if self._left < 0:
                raise RemoteError(
                    f"the manifests of {self._where} have more than {self._most:,} bytes together: let "
                    "'embedcache remote gc' delete those that others have replaced"
                )


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
