"""The store: the vectors of one contract, in shards, wherever those lie.

The set of shards is the truth. The index, and the notes on which files were checked, are derived from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from embedcache.codecs import (
    CODEC_NAMES,
    DEFAULT_CODEC,
    Codec,
    Stored,
    Vectors,
    check_codec_name,
    get_codec,
    pq,
)
from embedcache.codecs.quality import measure
from embedcache.contract import Contract, describe_differences
from embedcache.errors import ContractMismatchError, CorruptCacheError, InputError, StorageError
from embedcache.key_index import KeyIndex
from embedcache.keys import KEY_DTYPE, KeyArray
from embedcache.store.base import Positions, VectorBatch
from embedcache.store.containers import ShardContainer
from embedcache.store.digests import FileNotes
from embedcache.store.index import StoreIndex, open_index
from embedcache.store.shard import Shard, ShardHeader, damaged_shard, open_shard, shard_bytes

if TYPE_CHECKING:
    import pyarrow as pa

# The one codec that is made from vectors before it can store any.
_TRAINED = "pq"


class ShardStore:
    """Vectors of one contract.

    Args:
        container: where the shards lie.
        contract: the contract every shard must carry.
        codec: how new vectors are stored; default: as the shards that are there (the finest, where they
            differ), else ``float16``.
        codebooks: folder of the codebooks of ``pq``; it is needed for that codec only.
        index: folder of the derived index, and the notes on its files; without it the index is in memory.

    Raises:
        ContractMismatchError: if a shard carries another contract; nothing of it is used.
        InputError: if ``codec`` is not that of the shards that are there.
        CorruptCacheError: if a shard is damaged.
    """

    def __init__(
        self,
        container: ShardContainer,
        contract: Contract,
        codec: str | None = None,
        *,
        codebooks: Path | None = None,
        index: tuple[Path, FileNotes] | None = None,
    ) -> None:
        self.container = container
        self._contract = contract
        self._codebooks = codebooks
        self._index_place = index
        self._codecs: dict[tuple[str, str | None], Codec] = {}
        names = container.names()
        for name in container.find_liars(names):
            raise damaged_shard(container.where(name), "its bytes are not those its name is the sha256 of")
        self._shards = [self._open(name) for name in names]
        self._starts = _starts(self._shards)
        self._index: StoreIndex | KeyIndex | None = None
        found = {shard.header.codec for shard in self._shards}
        if codec is not None and found - {check_codec_name(codec)}:
            raise InputError(
                f"the cache stores these vectors as {', '.join(sorted(found))}, not as {codec}: leave "
                "--codec out, or make a cache of the other codec with 'embedcache convert'"
            )
        # Merging caches may bring several codecs together; the finest, listed first, holds any's vectors.
        present = [name for name in CODEC_NAMES if name in found]
        self._codec_name = codec or (present[0] if present else DEFAULT_CODEC)

    @property
    def contract(self) -> Contract:
        """The contract of every vector in the store."""
        return self._contract

    @property
    def codec_name(self) -> str:
        """How new vectors are stored."""
        return self._codec_name

    @property
    def kind(self) -> str:
        """Where the shards lie: ``arrow``, ``lmdb`` or ``memory``."""
        return self.container.kind

    @property
    def shards(self) -> tuple[Shard, ...]:
        """The opened shards: those found at first in the order of their names, then those added."""
        return tuple(self._shards)

    @property
    def bytes_on_disk(self) -> int:
        """Total size of the shards."""
        return sum(self.container.size(shard.name) for shard in self._shards)

    @property
    def dtype(self) -> np.dtype[np.floating]:
        """The dtype :meth:`gather` returns: float16 where everything is stored so, else float32."""
        decoded = {shard.codec.decoded for shard in self._shards}
        return np.dtype(np.float16) if decoded == {np.dtype(np.float16)} else np.dtype(np.float32)

    def __len__(self) -> int:
        """Return the number of distinct keys."""
        return self._opened_index().distinct

    def put(self, batch: VectorBatch) -> None:
        """Store ``batch`` as one shard, durably. Positions handed out before keep their meaning.

        Raises:
            InputError: if a value does not fit the codec, or the first batch is too small to train ``pq`` on.
            StorageError: if the store cannot be written.
        """
        if not len(batch.keys):
            return
        codec = self._codec_for(batch.vectors)
        stored = codec.encode(batch.vectors)
        self.put_stored(codec, stored, batch, measure(codec, batch.vectors, stored).to_json())

    def put_stored(
        self, codec: Codec, stored: Stored, rows: VectorBatch | Shard, error: Mapping[str, float]
    ) -> str:
        """Store encoded rows as one shard and return its name; ``rows`` gives all but their vectors.

        Args:
            codec: the codec of ``stored``.
            stored: the vectors as the codec keeps them.
            rows: keys, tokens, truncated and provenance.
            error: what the codec lost, for the header.
        """
        provenance = rows.header.provenance if isinstance(rows, Shard) else rows.provenance
        header = ShardHeader(
            self._contract, codec.name, codec.codebook, len(rows.keys), dict(provenance), dict(error)
        )
        name, data = shard_bytes(header, codec, rows.keys, stored, rows.tokens, rows.truncated)
        self.put_raw(name, data)
        return name

    def put_raw(self, name: str, data: pa.Buffer) -> None:
        """Store the bytes of a shard of this contract under their name.

        Raises:
            ContractMismatchError, CorruptCacheError: if they are not.
            StorageError: if the store cannot be written.
        """
        self.container.add(name, data)
        if all(shard.name != name for shard in self._shards):
            self._shards.append(self._open(name))
            self._starts = _starts(self._shards)
            self._index = None

    def finish(self) -> None:
        """Put on record that a writer is done: the index for the next reader, digests that were taken.

        Where the derived files cannot be written the next reader does the work.
        """
        self.container.finish()
        if self._index_place is not None and self._shards:
            with suppress(StorageError):
                self._open_index(sorted(self._shards, key=lambda shard: shard.name), *self._index_place)

    def locate(self, keys: KeyArray) -> Positions:
        """Return the position of each key, -1 where it is missing."""
        found = self._opened_index().locate(keys)
        if not self._confirm(keys, found):
            # The derived index lies; the shards do not.
            if isinstance(self._index, StoreIndex):
                self._index.discard()
            self._index = None
            found = self._opened_index().locate(keys)
            if not self._confirm(keys, found):
                raise CorruptCacheError(
                    "an index does not fit the shards it was just made of: another program changes the "
                    "cache; run 'embedcache verify'"
                )
        return found

    def gather(self, positions: Positions) -> NDArray[np.floating]:
        """Return the vectors at ``positions`` in :attr:`dtype`, shape (n, d), in the order asked.

        Raises:
            IndexError: if a position is -1 or past the end.
        """
        out = np.empty((len(positions), self._contract.dimension), dtype=self.dtype)
        for rows, shard, places in self._by_shard(positions):
            out[rows] = shard.codec.decode(shard.stored.take(places))
        return out

    def vectors(self, positions: Positions) -> Vectors:
        """Return the vectors at ``positions`` as float32, shape (n, d)."""
        return self.gather(positions).astype(np.float32, copy=False)

    def seen(self, positions: Positions) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Return ``tokens`` and ``truncated`` of the rows at ``positions``, each of shape (n,)."""
        tokens = np.empty(len(positions), dtype=np.int32)
        truncated = np.empty(len(positions), dtype=np.bool_)
        for rows, shard, places in self._by_shard(positions):
            tokens[rows], truncated[rows] = shard.tokens[places], shard.truncated[places]
        return tokens, truncated

    def _by_shard(self, positions: Positions) -> Iterator[tuple[NDArray[np.int64], Shard, NDArray[np.int64]]]:
        """Yield (which of ``positions``, their shard, their rows in it)."""
        if not len(positions):
            return
        if positions.min() < 0 or positions.max() >= self._starts[-1]:
            raise IndexError("a position outside the store; -1 stands for a missing key and holds no vector")
        numbers = np.searchsorted(self._starts, positions, side="right") - 1
        order = np.argsort(numbers, kind="stable")
        edges = np.flatnonzero(np.diff(numbers[order], prepend=-1, append=-1))
        for start, end in pairwise(edges):
            rows = order[start:end]
            number = numbers[rows[0]]
            yield rows, self._shards[number], positions[rows] - self._starts[number]

    def _confirm(self, keys: KeyArray, found: Positions) -> bool:
        """Whether the keys at the positions found are the keys asked for."""
        there = np.flatnonzero(found >= 0)
        if len(there) and found.max() >= self._starts[-1]:
            return False
        for rows, shard, places in self._by_shard(found[there]):
            if (shard.keys[places] != keys[there[rows]]).any():
                return False
        return True

    def _opened_index(self) -> StoreIndex | KeyIndex:
        if self._index is None and self._index_place is not None and self._shards:
            with suppress(StorageError):
                self._index = self._open_index(self._shards, *self._index_place)
        if self._index is None:
            # In memory: where there is nothing on disk to index, or nothing can be written beside it.
            keys = [shard.keys for shard in self._shards] or [np.empty(0, dtype=KEY_DTYPE)]
            self._index = KeyIndex(np.concatenate(keys))
        return self._index

    @staticmethod
    def _open_index(shards: Sequence[Shard], folder: Path, notes: FileNotes) -> StoreIndex:
        return open_index(folder, [shard.name for shard in shards], [shard.keys for shard in shards], notes)

    def _open(self, name: str) -> Shard:
        shard = open_shard(self.container.open(name), name, self.container.where(name), self._find_codec)
        if shard.header.contract != self._contract:
            differences = self._contract.differences(shard.header.contract)
            raise ContractMismatchError(
                f"shard {shard.where} belongs to another teacher ({describe_differences(differences)}): "
                "it was copied into the wrong folder; move it away, or run 'embedcache repair'",
                differences,
            )
        return shard

    def _find_codec(self, name: str, codebook: str | None) -> Codec:
        if (name, codebook) not in self._codecs:
            self._codecs[name, codebook] = self._load_codec(name, codebook)
        return self._codecs[name, codebook]

    def _load_codec(self, name: str, codebook: str | None) -> Codec:
        if codebook is None:
            return get_codec(name)
        if self._codebooks is None:
            raise InputError(f"codec {name} needs a folder of codebooks, and this store has none")
        return pq.load(self._codebooks, codebook)

    def _codec_for(self, vectors: Vectors) -> Codec:
        """Return the codec of new rows; for ``pq`` the codebook in use, or one trained on ``vectors``."""
        if self._codec_name != _TRAINED:
            return get_codec(self._codec_name)
        for shard in self._shards:
            if shard.codec.name == _TRAINED:
                return shard.codec
        if self._codebooks is None:
            raise InputError("codec pq needs a folder for its codebook, and this store has none")
        codec = pq.train(vectors)
        pq.save(self._codebooks, codec)
        return codec


def _starts(shards: Sequence[Shard]) -> NDArray[np.int64]:
    return np.array([0, *accumulate(map(len, shards))], dtype=np.int64)
