"""A store whose shards lie on a remote: each is fetched whole when its vectors are needed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from embedcache.check.progress import Meter
from embedcache.codecs import Vectors
from embedcache.contract import Contract
from embedcache.errors import InputError, StorageError
from embedcache.key_index import halves
from embedcache.keys import KEY_DTYPE, KeyArray
from embedcache.share.limits import Allowance
from embedcache.share.mirror.shards import MirrorShards
from embedcache.share.rows.remote_keys import RemoteKeys
from embedcache.store import ShardStore, VectorBatch
from embedcache.store.base import Positions
from embedcache.store.digests import CHECKED, FileNotes
from embedcache.store.index import ReadingIndex, open_index

_ROWS_AT_ONCE = 1 << 18


class StreamedStore:
    """Vectors of one contract on a remote; a :class:`embedcache.store.base.VectorStore` that is only read.

    Row indexes hold the keys, so the position of a row is known before its vector is here. Positions count
    over the remote's shards in the order of their names. A key in several shards is read from the same row as
    in a store that holds all of them. Shards that only the mirror has are read too, but only for keys that
    the remote lacks, whatever their codec: a run gives the same result in any mirror.

    Args:
        contract: the contract.
        keys: the keys of its shards on the remote.
        shards: brings them here.
        index: folder of the derived index of the mirror, which is that of a cache with all shards.
        meter: counts row indexes that are fetched.
        allowance: how much may be fetched.
        left_out: shards that are in the mirror and not on the remote, and are not read either.

    Raises:
        RemoteError: if a row index cannot be had, or is refused.
    """

    def __init__(
        self,
        contract: Contract,
        keys: RemoteKeys,
        shards: MirrorShards,
        index: Path,
        meter: Meter,
        allowance: Allowance,
        left_out: Collection[str] = (),
    ) -> None:
        self._contract, self._keys, self._shards = contract, keys, shards
        self._allowance = allowance
        self._names = [shard.sha256 for shard in keys.shards]
        keys.load(meter)
        self._arrays = [keys.index(shard).keys for shard in keys.shards]
        self._starts = np.cumsum([0, *map(len, self._arrays)], dtype=np.int64)
        self._finder = self._find(index) if self._names else None
        self._own = shards.own(contract.id, left_out)
        self._opened: dict[int, ShardStore] = {}
        self._near: set[int] = set()

    @property
    def contract(self) -> Contract:
        """The contract of every vector in the store."""
        return self._contract

    @property
    def codec_name(self) -> str:
        """How most vectors are stored."""
        names = [self._keys.header(shard).codec for shard in self._keys.shards]
        return max(sorted(set(names)), key=names.count) if names else "float16"

    @property
    def shard_names(self) -> Sequence[str]:
        """The name of each shard of the remote, by number; and an empty one for what is here for good."""
        return [*self._names, ""]

    @property
    def shard_sizes(self) -> Sequence[int]:
        """Bytes of each shard of the remote, by number; and 0 for the mirror's own."""
        return [*(shard.bytes for shard in self._keys.shards), 0]

    def __len__(self) -> int:
        """Return the number of distinct keys on the remote."""
        return 0 if self._finder is None else self._finder.finder.distinct

    def put(self, batch: VectorBatch) -> None:
        """Refuse: a remote is pushed to."""
        raise InputError("vectors cannot be added to a remote that is trained from: build, and push")

    def locate(self, keys: KeyArray) -> Positions:
        """Return the position of each key, -1 where it is missing."""
        positions = np.full(len(keys), -1, dtype=np.int64)
        if self._finder is not None:
            positions = self._finder.locate(keys)
            self._confirm(keys, positions)
        if self._own is not None:
            left = np.flatnonzero(positions < 0)
            own = self._own.locate(keys[left])
            positions[left] = np.where(own < 0, -1, own + self._starts[-1])
        return positions

    def shards_at(self, positions: Positions) -> NDArray[np.int64]:
        """Return the number of the shard of each position; one more than the last for the mirror's own."""
        return np.searchsorted(self._starts, positions, side="right") - 1

    def expect(self, positions: Positions) -> None:
        """Count the shards of all rows that will be needed, before any is fetched.

        Where shards make room for others nobody can tell how often each will come, and none counts.

        Raises:
            InputError: if they are more than may be fetched.
        """
        if self._shards.is_limited or self._allowance.most is None:
            return
        starts = range(0, len(positions), _ROWS_AT_ONCE)
        blocks = (positions[start : start + _ROWS_AT_ONCE].astype(np.int64) for start in starts)
        numbers = {number for block in blocks for number in np.unique(self.shards_at(block)).tolist()}
        names = [self._names[number] for number in numbers if number < len(self._names)]
        self._allowance.take(self._shards.missing_bytes(self._contract.id, names))

    def want(self, windows: Sequence[Sequence[int]]) -> None:
        """Have shards fetched in the background.

        Args:
            windows: numbers of the shards that are needed at once, then those needed after them, and so on.
                Where room is limited, the first two are fetched.
        """
        near = windows[:2] if self._shards.is_limited else windows
        numbers = [number for window in near for number in window if number < len(self._names)]
        wanted = list(dict.fromkeys(numbers))
        self._near = set(wanted)
        # A mapped shard takes its room on the disk even when it is deleted.
        self._opened = {number: self._opened[number] for number in wanted if number in self._opened}
        self._shards.want(self._contract.id, [self._names[number] for number in wanted])

    def interrupt(self) -> None:
        """Fetch nothing more."""
        self._keys.remote.stop.set()

    def gather(self, positions: Positions) -> NDArray[np.floating]:
        """Return the vectors at ``positions``, shape (n, d), in the order asked.

        The dtype is float16 where all of these are stored so, else float32.

        Raises:
            IndexError: if a position is -1 or past the end.
            RemoteError: if a shard cannot be had, or is refused.
            StorageError: if there is no room for it.
        """
        if not len(positions):
            return np.empty((0, self._contract.dimension), dtype=np.float32)
        if positions.min() < 0:
            raise IndexError("a position outside the store; -1 stands for a missing key and holds no vector")
        numbers = self.shards_at(positions)
        order = np.argsort(numbers, kind="stable")
        numbers = numbers[order]
        edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        absent = [number for number in numbers[edges[:-1]].tolist() if number not in self._opened]
        names = [self._names[number] for number in absent if number < len(self._names)]
        self._shards.hurry(self._contract.id, names)
        runs = []
        for start, end in pairwise(edges):
            number = int(numbers[start])
            store = self._store(number)
            runs.append(store.gather(positions[order[start:end]] - self._starts[number]))
        sorted_rows = np.concatenate(runs)
        if len(runs) < 2:
            return sorted_rows
        rows = np.empty_like(sorted_rows)
        rows[order] = sorted_rows
        return rows

    def opened(self, numbers: NDArray[np.integer]) -> ShardStore:
        """Return a store of some of the remote's shards, by number; those that are not here are fetched.

        Raises:
            RemoteError: if one cannot be had, or is refused.
            StorageError: if there is no room for it.
        """
        return self._shards.open_several(self._contract.id, [self._names[number] for number in numbers])

    def vectors(self, positions: Positions) -> Vectors:
        """Return the vectors at ``positions`` as float32, shape (n, d); errors as :meth:`gather`."""
        return self.gather(positions).astype(np.float32, copy=False)

    def seen(self, positions: Positions) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Return ``tokens`` and ``truncated`` of the rows at ``positions``, which row indexes tell."""
        tokens = np.empty(len(positions), dtype=np.int32)
        truncated = np.empty(len(positions), dtype=np.bool_)
        numbers = self.shards_at(positions)
        for number in np.unique(numbers).tolist():
            mine = numbers == number
            rows = positions[mine] - self._starts[number]
            if number == len(self._names):
                tokens[mine], truncated[mine] = self._store(number).seen(rows)
            else:
                index = self._keys.index(self._keys.shards[number])
                tokens[mine], truncated[mine] = index.tokens[rows], index.truncated[rows]
        return tokens, truncated

    def _store(self, number: int) -> ShardStore:
        if number == len(self._names):
            if self._own is None:
                raise IndexError("a position past the end of the store")
            return self._own
        store = self._opened.get(number)
        if store is None:
            store = self._shards.open(self._contract.id, self._names[number])
            if number in self._near:
                self._opened[number] = store
        return store

    def _find(self, folder: Path) -> ReadingIndex:
        order = self._keys.reading_order()
        names, arrays = [self._names[number] for number in order], [self._arrays[number] for number in order]
        try:
            finder = open_index(folder, names, arrays, FileNotes(folder / CHECKED))
        except StorageError:
            # The mirror cannot be written to. The mapped file stays readable when it is deleted.
            with TemporaryDirectory(prefix="embedcache-index-") as scratch:
                finder = open_index(Path(scratch), names, arrays, FileNotes())
        return ReadingIndex.of(finder, order, self._starts)

    def _confirm(self, keys: KeyArray, positions: Positions) -> None:
        """See that the keys at the positions of an index are those asked for."""
        known = np.flatnonzero(positions >= 0)
        stored = np.empty(len(known), dtype=KEY_DTYPE)
        numbers = self.shards_at(positions[known])
        for number in np.unique(numbers).tolist():
            mine = numbers == number
            stored[mine] = self._arrays[number][positions[known][mine] - self._starts[number]]
        if any((a != b).any() for a, b in zip(halves(stored), halves(keys[known]), strict=True)):
            raise StorageError(
                "the derived index of the mirror does not fit the remote's shards: delete the folder "
                "derived/index of the mirror, and run again"
            )
