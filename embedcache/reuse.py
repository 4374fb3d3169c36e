"""Reuse across ``max_length``: a text that was not truncated has the same vector at any length it fits.

Contracts that differ in ``max_length`` alone are *related*. A row of a related store is reused where that
teacher saw the whole text and the text fits the new length. Reused rows keep the provenance of the run that
computed them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from embedcache.cache import Cache
from embedcache.fsio import canonical_json
from embedcache.keys import KeyArray
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.store.base import Positions, VectorBatch

if TYPE_CHECKING:
    from embedcache.contract import Contract
    from embedcache.store.store import ShardStore

REUSED_FROM = "carried_from_max_length"
"""Field of a shard's provenance: the ``max_length`` its rows were computed at."""

_CHUNK_ROWS = 65536


@dataclass(frozen=True)
class Reusable:
    """Places of n keys in related stores.

    Attributes:
        stores: int16, shape (n,); number of the related store, -1 where none has a usable row.
        positions: int64, shape (n,); row in that store, else -1.
        coarser: bool, shape (n,); keys that only a coarser codec holds.
    """

    stores: NDArray[np.int16]
    positions: Positions
    coarser: NDArray[np.bool_]


@dataclass(frozen=True)
class Reused:
    """Counts of rows that were reused, and of rows left out because their codec is coarser."""

    rows: int = 0
    coarser: int = 0


def related_stores(cache: Cache, contract: Contract) -> list[ShardStore]:
    """Return the stores of related contracts, the longest ``max_length`` (0: unlimited) first.

    Raises:
        CorruptCacheError: if one of them is damaged.
    """
    related = {
        teacher.contract.max_length: teacher.contract
        for teacher in cache.teachers()
        if teacher.contract != contract
        and replace(teacher.contract, max_length=contract.max_length) == contract
    }
    longest_first = sorted(related, key=lambda length: (length != 0, -length))
    return [cache.store(related[length]) for length in longest_first]


def is_fine_enough(found: str, wanted: str) -> bool:
    """Return whether rows of codec ``found``, stored as ``wanted``, lose no more than encoding again would.

    A codebook belongs to one contract, so nothing is reused as ``pq``.
    """
    return wanted != "pq" and found in ("float32", wanted)


def default_codec(store: ShardStore, related: Sequence[ShardStore]) -> str:
    """Return the codec of new rows where none is given: that of the store, or of rows that can be reused."""
    reusable = [other.codec_name for other in related if is_fine_enough(other.codec_name, other.codec_name)]
    return reusable[0] if reusable and not store.shards else store.codec_name


def find_reusable(
    related: Sequence[ShardStore],
    keys: KeyArray,
    max_length: int,
    codec: str,
    progress: Progress = NO_PROGRESS,
) -> Reusable:
    """Find the first related store with a usable row for each key.

    Args:
        related: see :func:`related_stores`.
        keys: shape (n,).
        max_length: of the contract the rows are for; 0 means unlimited.
        codec: codec the rows will be stored in.
        progress: counts keys.
    """
    stores = np.full(len(keys), -1, dtype=np.int16)
    positions = np.full(len(keys), -1, dtype=np.int64)
    coarser = np.zeros(len(keys), dtype=np.bool_)
    for start in range(0, len(keys), _CHUNK_ROWS):
        chunk = np.arange(start, min(start + _CHUNK_ROWS, len(keys)))
        for number, store in enumerate(related):
            rows = chunk[stores[chunk] < 0]
            at = store.locate(keys[rows])
            usable = _is_usable(store, at, max_length)
            rows, at = rows[usable], at[usable]
            fine = np.array([is_fine_enough(shard.codec.name, codec) for shard in store.shards], np.bool_)
            is_fine = fine[shard_places(store, at)[0]]
            coarser[rows[~is_fine]] = True
            stores[rows[is_fine]], positions[rows[is_fine]] = number, at[is_fine]
        progress.advance(len(chunk))
    return Reusable(stores, positions, coarser & (stores < 0))


def _is_usable(store: ShardStore, positions: Positions, max_length: int) -> NDArray[np.bool_]:
    usable = positions >= 0
    tokens, truncated = store.seen(positions[usable])
    # 0 tokens: the teacher has no tokenizer to count with, so the text may have been truncated.
    usable[usable] = (tokens > 0) & ~truncated & ((tokens <= max_length) if max_length else True)
    return usable


def shard_places(
    store: ShardStore, positions: NDArray[np.integer]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the number of each position's shard in ``store.shards``, and the row in that shard.

    Args:
        store: the store the positions are of.
        positions: shape (n,), none of them -1.
    """
    starts = np.cumsum([0, *map(len, store.shards)], dtype=np.int64)
    numbers = np.searchsorted(starts, positions, side="right") - 1
    return numbers, positions - starts[numbers]


def reuse_rows(
    related: Sequence[ShardStore],
    store: ShardStore,
    keys: KeyArray,
    shard_rows: int,
    progress: Progress = NO_PROGRESS,
) -> Reused:
    """Store those of ``keys`` that a related store has a usable row of.

    A shard holds rows of one store, codec and provenance, in the order of ``keys``. A call that was killed,
    repeated with the keys still missing, writes the same shards.

    Args:
        related: see :func:`related_stores`.
        store: receives the rows.
        keys: distinct keys that ``store`` lacks, in corpus order, shape (n,).
        shard_rows: rows per shard.
        progress: receives the phase ``reuse``.

    Raises:
        CorruptCacheError: if a related store is damaged.
        StorageError: if the store cannot be written.
    """
    if not related or not len(keys):
        return Reused()
    progress.phase("reuse", len(keys))
    found = find_reusable(related, keys, store.contract.max_length, store.codec_name, progress)
    for number, other in enumerate(related):
        rows = np.flatnonzero(found.stores == number)
        shard_of_row = shard_places(other, found.positions[rows])[0]
        groups: dict[bytes, list[int]] = {}
        for shard_number, shard in enumerate(other.shards):
            kind = canonical_json([shard.codec.name, _provenance(other, shard_number)])
            groups.setdefault(kind, []).append(shard_number)
        for shards in groups.values():
            of_group = rows[np.isin(shard_of_row, shards)]
            for start in range(0, len(of_group), shard_rows):
                part = of_group[start : start + shard_rows]
                _copy(other, found.positions[part], store, keys[part])
    return Reused(int((found.stores >= 0).sum()), int(found.coarser.sum()))


def _provenance(store: ShardStore, number: int) -> Mapping[str, object]:
    """Return the provenance that rows of a shard have once they are reused."""
    return {**store.shards[number].header.provenance, REUSED_FROM: store.contract.max_length}


def _copy(source: ShardStore, positions: Positions, target: ShardStore, keys: KeyArray) -> None:
    """Copy rows of one codec and provenance as one shard."""
    numbers = np.unique(shard_places(source, positions)[0]).tolist()
    tokens, truncated = source.seen(positions)
    vectors = source.vectors(positions)
    batch = VectorBatch(keys, vectors, tokens, truncated, _provenance(source, numbers[0]))
    codec = source.shards[numbers[0]].codec
    if codec.name != target.codec_name:
        target.put(batch)
        return
    # The codec's error was made when the source stored the rows; measured again it would look like none.
    errors = [source.shards[number].header.error for number in numbers]
    error = {name: min(one[name] for one in errors) for name in errors[0]}
    target.put_stored(codec, codec.encode(vectors), batch, error)
