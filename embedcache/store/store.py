"""Store: the vectors of one contract, in shards, in one of several containers.

The set of shards is the truth. The index and the note of checked files are derived from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    measure,
    pq,
)
from embedcache.contract import Contract, describe_differences
from embedcache.errors import ContractMismatchError, CorruptCacheError, InputError
from embedcache.keys import KEY_DTYPE, KeyArray, halves
from embedcache.store.base import Positions, ShardContainer, VectorBatch
from embedcache.store.checked import CheckedFiles
from embedcache.store.index import IndexFolder, ShardRow, StoreIndex
from embedcache.store.shard import Shard, damaged_shard, open_shard, stored_shard

if TYPE_CHECKING:
    import pyarrow as pa

_LOCATE_ROWS = 65536


class ShardStore:
    """Vectors of one contract.

    Shards are opened when a row of them is needed, and their digests are taken then, once a machine. Shards
    that no index covers are opened at once.

    Args:
        container: where the shards lie.
        contract: the contract every shard must carry.
        codec: codec of new vectors; default: that of the shards (the finest of several), else ``float16``.
        codebooks: folder of the codebooks; needed for the codec ``pq`` only.
        index: folder of the derived index, and the note of checked files; default: the index is in memory.

    Raises:
        ContractMismatchError: if a shard has another contract; nothing of it is used.
        InputError: if ``codec`` is not that of the shards.
        CorruptCacheError: if a shard is damaged.
    """

    def __init__(
        self,
        container: ShardContainer,
        contract: Contract,
        codec: str | None = None,
        *,
        codebooks: Path | None = None,
        index: tuple[Path, CheckedFiles] | None = None,
    ) -> None:
        self.container = container
        self._contract = contract
        self._codebooks = codebooks
        self._index = StoreIndex(IndexFolder(*index) if index else None)
        self._codecs: dict[tuple[str, str | None], Codec] = {}
        self._numbers: dict[str, int] = {}
        self._table: list[ShardRow] = []
        self._shards: list[Shard | None] = []
        self._starts = np.zeros(1, np.int64)
        self._distinct: int | None = None
        self._open_all()
        found = {codec for _, codec, _ in self._table}
        if codec is not None and found - {check_codec_name(codec)}:
            raise InputError(
                f"the cache stores these vectors as {', '.join(sorted(found))}, not as {codec}: leave "
                "--codec out, or make a cache of the other codec with 'embedcache copy --codec'"
            )
        self._codec_name = codec or min(found, key=CODEC_NAMES.index, default=DEFAULT_CODEC)

    def _open_all(self) -> None:
        while True:
            names = self.container.names()
            known = self._index.open(names)
            try:
                opened = self._open(name for name in names if name not in known)
                break
            except (CorruptCacheError, FileNotFoundError):
                if self.container.names() == names:
                    raise
                # Another process has replaced shards since they were listed.
        for name in names:
            shard = opened.get(name)
            self._shards.append(shard)
            self._table.append(known[name] if shard is None else (name, shard.header.codec, len(shard)))
        self._numbers = {name: number for number, name in enumerate(names)}
        self._starts = np.cumsum([0, *(rows for _, _, rows in self._table)], dtype=np.int64)

    def _open(self, names: Iterable[str]) -> dict[str, Shard]:
        """Open shards, whose digests are taken where they are not known."""
        names = list(names)
        for name in self.container.find_corrupt(names):
            raise damaged_shard(self.container.where(name), "its bytes do not have the digest in its name")
        opened = {}
        for name in names:
            where = self.container.where(name)
            shard = opened[name] = open_shard(self.container.open(name), name, where, self._find_codec)
            if shard.header.contract != self._contract:
                differences = self._contract.differences(shard.header.contract)
                raise ContractMismatchError(
                    f"shard {where} belongs to another teacher ({describe_differences(differences)}): "
                    "it was copied into the wrong folder; move it away, or run 'embedcache repair'",
                    differences,
                )
        return opened

    def _opened(self, numbers: Iterable[int]) -> list[Shard]:
        """Return the shards of some numbers, opened if they are not."""
        numbers = list(numbers)
        fresh = self._open(self._table[number][0] for number in numbers if self._shards[number] is None)
        for name, opened in fresh.items():
            number = self._numbers[name]
            if self._table[number] != (name, opened.header.codec, len(opened)):
                self._index.discard()
                raise CorruptCacheError(f"the index does not fit shard {opened.where}: run the command again")
            self._shards[number] = opened
        return [shard for number in numbers if (shard := self._shards[number]) is not None]

    @property
    def contract(self) -> Contract:
        """The contract of every vector in the store."""
        return self._contract

    @property
    def codec_name(self) -> str:
        """Codec of new vectors."""
        return self._codec_name

    @property
    def kind(self) -> str:
        """Container of the shards: ``arrow``, ``lmdb`` or ``memory``."""
        return self.container.kind

    @property
    def shards(self) -> tuple[Shard, ...]:
        """All shards, opened: those found at first in the order of their names, then those added."""
        return tuple(self._opened(range(len(self._shards))))

    @property
    def bytes_on_disk(self) -> int:
        """Total size of the shards."""
        return sum(self.container.open(name).size for name in self._numbers)

    @property
    def is_current(self) -> bool:
        """Whether the shards are still those in the container; others may have come since it was opened."""
        return self._numbers.keys() == set(self.container.names())

    @property
    def dtype(self) -> np.dtype[np.floating]:
        """The dtype :meth:`gather` returns: float16 where everything is stored so, else float32."""
        return np.dtype(np.float16 if {codec for _, codec, _ in self._table} == {"float16"} else np.float32)

    @property
    def index_files(self) -> list[Path]:
        """The index files in use; others in their folder are garbage."""
        return self._index.files

    def __len__(self) -> int:
        """Return the number of distinct keys."""
        if self._distinct is None:
            self._distinct = self._indexed().count_distinct()
        return self._distinct

    @property
    def repeats_keys(self) -> bool:
        """Whether a key stands in several rows, of which the store reads one."""
        return len(self) != int(self._starts[-1])

    def own_rows(self) -> Iterator[tuple[Shard, NDArray[np.bool_]]]:
        """Yield each shard, in the order that positions count in, and a mask of its rows that are read.

        Of a key in several rows that is the one :meth:`locate` gives. The mask is bool, of shape (n,).
        """
        repeats = self.repeats_keys
        for number, start in enumerate(self._starts[:-1].tolist()):
            (shard,) = self._opened([number])
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
        if len(batch.keys):
            codec = self._codec_for(batch.vectors)
            stored = codec.encode(batch.vectors)
            self.put_stored(codec, stored, batch, measure(codec, batch.vectors, stored).to_json())

    def put_stored(
        self, codec: Codec, stored: Stored, rows: VectorBatch | Shard, error: Mapping[str, float]
    ) -> str:
        """Store encoded rows as one shard and return its name; ``rows`` gives all but their vectors.

        Args:
            codec: the codec of ``stored``.
            stored: the vectors as the codec stores them.
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
        self._append([name] if name not in self._numbers else [])

    def open_new(self) -> int:
        """Open the shards that others have added since; return how many. Positions keep their meaning.

        Raises:
            ContractMismatchError, CorruptCacheError: as when the store is opened.
        """
        fresh = [name for name in self.container.names() if name not in self._numbers]
        self._append(fresh)
        return len(fresh)

    def _append(self, names: Sequence[str]) -> None:
        for name, shard in self._open(names).items():
            self._numbers[name] = len(self._shards)
            self._shards.append(shard)
            self._table.append((name, shard.header.codec, len(shard)))
            self._starts = np.append(self._starts, self._starts[-1] + len(shard))
            self._distinct = None

    def finish(self) -> None:
        """Note that a writer is done: the index for the next reader, and the digests that were taken.

        Where derived files cannot be written the next reader does the work.
        """
        self.container.finish()
        if self._index.folder:
            self._indexed()

    def locate(self, keys: KeyArray) -> Positions:
        """Return the position of each key, -1 where it is missing."""
        found = self._indexed().locate(keys, self._starts)
        if not self._is_right(keys, found):
            self._index.discard()
            found = self._indexed().locate(keys, self._starts)
            if not self._is_right(keys, found):
                raise CorruptCacheError("shards change while they are read: run 'embedcache verify'")
        return found

    def gather(self, positions: Positions) -> NDArray[np.floating]:
        """Return the vectors at ``positions`` in :attr:`dtype`, shape (n, d), in the order asked.

        Raises:
            IndexError: if a position is -1 or past the end.
            CorruptCacheError: if a shard is damaged or gone.
        """
        order, runs = self._runs(positions)
        vectors = np.empty((len(positions), self._contract.dimension), dtype=self.dtype)
        for shard, run, rows in runs:
            shard.codec.decode_into(shard.stored, rows, vectors[run])
        return _in_order(vectors, order)

    def vectors(self, positions: Positions) -> Vectors:
        """Return the vectors at ``positions`` as float32, shape (n, d)."""
        return self.gather(positions).astype(np.float32, copy=False)

    def keys_at(self, positions: Positions) -> KeyArray:
        """Return the keys of the rows at ``positions``, dtype ``V16``, shape (n,)."""
        order, runs = self._runs(positions)
        keys = np.empty(len(positions), dtype=KEY_DTYPE)
        for shard, run, rows in runs:
            keys[run] = shard.keys[rows]
        return _in_order(keys, order)

    def seen(self, positions: Positions) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Return ``tokens`` and ``truncated`` of the rows at ``positions``, each of shape (n,)."""
        order, runs = self._runs(positions)
        tokens, truncated = np.empty(len(positions), np.int32), np.empty(len(positions), np.bool_)
        for shard, run, rows in runs:
            tokens[run], truncated[run] = shard.tokens[rows], shard.truncated[rows]
        return _in_order(tokens, order), _in_order(truncated, order)

    def _runs(
        self, positions: Positions
    ) -> tuple[Positions | None, list[tuple[Shard, slice, NDArray[np.int64]]]]:
        """Sort positions by shard.

        Returns:
            the order that sorts them, None where they lie in one shard; and for each shard which of the
            sorted positions are its own, and their rows in it.
        """
        if not len(positions):
            return None, []
        if positions.min() < 0 or positions.max() >= self._starts[-1]:
            raise IndexError("a position outside the store; -1 stands for a missing key and holds no vector")
        numbers = np.searchsorted(self._starts, positions, side="right") - 1
        # numpy sorts small numbers by their digits, many times faster.
        small = numbers.astype(np.uint16) if len(self._shards) <= 1 << 16 else numbers
        order = np.argsort(small, kind="stable")
        numbers = numbers[order]
        rows = positions[order] - self._starts[numbers]
        edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        shards = self._opened(numbers[edges[:-1]].tolist())
        runs = [slice(*ends) for ends in pairwise(edges)]
        return (
            None if len(runs) == 1 else order,
            [(shard, run, rows[run]) for shard, run in zip(shards, runs, strict=True)],
        )

    def _is_right(self, keys: KeyArray, positions: Positions) -> bool:
        """Return whether the shards have ``keys`` at the ``positions`` found."""
        there = np.flatnonzero(positions >= 0)
        order, runs = self._runs(positions[there])
        stored = np.empty(len(there), dtype=KEY_DTYPE)
        for shard, run, rows in runs:
            stored[run] = shard.keys[rows]
        asked = keys[there] if order is None else keys[there[order]]
        return all(np.array_equal(*pair) for pair in zip(halves(stored), halves(asked), strict=True))

    def _indexed(self) -> StoreIndex:
        """Return the index, after indexing shards that it does not cover."""
        self._index.cover(self._table, lambda numbers: [shard.keys for shard in self._opened(numbers)])
        return self._index

    def _find_codec(self, name: str, codebook: str | None) -> Codec:
        if (name, codebook) not in self._codecs:
            if codebook is None:
                self._codecs[name, codebook] = get_codec(name)
            elif self._codebooks is None:
                raise InputError(f"codec {name} needs a folder of codebooks, and this store has none")
            else:
                self._codecs[name, codebook] = pq.load(self._codebooks, codebook)
        return self._codecs[name, codebook]

    def _codec_for(self, vectors: Vectors) -> Codec:
        """Return the codec of new rows; for ``pq`` the codebook in use, or one trained on ``vectors``."""
        if self._codec_name != pq.NAME:
            return get_codec(self._codec_name)
        trained = [number for number, (_, codec, _) in enumerate(self._table) if codec == pq.NAME]
        if trained:
            return self._opened(trained[:1])[0].codec
        if self._codebooks is None:
            raise InputError("codec pq needs a folder for its codebook, and this store has none")
        codec = pq.train(vectors)
        pq.save(self._codebooks, codec)
        return codec


def _in_order(rows: NDArray[Any], order: Positions | None) -> NDArray[Any]:
    """Return rows that were sorted by ``order`` as they were before."""
    if order is None:
        return rows
    unsorted = np.empty_like(rows)
    unsorted[order] = rows
    return unsorted
