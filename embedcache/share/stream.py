"""Shards of a mirror with a limit: fetched on demand, least recently used evicted first."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from embedcache.cache import Cache
from embedcache.errors import RemoteError, StorageError
from embedcache.fsio import TEMPORARY_PREFIX, make_directory
from embedcache.progress import Progress
from embedcache.share.incoming import Incoming
from embedcache.share.manifest import SharedFile, Stock
from embedcache.share.remote import JOBS, Remote, object_path
from embedcache.share.sample import SampleCheck
from embedcache.sizes import readable

MIRROR = "mirror"
"""Folder of ``derived/`` that a mirror works in."""
_RESERVED = f"{TEMPORARY_PREFIX}reserved-"
_SHARDS = "teachers/*/shards"


class Stream:
    """Shards of a mirror with a limit: fetched on demand, least recently used evicted first.

    Shards lie in ``derived/mirror``, outside the cache's teachers, because they come and go. A lock file per
    shard lets one process at a time fetch it. That process reserves room with an empty file of the shard's
    size.

    Args:
        cache: the mirror.
        remote: the remote.
        stock: files that the remote lists.
        corpus: name of the corpus.
        limit: bytes of shards that are kept at a time.
        progress: receives what is done.
        on_sample: called with the result of each comparison with the live teacher.

    Attributes:
        near: shards of the current and the next window, by contract id.
    """

    def __init__(
        self,
        cache: Cache,
        remote: Remote,
        stock: Stock,
        corpus: str,
        limit: int,
        progress: Progress,
        on_sample: Callable[[SampleCheck], None],
    ) -> None:
        self.cache, self.remote, self.stock, self.limit = cache, remote, stock, limit
        self.progress = progress
        self.corpus, self.on_sample = corpus, on_sample
        self.incoming = Incoming(cache, remote, stock, progress, folder=cache.derived_folder / MIRROR)
        self._locks = make_directory(self.incoming.folder / "locks")
        self._pool = ThreadPoolExecutor(JOBS, thread_name_prefix="mirror")
        self.near: dict[str, set[str]] = {}
        self._used: dict[str, float] = {}
        with self._locked():
            self._clean()
            # Shards of a run without a limit count as well.
            for path in cache.folder.glob(f"{_SHARDS}/*.arrow"):
                target = self.incoming.folder / path.relative_to(cache.folder)
                make_directory(target.parent)
                path.replace(target)

    def close(self) -> None:
        """Stop all downloads."""
        self.remote.stop.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def touch(self, name: str) -> None:
        """Note that a shard is used."""
        self._used[name] = time.monotonic()

    def fetch_ahead(self, file: SharedFile, check: Callable[[SharedFile], None]) -> None:
        """Fetch a shard in the background, if no other process does and there is room; drop errors."""
        # A closed pool takes no more work.
        with suppress(RuntimeError):
            self._pool.submit(self.fetch, file, check, urgent=False)

    def fetch(self, file: SharedFile, check: Callable[[SharedFile], None], *, urgent: bool = True) -> None:
        """Download a shard and check it, unless the mirror has it.

        Args:
            file: the shard.
            check: raises if its content is not the listed one.
            urgent: wait for other processes, and evict any shard for it. Otherwise fetch it only if it is of
                the current or next window, no other process does and there is room.

        Raises:
            RemoteError: if it cannot be fetched, or is refused.
            StorageError: if there is no room for it.
        """
        if not urgent and file.sha256 not in self._near():
            return
        path = self.incoming.path(file)
        with self._alone(file.sha256, wait=urgent) as is_alone:
            if not is_alone or path.is_file():
                return
            reserved = self._reserve(file, urgent=urgent)
            if reserved is None:
                return
            try:
                self.incoming.fetch_one(file)
                check(file)
            except BaseException:
                path.unlink(missing_ok=True)
                raise
            finally:
                with self._locked():
                    reserved.unlink(missing_ok=True)

    def _near(self) -> set[str]:
        return set().union(*self.near.values())

    def _locked(self) -> FileLock:
        """Return the lock under which shards are counted, reserved and evicted."""
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
        """Make room for a shard; return the file that reserves it, None if there is no room."""
        reserved = self.incoming.path(file).with_name(f"{_RESERVED}{file.sha256}")
        make_directory(reserved.parent)
        while True:
            with self._locked():
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
        # The reservation of a shard that has just arrived replaces it: it counts once and is not evicted.
        paths = {
            _digest_of(path): path
            for pattern in ("*.arrow", f"{_RESERVED}*")
            for path in self.incoming.folder.glob(f"{_SHARDS}/{pattern}")
        }
        held = dict[str, int]()
        for name, path in paths.items():
            with suppress(FileNotFoundError):
                held[name] = path.stat().st_size
        near = self._near()
        shards = [name for name in held if paths[name].suffix == ".arrow"]
        for name in sorted(shards, key=lambda name: (name in near, self._used.get(name, 0))):
            if sum(held.values()) + size <= self.limit or (name in near and not urgent):
                break
            stat = self.remote.stat(object_path(name))
            if stat is not None and stat.bytes == held[name]:
                paths[name].unlink(missing_ok=True)
                del held[name]
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
