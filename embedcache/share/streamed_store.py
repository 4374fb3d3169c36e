"""Vectors on a remote, read through a mirror with a limit: shards are fetched when they are needed.

The least recently used shards are evicted first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from embedcache.cache import Cache
from embedcache.codecs import CODEC_NAMES, Vectors
from embedcache.contract import Contract
from embedcache.errors import InputError, RemoteError, StorageError
from embedcache.fsio import TEMPORARY_PREFIX, make_directory
from embedcache.keys import KeyArray
from embedcache.live import Computing
from embedcache.progress import Progress
from embedcache.share.incoming import Incoming
from embedcache.share.manifest import ManifestSet, SharedFile
from embedcache.share.remote import Remote
from embedcache.share.rows import RemoteKeys
from embedcache.share.sample import SampleCheck, compare, local_teacher
from embedcache.sizes import readable
from embedcache.store import MemoryShards, ShardStore, VectorBatch
from embedcache.store.base import Positions
from embedcache.store.containers import FolderShards
from embedcache.store.shard import damaged_shard

MIRROR = "mirror"
"""Folder of ``derived/`` that a mirror works in."""
_SHARDS = "teachers/*/shards"


class ShardCache:
    """Shards of a mirror with a limit.

    They lie in ``derived/mirror``, outside the cache's teachers, because they come and go. One process at a
    time fetches and evicts; the others wait for its lock, and read the shards that are there meanwhile.

    Args:
        cache: the mirror.
        remote: the remote.
        listed: manifests of the remote.
        corpus: name of the corpus.
        limit: bytes of shards that are kept at a time.
        progress: receives what is done.
        on_sample: called with the result of each comparison with the live teacher.

    Attributes:
        near: shards of the current and the next window, by contract id.
        last_used: time of the last use of each shard.
    """

    def __init__(
        self,
        cache: Cache,
        remote: Remote,
        listed: ManifestSet,
        corpus: str,
        limit: int,
        progress: Progress,
        on_sample: Callable[[SampleCheck], None],
    ) -> None:
        self.cache, self.remote, self.listed, self.limit = cache, remote, listed, limit
        self.corpus, self.on_sample, self.progress = corpus, on_sample, progress
        self.incoming = Incoming(cache, remote, listed, progress, folder=cache.derived_folder / MIRROR)
        self.near: dict[str, set[str]] = {}
        self.last_used: dict[str, float] = {}
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="mirror")
        self._is_closed = False
        with self.locked():
            # Shards of a run without a limit count as well.
            for path in cache.folder.glob(f"{_SHARDS}/*.arrow"):
                target = self.incoming.folder / path.relative_to(cache.folder)
                make_directory(target.parent)
                path.replace(target)

    def close(self) -> None:
        """Stop all downloads."""
        self._is_closed = True
        self.remote.stop.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock under which shards are fetched and evicted.

        Raises:
            RemoteError: if the mirror is closed meanwhile.
        """
        lock = FileLock(self.incoming.folder / "shards.lock")
        while not (lock.is_locked or self._is_closed):
            with suppress(Timeout):
                lock.acquire(timeout=0.1, poll_interval=0.01)
        try:
            if self._is_closed:
                raise RemoteError(f"{self.remote.url}: stopped.")
            # Whoever wrote these was killed.
            for path in self.incoming.folder.glob(f"{_SHARDS}/{TEMPORARY_PREFIX}*"):
                path.unlink(missing_ok=True)
            yield
        finally:
            lock.release()

    def fetch(self, files: Sequence[SharedFile], *, ahead: bool = False) -> None:
        """Download shards that are missing; call it under the lock.

        Args:
            files: the shards.
            ahead: fetch those of the current and the next window, as far as there is room beside others of
                them. Otherwise any shard may be evicted.

        Raises:
            RemoteError: if one cannot be fetched.
            StorageError: if they are more than the limit.
        """
        missing, size, near = list[SharedFile](), 0, set[str]().union(*self.near.values())
        for file in files:
            if self.incoming.path(file).is_file() or (ahead and file.sha256 not in near):
                continue
            if not self._evict(size + file.bytes, near, keep=near if ahead else set()):
                if ahead:
                    break
                raise StorageError(
                    f"{self.cache.folder}: no room for a shard of {readable(file.bytes)} in --cache-limit "
                    f"{readable(self.limit)}. Raise the limit."
                )
            missing.append(file)
            size += file.bytes
        if missing:
            self.incoming.fetch("fetch vectors", missing)

    def fetch_ahead(self, files: Sequence[SharedFile]) -> None:
        """Download shards in the background; errors show when the shards are needed."""

        def fetch() -> None:
            with self.locked():
                self.fetch(files, ahead=True)

        with suppress(RuntimeError):  # a closed pool takes no more work
            self._pool.submit(fetch)

    def _evict(self, size: int, near: set[str], keep: set[str]) -> bool:
        """Delete the least recently used shards until ``size`` bytes more fit; return whether they do."""
        paths = {path.stem: path for path in self.incoming.folder.glob(f"{_SHARDS}/*.arrow")}
        held = {name: path.stat().st_size for name, path in paths.items()}
        for name in sorted(held.keys() - keep, key=lambda name: (name in near, self.last_used.get(name, 0))):
            if sum(held.values()) + size <= self.limit:
                break
            paths[name].unlink()
            del held[name]
        return sum(held.values()) + size <= self.limit


class StreamedStore:
    """Vectors of one contract on a remote; a read-only :class:`VectorStore`.

    Positions are those of :class:`RemoteKeys`, so they are known before a vector is fetched.

    Args:
        shards: the shards of the mirror.
        contract: the contract.

    Raises:
        InputError: if the remote has no vectors of it.
    """

    def __init__(self, shards: ShardCache, contract: Contract) -> None:
        files = shards.listed.shards(contract.id)
        if not files:
            raise InputError(f"{shards.remote.url}: no vectors of teacher {contract.id[:12]}.")
        self._shards, self._contract = shards, contract
        self._keys = RemoteKeys(shards.cache, shards.remote, files, shards.progress)
        self._codebooks = shards.cache.teacher_folder(contract) / "codebooks"
        self._folder = FolderShards(shards.incoming.path(files[0]).parent)
        self._opened: dict[int, ShardStore] = {}
        self._compared: set[int] = set()
        self._coming: list[int] | None = None
        self.shard_names: Sequence[str] = [file.sha256 for file in files]
        """Name of each shard, by number."""
        self.shard_sizes: Sequence[int] = [file.bytes for file in files]
        """Bytes of each shard, by number."""

    @property
    def contract(self) -> Contract:
        """The contract of every vector."""
        return self._contract

    @property
    def codec_name(self) -> str:
        """The finest codec of the shards."""
        return min((shard.codec for shard in self._keys.shards), key=CODEC_NAMES.index)

    @property
    def dtype(self) -> np.dtype[np.floating]:
        """The dtype :meth:`gather` returns: float16 where everything is stored so, else float32."""
        is_half = {shard.codec for shard in self._keys.shards} == {"float16"}
        return np.dtype(np.float16 if is_half else np.float32)

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self._keys.starts[-1])

    def put(self, batch: VectorBatch) -> None:
        """Refuse: a remote is pushed to."""
        raise InputError("vectors cannot be added to a remote that is trained from: build, then push.")

    def locate(self, keys: KeyArray) -> Positions:
        """Return the position of each key, -1 where it is missing."""
        return self._keys.locate(keys)

    def shards_at(self, positions: Positions) -> Positions:
        """Return the number of the shard of each position."""
        return self._keys.shards_at(positions)

    def want(self, now: Sequence[int], coming: Sequence[int] = ()) -> None:
        """Fetch shards in the background.

        The next window waits for the next :meth:`gather`: the first batch of a window may have rows of the
        window before, whose shards make room for it.

        Args:
            now: numbers of the shards of the current window.
            coming: numbers of the shards of the next window.
        """
        self._shards.near[self._contract.id] = {self.shard_names[number] for number in (*now, *coming)}
        self._shards.fetch_ahead([self._keys.shards[number] for number in now])
        self._coming = [*now, *coming]

    def interrupt(self) -> None:
        """Stop all downloads; a read that waits for one ends with an error."""
        self._shards.close()

    def admit(self, positions: Positions, computing: Computing) -> None:
        """Compare a sample of the shards at ``positions`` with the live teacher; each shard once.

        Args:
            positions: rows that are trained on next, shape (n,).
            computing: how to run the teacher; if its model is not on this machine, nothing is compared.

        Raises:
            RemoteError: if a shard cannot be fetched, or its vectors are not the teacher's.
            StorageError: if there is no room for a shard.
        """
        numbers = {*np.unique(self.shards_at(positions)).tolist()} - self._compared
        if not numbers:
            return
        came, cache = MemoryShards(), self._shards.cache
        names = [self.shard_names[number] for number in sorted(numbers)]
        for number, name in zip(sorted(numbers), names, strict=True):
            came.add(name, self._store(number).container.open(name))
        store = ShardStore(came, self._contract, codebooks=self._codebooks)
        teacher = self._shards.incoming.teacher(self._contract.id)
        corpus = cache.corpus(self._shards.corpus)
        load = partial(local_teacher, cache, teacher, store, computing)
        none = ShardStore(MemoryShards(), self._contract)
        sample = compare(store, none, teacher, [corpus, *corpus.views()], load)
        if sample.is_bad:
            self._opened.clear()
            for name in names:
                self._folder.remove(name)
            raise self._shards.incoming.refusal(names, f"vectors of {teacher.name}: {sample.message}")
        self._shards.on_sample(sample)
        self._compared |= numbers

    def gather(self, positions: Positions) -> NDArray[np.floating]:
        """Return the vectors at ``positions`` in :attr:`dtype`, shape (n, d), in the order asked.

        Raises:
            IndexError: if a position is -1 or past the end.
            RemoteError: if a shard cannot be fetched, or is refused.
            StorageError: if there is no room for it.
        """
        vectors = np.empty((len(positions), self._contract.dimension), dtype=self.dtype)
        for places, store, rows in self._runs(positions):
            vectors[places] = store.gather(rows)
        if self._coming is not None:
            wanted, self._coming = self._coming, None
            # A deleted shard takes room on the disk while it is mapped.
            self._opened = {number: self._opened[number] for number in wanted if number in self._opened}
            self._shards.fetch_ahead([self._keys.shards[number] for number in wanted])
        return vectors

    def vectors(self, positions: Positions) -> Vectors:
        """Return the vectors at ``positions`` as float32, shape (n, d); errors as :meth:`gather`."""
        return self.gather(positions).astype(np.float32, copy=False)

    def seen(self, positions: Positions) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Return ``tokens`` and ``truncated`` of the rows at ``positions``, each of shape (n,)."""
        tokens, truncated = np.empty(len(positions), np.int32), np.empty(len(positions), np.bool_)
        for places, store, rows in self._runs(positions):
            tokens[places], truncated[places] = store.seen(rows)
        return tokens, truncated

    def _runs(self, positions: Positions) -> Iterator[tuple[NDArray[np.intp], ShardStore, Positions]]:
        """Yield for each shard the places in ``positions`` that it holds, its store and the rows in it."""
        if len(positions) and (positions.min() < 0 or positions.max() >= len(self)):
            raise IndexError("a position outside the store; -1 stands for a missing key and holds no vector")
        numbers = self.shards_at(positions)
        order = np.argsort(numbers, kind="stable")
        for places in np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1):
            if len(places):
                number = int(numbers[places[0]])
                yield places, self._store(number), positions[places] - self._keys.starts[number]

    def _store(self, number: int) -> ShardStore:
        """Return the open store of one shard, fetched if it is missing."""
        file = self._keys.shards[number]
        self._shards.last_used[file.sha256] = time.monotonic()
        if number not in self._opened and self._folder.path(file.sha256).is_file():
            # Damaged, it is deleted and fetched again. Another process may have evicted it just now.
            with suppress(RemoteError):
                self._opened[number] = self._open(file)
        if number not in self._opened:
            with self._shards.locked():
                self._shards.fetch([file])
                self._opened[number] = self._open(file)
        return self._opened[number]

    def _open(self, file: SharedFile) -> ShardStore:
        """Open and check a shard; delete it if it is refused."""
        name, shard = file.sha256, MemoryShards()
        try:
            with self._shards.incoming.refusing([file]):
                if self._folder.find_corrupt([name]):
                    raise damaged_shard(self._folder.where(name), "its digest is another one")
                shard.add(name, self._folder.open(name))
                store = ShardStore(shard, self._contract, codebooks=self._codebooks)
            self._shards.incoming.check_shards(store, [file])
        except RemoteError:
            self._folder.path(name).unlink(missing_ok=True)
            raise
        return store
