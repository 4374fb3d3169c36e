"""The store: the vectors of one contract, in shards, wherever those lie.

The set of shards is the truth. The index, and the notes on which files were checked, are derived from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
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
from embedcache.key_index import KeyIndex, halves
from embedcache.keys import KEY_DTYPE, KeyArray
from embedcache.store.base import Positions, VectorBatch
from embedcache.store.containers import ShardContainer
from embedcache.store.digests import FileNotes
from embedcache.store.found import Found
from embedcache.store.index import ReadingIndex, StoreIndex, open_index
from embedcache.store.reading_order import reading_rank
from embedcache.store.shard import Shard, damaged_shard, open_shard, stored_shard

if TYPE_CHECKING:
    import pyarrow as pa

# The one codec that is made from vectors before it can store any.
_TRAINED = "pq"
# Looking one key up takes some tens of bytes for a moment, and shards may be of any size.
_LOCATE_ROWS = 65536


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
        self._shards: list[Shard] = []
        self._names: set[str] = set()
        self._starts = np.zeros(1, dtype=np.int64)
        self._index: ReadingIndex | None = None
        for shard in self._open_all():
            self._append(shard)
        found = {shard.header.codec for shard in self._shards}
        if codec is not None and found - {check_codec_name(codec)}:
            raise InputError(
                f"the cache stores these vectors as {', '.join(sorted(found))}, not as {codec}: leave "
                "--codec out, or make a cache of the other codec with 'embedcache copy'"
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
        return sum(shard.bytes for shard in self._shards)

    @property
    def is_current(self) -> bool:
        """Whether the shards are still those that lie there; others may have come since it was opened."""
        return self._names == set(self.container.names())

    @property
    def dtype(self) -> np.dtype[np.floating]:
        """The dtype :meth:`gather` returns: float16 where everything is stored so, else float32."""
        decoded = {shard.codec.decoded for shard in self._shards}
        return np.dtype(np.float16) if decoded == {np.dtype(np.float16)} else np.dtype(np.float32)

    def __len__(self) -> int:
        """Return the number of distinct keys."""
        return self._opened_index().finder.distinct

    @property
    def repeats_keys(self) -> bool:
        """Whether a key stands in several rows, of which the store answers with one."""
        return len(self) != int(self._starts[-1])

    def own_rows(self) -> Iterator[tuple[Shard, NDArray[np.bool_]]]:
        """Yield each shard, in the order that positions count in, and which of its rows are ever read.

        Of a key in several rows that is the one :meth:`locate` gives. The mask is bool, of shape (n,); only
        that of the shard at hand is held.
        """
        repeats = self.repeats_keys
        for shard, start in zip(self.shards, self._starts.tolist(), strict=False):
            own = np.ones(len(shard), dtype=np.bool_)
            for first in range(0, len(shard) if repeats else 0, _LOCATE_ROWS):
                keys = shard.keys[first : first + _LOCATE_ROWS]
                places = np.arange(start + first, start + first + len(keys))
                own[first : first + len(keys)] = self.locate(keys) == places
            yield shard, own

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
        name, data = stored_shard(self._contract, codec, stored, rows, error)
        self.put_raw(name, data)
        return name

    def put_raw(self, name: str, data: pa.Buffer) -> None:
        """Store the bytes of a shard of this contract under their name.

        Raises:
            ContractMismatchError, CorruptCacheError: if they are not.
            StorageError: if the store cannot be written.
        """
        self.container.add(name, data)
        self.adopt(name)

    def adopt(self, name: str) -> None:
        """Count in a shard that was put into the container; errors as :meth:`put_raw`."""
        if name not in self._names:
            self._append(self._open(name))

    def open_new(self) -> int:
        """Open the shards that others have added since; return how many. Positions keep their meaning.

        Raises:
            ContractMismatchError, CorruptCacheError: as when the store is opened.
        """
        fresh = [name for name in self.container.names() if name not in self._names]
        self._refuse_liars(fresh)
        for shard in [self._open(name) for name in fresh]:
            self._append(shard)
        return len(fresh)

    def finish(self) -> None:
        """Put on record that a writer is done: the index for the next reader, digests that were taken.

        Where the derived files cannot be written the next reader does the work.
        """
        self.container.finish()
        if self._index is None and self._index_place is not None and self._shards:
            with suppress(StorageError):
                self._index = self._open_index(*self._index_place)

    def locate(self, keys: KeyArray) -> Positions:
        """Return the position of each key, -1 where it is missing."""
        found = self._opened_index().locate(keys)
        if not self._confirm(keys, found):
            # The derived index lies; the shards do not.
            self._discard_index()
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
        found = self._found_at(positions)
        ordered = np.empty((len(positions), self._contract.dimension), dtype=self.dtype)
        for shard, run in found.runs:
            shard.codec.decode_into(shard.stored, found.places[run], ordered[run])
        return found.as_asked(ordered)

    def vectors(self, positions: Positions) -> Vectors:
        """Return the vectors at ``positions`` as float32, shape (n, d)."""
        return self.gather(positions).astype(np.float32, copy=False)

    def seen(self, positions: Positions) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Return ``tokens`` and ``truncated`` of the rows at ``positions``, each of shape (n,)."""
        found = self._found_at(positions)
        tokens = np.empty(len(positions), dtype=np.int32)
        truncated = np.empty(len(positions), dtype=np.bool_)
        for shard, run in found.runs:
            tokens[run], truncated[run] = shard.tokens[found.places[run]], shard.truncated[found.places[run]]
        return found.as_asked(tokens), found.as_asked(truncated)

    def _found_at(self, positions: Positions) -> Found:
        if not len(positions):
            return Found(positions, positions, [])
        if positions.min() < 0 or positions.max() >= self._starts[-1]:
            raise IndexError("a position outside the store; -1 stands for a missing key and holds no vector")
        numbers = np.searchsorted(self._starts, positions, side="right") - 1
        # numpy sorts small numbers by their digits, many times faster.
        small = numbers.astype(np.uint16) if len(self._shards) <= 1 << 16 else numbers
        order = np.argsort(small, kind="stable")
        numbers = numbers[order]
        edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        runs = [
            (self._shards[number], slice(start, end))
            for number, start, end in zip(numbers[edges[:-1]].tolist(), edges, edges[1:], strict=False)
        ]
        return Found(order, positions[order] - self._starts[numbers], runs)

    def _confirm(self, keys: KeyArray, positions: Positions) -> bool:
        """Whether the keys at ``positions``, where there are any, are the keys asked for."""
        there = np.flatnonzero(positions >= 0)
        if len(there) and positions.max() >= self._starts[-1]:
            return False
        found = self._found_at(positions[there])
        stored = np.empty(len(there), dtype=KEY_DTYPE)
        for shard, run in found.runs:
            stored[run] = shard.keys[found.places[run]]
        asked = keys[there[found.order]]
        return all(np.array_equal(a, b) for a, b in zip(halves(stored), halves(asked), strict=True))

    def _discard_index(self) -> None:
        """Delete the index; what is open of it stays readable. Where it cannot be deleted, distrust it."""
        if self._index is not None and isinstance(self._index.finder, StoreIndex):
            path = self._index.finder.path
            with suppress(OSError):
                path.unlink(missing_ok=True)
            if self._index_place is not None:
                self._index_place[1].forget([path.name])
        self._index = None

    def _opened_index(self) -> ReadingIndex:
        if self._index is None and self._index_place is not None and self._shards:
            with suppress(StorageError):
                self._index = self._open_index(*self._index_place)
        if self._index is None and self._index_place is not None and self._shards:
            # Beside shards that cannot be written to. The file stays readable once it is deleted.
            with suppress(StorageError), TemporaryDirectory(prefix="embedcache-index-") as scratch:
                self._index = self._open_index(Path(scratch), FileNotes())
        if self._index is None:
            order = self._reading_order()
            keys = [np.empty(0, dtype=KEY_DTYPE), *(self._shards[number].keys for number in order)]
            self._index = ReadingIndex.of(KeyIndex(np.concatenate(keys)), order, self._starts)
        return self._index

    def _open_index(self, folder: Path, notes: FileNotes) -> ReadingIndex:
        order = self._reading_order()
        names = [self._shards[number].name for number in order]
        keys = [self._shards[number].keys for number in order]
        return ReadingIndex.of(open_index(folder, names, keys, notes), order, self._starts)

    def _reading_order(self) -> list[int]:
        """Return the numbers of the shards in the order in which a key is looked for."""
        ranks = [reading_rank(shard.header.codec, shard.name) for shard in self._shards]
        return sorted(range(len(ranks)), key=ranks.__getitem__)

    def _append(self, shard: Shard) -> None:
        self._shards.append(shard)
        self._names.add(shard.name)
        self._starts = np.append(self._starts, self._starts[-1] + len(shard))
        self._index = None

    def _open_all(self) -> list[Shard]:
        names = self.container.names()
        try:
            self._refuse_liars(names)
            return [self._open(name) for name in names]
        except (CorruptCacheError, FileNotFoundError):
            if self.container.names() == names:
                raise
        # Another process has merged shards since they were listed.
        return self._open_all()

    def _refuse_liars(self, names: Sequence[str]) -> None:
        for name in self.container.find_liars(names):
            why = "its bytes are not those its name is the sha256 of"
            raise damaged_shard(self.container.where(name), why)

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
