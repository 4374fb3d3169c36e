"""Reuse across ``max_length``: a text that was not truncated has the same vector at any length it fits.

Contracts that differ in ``max_length`` alone are *related*. A row of a related store is reused where that
teacher saw the whole text and the text fits the new length. Reused rows keep the provenance of the run that
computed them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
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
    from embedcache.store import Shard, ShardStore

REUSED_FROM = "carried_from_max_length"
"""Field of a shard's provenance: the ``max_length`` its rows were computed at."""


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
    related: Sequence[ShardStore], keys: KeyArray, store: ShardStore
) -> tuple[NDArray[np.int64], Positions]:
    """Find the first related store with a usable row for each key.

    Args:
        related: see ``related_stores``.
        keys: shape (n,).
        store: store that takes the rows.

    Returns:
        number of the related store, and the row's position in it, each of shape (n,) and -1 without a row.
    """
    numbers, positions = np.full((2, len(keys)), -1, dtype=np.int64)
    for number, other in enumerate(related):
        rows = np.flatnonzero(numbers < 0)
        at = other.locate(keys[rows])
        rows, at = rows[at >= 0], at[at >= 0]
        is_fine = [is_fine_enough(shard.codec.name, store.codec_name) for shard in other.shards]
        usable = _is_whole(other, at, store.contract.max_length)
        usable &= np.array(is_fine, np.bool_)[shard_places(other, at)[0]]
        numbers[rows[usable]], positions[rows[usable]] = number, at[usable]
    return numbers, positions


def _is_whole(store: ShardStore, positions: Positions, max_length: int) -> NDArray[np.bool_]:
    tokens, truncated = store.seen(positions)
    # 0 tokens: the teacher has no tokenizer to count with, so the text may have been truncated.
    return (tokens > 0) & ~truncated & ((tokens <= max_length) if max_length else True)


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
) -> int:
    """Store those of ``keys`` that a related store has a usable row of; return how many.

    A shard holds rows of one store, codec and provenance, in the order of ``keys``. A call that was killed,
    repeated with the keys still missing, writes the same shards.

    Args:
        related: see ``related_stores``.
        store: receives the rows.
        keys: distinct keys that ``store`` lacks, in corpus order, shape (n,).
        shard_rows: rows per shard.
        progress: receives the phase ``reuse``.

    Raises:
        CorruptCacheError: if a related store is damaged.
        StorageError: if the store cannot be written.
    """
    if not related or not len(keys):
        return 0
    progress.phase("reuse", len(keys))
    numbers, positions = find_reusable(related, keys, store)
    for number, other in enumerate(related):
        rows = np.flatnonzero(numbers == number)
        kinds = [canonical_json([one.codec.name, _provenance(one)]) for one in other.shards]
        kind_of_shard = np.unique(kinds, return_inverse=True)[1]
        kind_of_row = kind_of_shard[shard_places(other, positions[rows])[0]]
        for kind in np.unique(kind_of_row):
            alike = rows[kind_of_row == kind]
            for start in range(0, len(alike), shard_rows):
                part = alike[start : start + shard_rows]
                _copy(other, positions[part], store, keys[part])
                progress.advance(len(part))
    return int((numbers >= 0).sum())


def _provenance(shard: Shard) -> Mapping[str, object]:
    """Return the provenance that rows of a shard have once they are reused."""
    return {**shard.header.provenance, REUSED_FROM: shard.header.contract.max_length}


def _copy(source: ShardStore, positions: Positions, target: ShardStore, keys: KeyArray) -> None:
    """Copy rows of one codec and provenance as one shard."""
    numbers = np.unique(shard_places(source, positions)[0]).tolist()
    tokens, truncated = source.seen(positions)
    vectors = source.vectors(positions)
    batch = VectorBatch(keys, vectors, tokens, truncated, _provenance(source.shards[numbers[0]]))
    codec = source.shards[numbers[0]].codec
    if codec.name != target.codec_name:
        target.put(batch)
        return
    # The codec's error was made when the source stored the rows; measured again it would look like none.
    errors = [source.shards[number].header.error for number in numbers]
    error = {name: min(one[name] for one in errors) for name in errors[0]}
    target.put_stored(codec, codec.encode(vectors), batch, error)
