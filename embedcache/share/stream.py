"""The shards of a mirror: fetched when they are needed, evicted when others need the room."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from embedcache.cache import Cache
from embedcache.check.inventory import MIRROR
from embedcache.check.progress import Meter
from embedcache.errors import RemoteError, StorageError
from embedcache.fsio import TEMPORARY_PREFIX, make_directory
from embedcache.share.incoming import Incoming
from embedcache.share.manifest import SharedFile, Stock
from embedcache.share.remote import JOBS, Remote, object_path
from embedcache.sizes import readable

_RESERVED = f"{TEMPORARY_PREFIX}reserved-"
_SHARDS = "teachers/*/shards"


class Stream:
    """Shards of a mirror: fetched when they are needed, evicted when others need the room.

    A shard is first in a quarantine, ``derived/mirror``, and enters the cache once it was compared with the
    teacher. A lock file per shard lets one process at a time fetch it. The process that holds it reserves
    room with an empty file of the shard's size.

    Args:
        cache: the mirror.
        remote: the remote.
        stock: files that the remote lists.
        corpus: name of the corpus.
        limit: bytes of shards that are kept at a time.
        meter: counts downloaded bytes.

    Attributes:
        near: shards of the current and the next window, by contract id.
    """

    def __init__(
        self, cache: Cache, remote: Remote, stock: Stock, corpus: str, limit: int, meter: Meter
    ) -> None:
        self.cache, self.remote, self.stock, self.meter, self.limit = cache, remote, stock, meter, limit
        self.corpus = corpus
        self.incoming = Incoming(cache, remote, stock, meter, folder=cache.derived_folder / MIRROR)
        self._locks = make_directory(self.incoming.folder / "locks")
        self._pool = ThreadPoolExecutor(JOBS, thread_name_prefix="mirror")
        self.near: dict[str, set[str]] = {}
        self._used: dict[str, float] = {}
        with self.locked():
            self._clean()

    def close(self) -> None:
        """Stop all downloads."""
        self.remote.stop.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def submit(self, act: Callable[[], None]) -> None:
        """Run ``act`` in the background; its errors are dropped. Do nothing once the mirror is closed."""
        with suppress(RuntimeError):
            self._pool.submit(act)

    def touch(self, name: str) -> None:
        """Note that a shard is used."""
        self._used[name] = time.monotonic()

    def fetch(
        self, file: SharedFile, is_here: Callable[[], bool], check: Callable[[], None], *, urgent: bool
    ) -> None:
        """Download a shard into the quarantine and check it, unless it is here.

        Args:
            file: the shard.
            is_here: returns whether the mirror has it.
            check: raises where its content is not the listed one.
            urgent: wait for other processes, and take the room of any shard. Otherwise fetch it only if
                nobody else does and there is room.

        Raises:
            RemoteError: if it cannot be fetched, or is refused.
            StorageError: if there is no room for it.
        """
        with self._alone(file.sha256, wait=urgent) as is_alone:
            if not is_alone or is_here():
                return
            reserved = self._reserve(file, urgent=urgent)
            if reserved is None:
                return
            try:
                self.incoming.fetch_one(file)
                check()
            except BaseException:
                self.incoming.path(file).unlink(missing_ok=True)
                raise
            finally:
                with self.locked():
                    reserved.unlink(missing_ok=True)

    def locked(self) -> FileLock:
        """Return the lock under which shards are counted: meanwhile none is reserved, moved or evicted."""
        return FileLock(self.incoming.folder / "room.lock")

    @contextmanager
    def _alone(self, name: str, *, wait: bool) -> Iterator[bool]:
        """Hold the lock of a shard; yield False if another thread or process has it and ``wait`` is False."""
        lock = FileLock(self._locks / name)
        with suppress(Timeout):
            lock.acquire(timeout=0)
        while wait and not lock.is_locked:
            self._pause(0.05)
            with suppress(Timeout):
                lock.acquire(timeout=0)
        try:
            yield lock.is_locked
        finally:
            lock.release()

    def _pause(self, seconds: float) -> None:
        if self.remote.stop.wait(seconds):
            raise RemoteError(f"{self.remote.url}: stopped.")

    def _reserve(self, file: SharedFile, *, urgent: bool) -> Path | None:
        """Make room for a shard and reserve it; return the file that does, None where there is no room."""
        reserved = self.incoming.path(file).with_name(f"{_RESERVED}{file.sha256}")
        make_directory(reserved.parent)
        while True:
            with self.locked():
                if self._make_room(file.bytes, urgent=urgent):
                    reserved.touch()
                    os.truncate(reserved, file.bytes)
                    return reserved
                is_busy = any(self.incoming.folder.glob(f"{_SHARDS}/{_RESERVED}*"))
            if not urgent:
                return None
            if not is_busy:
                raise StorageError(
                    f"{self.cache.folder}: no room for a shard of {readable(file.bytes)} in --cache-limit; "
                    "the shards there are not on the remote any more. Raise the limit or change --mirror."
                )
            self._pause(0.1)

    def _make_room(self, size: int, *, urgent: bool) -> bool:
        """Evict shards, the least recently used first, until ``size`` bytes more fit; return whether they do.

        A shard goes only if the remote still has it. Those of the current and the next window go only if
        ``urgent``.
        """
        self._clean()
        every = [
            path
            for base in (self.cache.folder, self.incoming.folder)
            for path in base.glob(f"{_SHARDS}/*")
            if path.suffix == ".arrow" or path.name.startswith(_RESERVED)
        ]
        # A shard that has just arrived and its reservation count once, and it is not evicted yet.
        held = dict[str, int]()
        for path in every:
            with suppress(FileNotFoundError):
                held[_digest_of(path)] = path.stat().st_size
        reserved = {_digest_of(path) for path in every if path.suffix != ".arrow"}
        paths = [path for path in every if _digest_of(path) not in reserved]
        near = {name for names in self.near.values() for name in names}
        for path in sorted(paths, key=lambda path: (path.stem in near, self._used.get(path.stem, 0))):
            if sum(held.values()) + size <= self.limit or (path.stem in near and not urgent):
                break
            stat = self.remote.stat(object_path(path.stem))
            if stat is not None and stat.bytes == held.get(path.stem):
                path.unlink(missing_ok=True)
                del held[path.stem]
        return sum(held.values()) + size <= self.limit

    def _clean(self) -> None:
        """Delete the reservations and temporary files of processes that were killed."""
        for path in self.incoming.folder.glob(f"{_SHARDS}/{TEMPORARY_PREFIX}*"):
            with self._alone(_digest_of(path), wait=False) as is_alone:
                if is_alone:
                    path.unlink(missing_ok=True)


def _digest_of(path: Path) -> str:
    """Return the digest in the name of a shard, of its reservation or of its temporary file."""
    return path.name.removesuffix(".arrow")[-64:]
