"""The Arrow store: the shards of one contract in one folder.

The set of shard files is the truth. Everything kept in memory is derived from them when the store is opened.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embedcache.codecs import CODECS, DEFAULT_CODEC, Codec
from embedcache.contract import Contract, describe_differences
from embedcache.errors import ContractMismatchError, InputError
from embedcache.fsio import make_directory
from embedcache.key_index import KeyIndex
from embedcache.keys import KEY_DTYPE, KeyArray
from embedcache.store.base import Positions, VectorBatch
from embedcache.store.shard import Shard, open_shard, write_shard


class ArrowStore:
    """Vectors of one contract in Arrow shards.

    Args:
        folder: the folder of the shards; created at the first write.
        contract: the contract every shard must carry.
        codec: how new vectors are stored; default: as the shards that are there (``float32`` where they
            differ), else ``float16``.

    Raises:
        ContractMismatchError: if a shard carries another contract; nothing of it is used.
        InputError: if ``codec`` is not that of the shards that are there.
        CorruptCacheError: if a shard is damaged.
    """

    def __init__(self, folder: Path, contract: Contract, codec: Codec | None = None) -> None:
        self._folder = folder
        self._contract = contract
        self._shards: list[Shard] = []
        # Sorted by name, so positions and the choice among duplicates do not depend on the file system.
        for path in sorted(folder.glob("[0-9a-f]*.arrow")):
            shard = open_shard(path)
            if shard.contract != contract:
                differences = contract.differences(shard.contract)
                raise ContractMismatchError(
                    f"shard {path} belongs to another teacher ({describe_differences(differences)}): "
                    "it was copied into the wrong folder; move it away",
                    differences,
                )
            self._shards.append(shard)
        found = {shard.codec.name for shard in self._shards}
        if codec is not None and found - {codec.name}:
            raise InputError(
                f"the cache stores these vectors as {', '.join(sorted(found))}, not as {codec.name}: "
                "leave --codec out, or build into another cache"
            )
        # Merging caches may bring both codecs together; the finer one, listed first, holds either's vectors.
        present = [known for known in CODECS.values() if known.name in found]
        self._codec = codec or (present[0] if present else CODECS[DEFAULT_CODEC])
        self._reindex()

    def _reindex(self) -> None:
        self._stale = False
        self._starts = np.array([0, *accumulate(len(shard.keys) for shard in self._shards)], dtype=np.int64)
        keys = [shard.keys for shard in self._shards] or [np.empty(0, dtype=KEY_DTYPE)]
        self._index = KeyIndex(np.concatenate(keys))

    @property
    def contract(self) -> Contract:
        """The contract of every vector in the store."""
        return self._contract

    @property
    def codec(self) -> Codec:
        """How new vectors are stored."""
        return self._codec

    @property
    def shards(self) -> tuple[Shard, ...]:
        """The opened shards, in the order of their names."""
        return tuple(self._shards)

    @property
    def bytes_on_disk(self) -> int:
        """Total size of the shard files."""
        return sum(shard.path.stat().st_size for shard in self._shards)

    def __len__(self) -> int:
        """Return the number of distinct keys."""
        if self._stale:
            self._reindex()
        return len(self._index)

    def put(self, batch: VectorBatch) -> None:
        """Write ``batch`` as one shard, durably. Positions handed out before keep their meaning.

        Raises:
            StorageError: if the folder cannot be written.
        """
        if not len(batch.keys):
            return
        path = write_shard(make_directory(self._folder), self._contract, self._codec, batch)
        if all(shard.path != path for shard in self._shards):
            self._shards.append(open_shard(path))
            self._stale = True

    def locate(self, keys: KeyArray) -> Positions:
        """Return the position of each key, -1 where it is missing."""
        if self._stale:
            self._reindex()
        return self._index.locate(keys)

    def gather(self, positions: Positions) -> NDArray[np.floating]:
        """Return the rows at ``positions`` in the codec's dtype, shape (n, d), in the order asked.

        Raises:
            IndexError: if a position is -1 or past the end.
        """
        if self._stale:
            self._reindex()
        if len(positions) and (positions.min() < 0 or positions.max() >= self._starts[-1]):
            raise IndexError("a position outside the store; -1 stands for a missing key and holds no vector")
        out = np.empty((len(positions), self._contract.dimension), dtype=self._codec.dtype)
        if len(self._shards) == 1:
            np.take(self._shards[0].stored, positions, axis=0, out=out)
            return out
        numbers = np.searchsorted(self._starts, positions, side="right") - 1
        order = np.argsort(numbers, kind="stable")
        edges = np.flatnonzero(np.diff(numbers[order], prepend=-1, append=-1))
        for start, end in pairwise(edges):
            rows = order[start:end]
            number = numbers[rows[0]]
            out[rows] = self._shards[number].stored[positions[rows] - self._starts[number]]
        return out
