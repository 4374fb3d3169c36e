"""Vectors on a remote, read through a mirror whose shards come and go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial

import numpy as np
from numpy.typing import NDArray

from embedcache.check.live import Computing
from embedcache.codecs import CODEC_NAMES, Vectors
from embedcache.contract import Contract
from embedcache.errors import CorruptCacheError, InputError
from embedcache.fsio import make_directory
from embedcache.keys import KeyArray
from embedcache.share.rows import RemoteKeys
from embedcache.share.sample import compare, local_teacher
from embedcache.share.stream import Stream
from embedcache.store import MemoryShards, ShardStore, VectorBatch
from embedcache.store.base import Positions
from embedcache.store.containers.folder import FolderShards
from embedcache.store.digests import FileNotes
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
        self._keys = RemoteKeys(stream.cache, stream.remote, shards, stream.meter)
        folder = stream.cache.teacher_folder(contract)
        self._codebooks, self._notes = folder / "codebooks", FileNotes()
        self._admitted = FolderShards(folder / "shards", self._notes)
        staged = stream.incoming.folder / "teachers" / contract.id / "shards"
        self._staged = FolderShards(staged, self._notes)
        self._opened: dict[int, ShardStore] = {}
        self._compared: set[str] = set()
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

    def want(self, windows: Sequence[Sequence[int]]) -> None:
        """Fetch the shards of the first window in the background, and those of the second one afterwards.

        The second window waits for the next :meth:`gather`: the first batch of a window may have rows of the
        window before, whose shards make room for it.

        Args:
            windows: numbers of the shards that are needed now, then those needed after them, and so on.
        """
        now, coming = [*windows, (), ()][:2]
        near = {self.shard_names[number] for number in (*now, *coming)}
        self._stream.near[self._contract.id] = near
        self._fetch_ahead(now)
        self._coming = [*now, *coming]

    def _fetch_ahead(self, numbers: Sequence[int]) -> None:
        files = [self._keys.shards[number] for number in numbers if self._place(number) is None]
        if files:
            size = sum(file.bytes for file in files)
            self._stream.meter.begin("fetch vectors", total_files=len(files), total_bytes=size)
        for number in numbers:
            self._stream.submit(partial(self._fetch, number, urgent=False))

    def interrupt(self) -> None:
        """Stop all downloads."""
        self._stream.remote.stop.set()

    def admit(self, positions: Positions, computing: Computing) -> None:
        """Compare a sample of the new shards at ``positions`` with the teacher, and admit them.

        Args:
            positions: rows that are trained on next, shape (n,).
            computing: how to run the teacher.

        Raises:
            RemoteError: if a shard cannot be fetched, or its vectors are not the teacher's.
            StorageError: if there is no room for a shard.
        """
        names = {n: self.shard_names[n] for n in np.unique(self.shards_at(positions)).tolist()}
        stores = {name: self._store(n) for n, name in names.items() if name not in self._compared}
        fresh = {name: one for name, one in stores.items() if not self._admitted.path(name).is_file()}
        if fresh:
            self._compare(fresh, computing)
        self._compared |= stores.keys()
        make_directory(self._admitted.folder)
        with self._stream.locked():
            for name in names.values():
                with suppress(FileNotFoundError):
                    self._staged.path(name).replace(self._admitted.path(name))
        self._notes.remember(self._admitted.path(name) for name in names.values())

    def _compare(self, stores: dict[str, ShardStore], computing: Computing) -> None:
        shards = MemoryShards()
        for name, one in stores.items():
            shards.add(name, one.container.open(name))
        came = ShardStore(shards, self._contract, codebooks=self._codebooks)
        stream = self._stream
        teacher = stream.incoming.teacher(self._contract.id)
        corpus = stream.cache.corpus(stream.corpus)
        load = partial(local_teacher, stream.cache, teacher, came, computing)
        none = ShardStore(MemoryShards(), self._contract)
        sample = compare(came, none, teacher, [corpus, *corpus.views()], load)
        if sample.is_bad:
            self._opened.clear()
            for name in stores:
                self._staged.path(name).unlink(missing_ok=True)
            raise stream.incoming.refusal(list(stores), f"vectors of {teacher.name}: {sample.told}")

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
            # A mapped shard takes its room on the disk even when it is deleted.
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
        """Yield for each shard the places in ``positions`` it answers, its store and the rows in it."""
        if len(positions) and (positions.min() < 0 or positions.max() >= len(self)):
            raise IndexError("a position outside the store; -1 stands for a missing key and holds no vector")
        numbers = self.shards_at(positions)
        order = np.argsort(numbers, kind="stable")
        for places in np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1):
            if len(places):
                number = int(numbers[places[0]])
                yield places, self._store(number), positions[places] - self._keys.starts[number]

    def _store(self, number: int) -> ShardStore:
        """Return the open store of one shard, fetched where it is missing."""
        self._stream.touch(self.shard_names[number])
        while (store := self._opened.get(number)) is None:
            place = self._place(number)
            if place is None:
                self._fetch(number, urgent=True)
                continue
            try:
                self._opened[number] = self._open(place, number)
            except (CorruptCacheError, FileNotFoundError):
                # Damaged, or moved or evicted by another process just now.
                place.path(self.shard_names[number]).unlink(missing_ok=True)
        return store

    def _place(self, number: int) -> FolderShards | None:
        name = self.shard_names[number]
        return next((one for one in (self._admitted, self._staged) if one.path(name).is_file()), None)

    def _open(self, place: FolderShards, number: int) -> ShardStore:
        name, shard = self.shard_names[number], MemoryShards()
        shard.add(name, place.open(name))
        if place.find_liars([name]):
            raise damaged_shard(place.where(name), "its digest is another one")
        return ShardStore(shard, self._contract, codebooks=self._codebooks)

    def _fetch(self, number: int, *, urgent: bool) -> None:
        file = self._keys.shards[number]

        def check() -> None:
            self._notes.remember([self._staged.path(file.sha256)])
            with self._stream.incoming.refusing([file]):
                store = self._open(self._staged, number)
            self._stream.incoming.check_shards(store, [file])

        if urgent or file.sha256 in self._stream.near[self._contract.id]:
            self._stream.fetch(file, lambda: self._place(number) is not None, check, urgent=urgent)
