"""Store: the vectors of one contract, in shards, in one of several containers.

The set of shards is the truth. The index and the note of checked files are derived from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, overload

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
from embedcache.fsio import json_digest
from embedcache.keys import KEY_DTYPE, KeyArray
from embedcache.store.base import Positions, ShardContainer, VectorBatch
from embedcache.store.index import ShardRow, StoreIndex, reading_rank
from embedcache.store.shard import Shard, damaged_shard, open_shard, stored_shard

if TYPE_CHECKING:
    import pyarrow as pa


_MOST_OPEN = 12_288
"""Shards that a store keeps open, then it closes them all. Five stores fit into the 65,530 maps of Linux."""


class ShardStore:
    """Vectors of one contract, addressed by key. Rows are only added, a shard at a time.

    Shards are opened when a row of them is needed, and their digests are taken then, once a machine. Shards
    that no index covers are opened at once. Positions count through the shards in the order of
    ``reading_rank``, then through those added later; a key in several rows is read at its first position.

    Args:
        container: container of the shards.
        contract: the contract every shard must carry.
        codec: codec of new vectors; default: that of the shards (the finest of several), else ``float16``.
        codebooks: folder of the codebooks; needed for the codec ``pq`` only.
        index: the derived index; default: in temporary files.

    Attributes:
        contract: the contract of every vector in the store.
        codec_name: codec of new vectors.

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
        index: StoreIndex | None = None,
    ) -> None:
        self.container = container
        self.contract = contract
        self._codebooks = codebooks
        self._index = index or StoreIndex()
        self._codecs: dict[tuple[str, str | None], Codec] = {}
        self._table: dict[str, ShardRow] = {}
        self._starts: dict[str, int] = {}
        self._names: list[str] = []
        self._first_rows = np.empty(0, np.int64)
        self._rows = 0
        self._opened: dict[str, Shard] = {}
        self._distinct: int | None = None
        names = container.names()
        self._append(names, self._index.open(names))
        found = {codec for _, codec, _ in self._table.values()}
        if codec is not None and found - {check_codec_name(codec)}:
            is_coarser = min(map(CODEC_NAMES.index, found)) < CODEC_NAMES.index(codec)
            other = "convert it with 'embedcache copy --codec'" if is_coarser else "build into another cache"
            raise InputError(
                f"the cache stores these vectors as {', '.join(sorted(found))}, not as {codec}: leave "
                f"codec out, or {other}"
            )
        self.codec_name = codec or min(found, key=CODEC_NAMES.index, default=DEFAULT_CODEC)

    def _append(self, names: Sequence[str], known: Mapping[str, ShardRow] = MappingProxyType({})) -> None:
        """Count in shards; those that the index does not know are opened."""
        found = [known[name] for name in names if name in known]
        found += [shard.row for shard in self._open([name for name in names if name not in known])]
        for row in sorted(found, key=reading_rank):
            self._table[row[0]], self._starts[row[0]] = row, self._rows
            self._names.append(row[0])
            self._rows += row[2]
        added = [self._starts[name] for name in self._names[len(self._first_rows) :]]
        self._first_rows = np.append(self._first_rows, np.array(added, np.int64))
        self._distinct = None

    def _open(self, names: Iterable[str]) -> Iterator[Shard]:
        """Yield shards, opened if they are not; their digests are taken first where they are not known."""
        names = list(names)
        fresh = [name for name in names if name not in self._opened]
        for name in self.container.find_corrupt(fresh):
            raise damaged_shard(self.container.where(name), "it is gone, a link, or has another digest")
        for name in names:
            shard = self._opened.get(name)
            if shard is None:
                shard = self._open_one(name)
                if len(self._opened) >= _MOST_OPEN:
                    self._opened = {}
                self._opened[name] = shard
            yield shard

    def _open_one(self, name: str, data: pa.Buffer | None = None) -> Shard:
        data = self.container.open(name) if data is None else data
        shard = open_shard(data, name, self.container.where(name), self._find_codec)
        if shard.header.contract != self.contract:
            differences = self.contract.differences(shard.header.contract)
            raise ContractMismatchError(
                f"shard {shard.where} belongs to another teacher ({describe_differences(differences)}): "
                "it was copied into the wrong folder; move it away, or run 'embedcache repair'",
                differences,
            )
        if self._table.get(name, shard.row) != shard.row:
            self._refuse_index()
        return shard

    def _refuse_index(self) -> None:
        self._index.discard()
        raise CorruptCacheError("the derived index was damaged, and is deleted: run the command again")

    @property
    def shards(self) -> Sequence[Shard]:
        """All shards, in the order that positions count in; each is opened when it is asked for."""
        return _Shards(self)

    @property
    def shard_names(self) -> Sequence[str]:
        """Names of all shards, in the order that positions count in; none is opened."""
        return self._names

    def shard(self, name: str) -> Shard:
        """Return a shard by its name; errors as ``gather``."""
        return next(self._open([name]))

    @property
    def state(self) -> str:
        """The sha256 of the contract and the names of the shards; none is opened."""
        return json_digest([self.contract.id, *sorted(self._table)])

    @property
    def kind(self) -> str:
        """Container of the shards: ``arrow``, ``lmdb`` or ``memory``."""
        return self.container.kind

    @property
    def bytes_on_disk(self) -> int:
        """Total size of the shards."""
        return sum(map(self.container.size, self._table))

    @property
    def is_current(self) -> bool:
        """True if the shards are still those in the container."""
        return self._table.keys() == set(self.container.names())

    @property
    def dtype(self) -> np.dtype[np.floating]:
        """The dtype ``gather`` returns: float16 where everything is stored so, else float32."""
        is_half = {codec for _, codec, _ in self._table.values()} == {"float16"}
        return np.dtype(np.float16 if is_half else np.float32)

    @property
    def index_files(self) -> list[Path]:
        """The index files in use; others in their folder are garbage."""
        return self._index.files

    def __len__(self) -> int:
        """Return the number of distinct keys."""
        if self._distinct is None:
            self._distinct = self._indexed().count_distinct()
        return self._distinct

    def own_rows(self) -> Iterator[tuple[Shard, NDArray[np.bool_]]]:
        """Yield each shard, in the order that positions count in, and a mask of its visible rows.

        If a key has several rows, only the row that ``locate`` returns is visible. The mask is bool, of shape
        (n,).
        """
        has_repeats = len(self) != self._rows
        for shard in self.shards:
            own = np.ones(len(shard), np.bool_)
            if has_repeats:
                start = self._starts[shard.name]
                own = self.locate(shard.keys) == np.arange(start, start + len(shard))
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
            self.put_stored(codec, stored, batch, measure(codec, batch.vectors, stored))

    def as_stored(self, vectors: Vectors) -> Vectors:
        """Return vectors as they come back once they are stored, float32 of shape (n, d).

        Raises:
            InputError: if a value does not fit the codec.
        """
        codec = self._codec_for(vectors)
        return np.asarray(codec.decode(codec.encode(vectors)), np.float32)

    def put_stored(
        self, codec: Codec, stored: Stored, rows: VectorBatch | Shard, error: Mapping[str, float]
    ) -> str:
        """Store encoded rows as one shard and return its name; ``rows`` gives all but their vectors.

        Args:
            codec: the codec of ``stored``.
            stored: the vectors as the codec stores them.
            rows: keys, tokens, truncated and provenance.
            error: loss of the codec, for the header.
        """
        name, data = stored_shard(self.contract, codec, stored, rows, error)
        self.put_raw(name, data)
        return name

    def put_raw(self, name: str, data: pa.Buffer) -> None:
        """Store the bytes of a shard of this contract under their name.

        Raises:
            ContractMismatchError, CorruptCacheError: if they are not.
            StorageError: if the store cannot be written.
        """
        if name not in self._table:
            self._open_one(name, data)
            self.container.add(name, data)
            self._append([name])

    def open_new(self) -> int:
        """Open the shards that others have added since; return how many. Positions keep their meaning.

        Raises:
            ContractMismatchError, CorruptCacheError: as when the store is opened.
        """
        fresh = sorted(set(self.container.names()) - self._table.keys())
        self._append(fresh)
        return len(fresh)

    def finish(self) -> None:
        """Note that a writer is done: the index for the next reader, and the digests that were taken.

        Where derived files cannot be written the next reader does the work.
        """
        self.container.finish()
        if self._index.folder:
            self._indexed()

    def locate(self, keys: KeyArray) -> Positions:
        """Return the position of each key, -1 where it is missing.

        Raises:
            CorruptCacheError: if the index was damaged, or a shard is.
        """
        found = self._indexed().locate(keys, self._starts)
        is_there = found >= 0
        if self._index.files and self.keys_at(found[is_there]).tobytes() != keys[is_there].tobytes():
            self._refuse_index()
        return found

    def gather(self, positions: Positions) -> NDArray[np.floating]:
        """Return the vectors at ``positions`` in ``dtype``, shape (n, d), in the order asked.

        Raises:
            IndexError: if a position is -1 or past the end.
            CorruptCacheError: if a shard is damaged or gone.
        """
        vectors = np.empty((len(positions), self.contract.dimension), self.dtype)
        order = [np.empty(0, np.intp)]
        done = 0
        for shard, places, rows in self._runs(positions):
            shard.codec.decode_into(shard.stored, rows, vectors[done : done + len(rows)])
            order.append(places)
            done += len(rows)
        if len(order) <= 2:  # rows of one shard are in the order asked
            return vectors
        # One assignment is much faster than one a shard.
        in_order = np.empty_like(vectors)
        in_order[np.concatenate(order)] = vectors
        return in_order

    def vectors(self, positions: Positions) -> Vectors:
        """Return the vectors at ``positions`` as float32, shape (n, d)."""
        return self.gather(positions).astype(np.float32, copy=False)

    def shards_at(self, positions: Positions) -> Positions:
        """Return the number, in ``shards``, of the shard of each position; shape (n,), none of them -1."""
        return np.searchsorted(self._first_rows, positions, side="right") - 1

    def keys_at(self, positions: Positions) -> KeyArray:
        """Return the keys of the rows at ``positions``, dtype ``V16``, shape (n,)."""
        keys = np.empty(len(positions), KEY_DTYPE)
        for shard, places, rows in self._runs(positions):
            keys[places] = shard.keys[rows]
        return keys

    def seen(self, positions: Positions) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Return ``tokens`` and ``truncated`` of the rows at ``positions``, each of shape (n,)."""
        tokens, truncated = np.empty(len(positions), np.int32), np.empty(len(positions), np.bool_)
        for shard, places, rows in self._runs(positions):
            tokens[places], truncated[places] = shard.tokens[rows], shard.truncated[rows]
        return tokens, truncated

    def _runs(self, positions: Positions) -> Iterator[tuple[Shard, NDArray[np.intp], Positions]]:
        """Yield for each shard the places in ``positions`` that it holds, and the rows in it."""
        if not len(positions):
            return
        if positions.min() < 0 or positions.max() >= self._rows:
            raise IndexError("a position outside the store; -1 stands for a missing key and holds no vector")
        numbers = self.shards_at(positions)
        # numpy sorts small numbers by their digits, many times faster.
        is_small = len(self._names) <= 1 << 16
        order = np.argsort(numbers.astype(np.uint16) if is_small else numbers, kind="stable")
        numbers = numbers[order]
        edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        shards = self._open([self._names[number] for number in numbers[edges[:-1]].tolist()])
        for shard, (begin, end) in zip(shards, pairwise(edges), strict=True):
            yield shard, order[begin:end], positions[order[begin:end]] - self._starts[shard.name]

    def _indexed(self) -> StoreIndex:
        """Return the index, after indexing shards that it does not cover."""
        self._index.cover(self._table, lambda names: (shard.keys for shard in self._open(names)))
        return self._index

    def _find_codec(self, name: str, codebook: str | None) -> Codec:
        if (name, codebook) not in self._codecs:
            if codebook is None:
                self._codecs[name, codebook] = get_codec(name)
            else:
                self._codecs[name, codebook] = pq.load(self._codebook_folder(), codebook)
        return self._codecs[name, codebook]

    def _codec_for(self, vectors: Vectors) -> Codec:
        """Return the codec of new rows; for ``pq`` the codebook in use, or one trained on ``vectors``."""
        if self.codec_name != pq.NAME:
            return get_codec(self.codec_name)
        for name, codec_name, _ in self._table.values():
            if codec_name == pq.NAME:
                return self.shard(name).codec
        codec = pq.train(vectors)
        pq.save(self._codebook_folder(), codec)
        return codec

    def _codebook_folder(self) -> Path:
        if self._codebooks is None:
            raise InputError("codec pq needs a folder for its codebooks, and this store has none")
        return self._codebooks


class _Shards(Sequence[Shard]):
    """Shards of a store; iterating checks the digests of all before the first is opened."""

    def __init__(self, store: ShardStore) -> None:
        self._store = store

    def __len__(self) -> int:
        return len(self._store.shard_names)

    def __iter__(self) -> Iterator[Shard]:
        return self._store._open(self._store.shard_names)

    @overload
    def __getitem__(self, number: int) -> Shard: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Shard]: ...
    def __getitem__(self, number: int | slice) -> Shard | Sequence[Shard]:
        if isinstance(number, slice):
            return list(self._store._open(self._store.shard_names[number]))
        return self._store.shard(self._store.shard_names[number])
