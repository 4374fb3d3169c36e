"""Vectors on a remote, read through a mirror with a limit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from embedcache.codecs import CODEC_NAMES, Vectors
from embedcache.contract import Contract
from embedcache.errors import CorruptCacheError, InputError, RemoteError
from embedcache.keys import KeyArray
from embedcache.live import Computing
from embedcache.share.manifest import SharedFile
from embedcache.share.rows import RemoteKeys
from embedcache.share.sample import compare, local_teacher
from embedcache.share.stream import Stream
from embedcache.store import MemoryShards, ShardStore, VectorBatch
from embedcache.store.base import Positions
from embedcache.store.checked import CheckedFiles
from embedcache.store.containers.folder import FolderShards
from embedcache.store.shard import damaged_shard


class StreamedStore:
    """Vectors of one contract on a remote; a read-only :class:`VectorStore`.

    Positions are those of :class:`RemoteKeys`, so they are known before a vector is fetched.

    Args:
        stream: the shards of the mirror.
        contract: the contract.

    Raises:
        InputError: if the remote has no vectors of it.
    """

    def __init__(self, stream: Stream, contract: Contract) -> None:
        shards = stream.stock.shards(contract.id)
        if not shards:
            raise InputError(f"{stream.remote.url}: no vectors of teacher {contract.id[:12]}.")
        self._stream, self._contract = stream, contract
        self._keys = RemoteKeys(stream.cache, stream.remote, shards, stream.progress)
        self._codebooks, self._checked = stream.cache.teacher_folder(contract) / "codebooks", CheckedFiles()
        self._shards = FolderShards(stream.incoming.path(shards[0]).parent, self._checked)
        self._opened: dict[int, ShardStore] = {}
        self._compared: set[int] = set()
        self._coming: list[int] | None = None
        self.shard_names: Sequence[str] = [shard.sha256 for shard in shards]
        """Name of each shard, by number."""
        self.shard_sizes: Sequence[int] = [shard.bytes for shard in shards]
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
        self._stream.near[self._contract.id] = {self.shard_names[number] for number in (*now, *coming)}
        self._fetch_ahead(now)
        self._coming = [*now, *coming]

    def _fetch_ahead(self, numbers: Sequence[int]) -> None:
        files = [self._keys.shards[number] for number in numbers]
        files = [file for file in files if not self._shards.path(file.sha256).is_file()]
        if files:
            size = sum(file.bytes for file in files)
            self._stream.progress.phase("fetch vectors", size, "bytes")
        for file in files:
            self._stream.fetch_ahead(file, self._check)

    def interrupt(self) -> None:
        """Stop all downloads."""
        self._stream.remote.stop.set()

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
        shards, stream = MemoryShards(), self._stream
        names = [self.shard_names[number] for number in sorted(numbers)]
        for number, name in zip(sorted(numbers), names, strict=True):
            shards.add(name, self._store(number).container.open(name))
        came = ShardStore(shards, self._contract, codebooks=self._codebooks)
        teacher = stream.incoming.teacher(self._contract.id)
        corpus = stream.cache.corpus(stream.corpus)
        load = partial(local_teacher, stream.cache, teacher, came, computing)
        none = ShardStore(MemoryShards(), self._contract)
        sample = compare(came, none, teacher, [corpus, *corpus.views()], load)
        if sample.is_bad:
            self._opened.clear()
            for name in names:
                self._shards.path(name).unlink(missing_ok=True)
            raise stream.incoming.refusal(names, f"vectors of {teacher.name}: {sample.message}")
        stream.on_sample(sample)
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
            self._fetch_ahead(wanted)
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
        self._stream.touch(file.sha256)
        while (store := self._opened.get(number)) is None:
            self._stream.fetch(file, self._check)
            try:
                store = self._open(file.sha256)
                self._stream.incoming.check_shards(store, [file])
                self._opened[number] = store
            except (CorruptCacheError, FileNotFoundError, RemoteError):
                # Damaged or unchecked, or evicted by another process just now.
                self._shards.path(file.sha256).unlink(missing_ok=True)
        return store

    def _open(self, name: str) -> ShardStore:
        shard = MemoryShards()
        shard.add(name, self._shards.open(name))
        if self._shards.find_corrupt([name]):
            raise damaged_shard(self._shards.where(name), "its digest is another one")
        return ShardStore(shard, self._contract, codebooks=self._codebooks)

    def _check(self, file: SharedFile) -> None:
        """Check a shard that was just downloaded."""
        self._checked.add(self._shards.path(file.sha256))
        with self._stream.incoming.refusing([file]):
            store = self._open(file.sha256)
        self._stream.incoming.check_shards(store, [file])
