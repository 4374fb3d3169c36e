"""Compact: write the rows of small shards together into full ones, then delete the small ones.

Killed in between, rows stand in two shards, which is harmless; run again, it goes on. Vectors are carried
over as they are stored; shards of different codecs or provenance are never mixed, and no row goes because its
key stands in a coarser codec, too. Memory is a byte a row and one full shard.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embedcache.cache import Cache
from embedcache.codecs import CODEC_NAMES, Stored
from embedcache.contract import Contract
from embedcache.errors import InputError
from embedcache.fsio import canonical_json
from embedcache.key_index import first_occurrences
from embedcache.store import Shard, ShardStore, VectorBatch
from embedcache.store.digests import FileNotes
from embedcache.store.index import open_index

DEFAULT_SHARD_ROWS = 16384

OnRows = Callable[[str, int, int], None]
"""Called with what is merged, how many of its rows were written, and how many there are."""


@dataclass(frozen=True)
class Compacted:
    """What compacting a teacher's store did.

    Attributes:
        contract: the teacher's contract.
        shards_before: shards at the beginning.
        shards_after: shards now.
        duplicates: rows of small shards dropped because their key stands in another shard, as fine or finer.
        bytes_before: size of the shards at the beginning.
        bytes_after: size now.
    """

    contract: Contract
    shards_before: int
    shards_after: int
    duplicates: int
    bytes_before: int
    bytes_after: int


def compact(
    cache: Cache,
    teacher: str | None = None,
    *,
    shard_rows: int = DEFAULT_SHARD_ROWS,
    on_rows: OnRows | None = None,
) -> list[Compacted]:
    """Merge the small shards of a teacher, or of all, into shards of ``shard_rows`` rows.

    Args:
        cache: the cache.
        teacher: merge the shards of this one only; default: all.
        shard_rows: rows of a full shard; shards of fewer are small.
        on_rows: called as rows are written.

    Raises:
        InputError: if there is no such teacher, or ``shard_rows`` is below 1.
        StorageError: if the cache cannot be written; nothing is lost then.
    """
    if shard_rows < 1:
        raise InputError(f"--shard-rows {shard_rows}: expected at least 1")
    chosen = cache.teachers() if teacher is None else [cache.teacher(teacher)]
    contracts = list(dict.fromkeys(one.contract for one in chosen))
    return [_compact(cache.store(contract), shard_rows, on_rows) for contract in contracts]


def _compact(store: ShardStore, shard_rows: int, on_rows: OnRows | None) -> Compacted:
    before, bytes_before = len(store.shards), store.bytes_on_disk
    # The finest first: of a key in several, that one stays.
    small = sorted((shard for shard in store.shards if len(shard) < shard_rows), key=_coarseness)
    full = [shard for shard in store.shards if len(shard) >= shard_rows]
    keep = _rows_to_keep(small, full)
    duplicates = sum(len(shard) - int(rows.sum()) for shard, rows in zip(small, keep, strict=True))
    written, to_write = 0, sum(int(rows.sum()) for rows in keep)
    new: set[str] = set()
    for group in _alike(small):
        # One small shard that has nothing to drop is as compact as can be.
        if len(group) == 1 and keep[group[0]].all():
            new.add(small[group[0]].name)
            to_write -= len(small[group[0]])
            continue
        shards, rows = [small[i] for i in group], [keep[i] for i in group]
        for batch in _batches(shards, rows, shard_rows):
            new.add(_put(store, shards, batch))
            written += sum(len(rows) for _, rows in batch)
            if on_rows is not None:
                on_rows(f"merge shards of {store.contract.id[:12]}", written, to_write)
    for shard in small:
        if shard.name not in new:
            store.container.remove(shard.name)
    store.container.finish()
    left = [*full, *(shard for shard in store.shards if shard.name in new)]
    return Compacted(
        store.contract,
        before,
        len(left),
        duplicates,
        bytes_before,
        sum(shard.bytes for shard in left),
    )


def _rows_to_keep(small: Sequence[Shard], full: Sequence[Shard]) -> list[NDArray[np.bool_]]:
    """Mark the rows of the small shards whose key no small one before has, nor a full one as fine."""
    if not small:
        return []
    first = first_occurrences([shard.keys for shard in small])
    keep = np.split(first, np.cumsum([len(shard) for shard in small])[:-1])
    for coarseness in sorted({_coarseness(shard) for shard in small}):
        as_fine = [shard for shard in full if _coarseness(shard) <= coarseness]
        if as_fine:
            _drop_rows_of(
                as_fine,
                [
                    (shard, rows)
                    for shard, rows in zip(small, keep, strict=True)
                    if _coarseness(shard) == coarseness
                ],
            )
    return keep


def _drop_rows_of(full: Sequence[Shard], kept: Sequence[tuple[Shard, NDArray[np.bool_]]]) -> None:
    """Unmark the rows of shards whose key stands in one of ``full``."""
    with tempfile.TemporaryDirectory(prefix="embedcache-compact-") as folder:
        index = open_index(Path(folder), [one.name for one in full], [one.keys for one in full], FileNotes())
        for shard, rows in kept:
            rows &= index.locate(shard.keys) < 0


def _coarseness(shard: Shard) -> int:
    return CODEC_NAMES.index(shard.header.codec)


def _alike(shards: Sequence[Shard]) -> list[list[int]]:
    """Return the numbers of shards that may be merged with each other, in groups."""
    groups: dict[tuple[str, str | None, bytes], list[int]] = {}
    for number, shard in enumerate(shards):
        header = shard.header
        kind = (header.codec, header.codebook, canonical_json(dict(header.provenance)))
        groups.setdefault(kind, []).append(number)
    return list(groups.values())


def _batches(
    shards: Sequence[Shard], keep: Sequence[NDArray[np.bool_]], shard_rows: int
) -> Iterator[list[tuple[Shard, NDArray[np.int64]]]]:
    """Cut the rows to keep into batches of ``shard_rows``: which rows of which shards."""
    batch: list[tuple[Shard, NDArray[np.int64]]] = []
    room = shard_rows
    for shard, marks in zip(shards, keep, strict=True):
        rows = np.flatnonzero(marks)
        while len(rows):
            batch.append((shard, rows[:room]))
            room -= len(batch[-1][1])
            rows = rows[len(batch[-1][1]) :]
            if not room:
                yield batch
                batch, room = [], shard_rows
    if batch:
        yield batch


def _put(store: ShardStore, group: Sequence[Shard], batch: Sequence[tuple[Shard, NDArray[np.int64]]]) -> str:
    """Store a batch as one shard and return its name."""
    parts = [shard.stored.take(rows) for shard, rows in batch]
    scales = [part.scale for part in parts if part.scale is not None]
    rows = VectorBatch(
        keys=np.concatenate([shard.keys[rows] for shard, rows in batch]),
        vectors=np.empty((0, store.contract.dimension), dtype=np.float32),
        tokens=np.concatenate([shard.tokens[rows] for shard, rows in batch]),
        truncated=np.concatenate([shard.truncated[rows] for shard, rows in batch]),
        provenance=group[0].header.provenance,
    )
    stored = Stored(
        np.concatenate([part.vector for part in parts]), np.concatenate(scales) if scales else None
    )
    errors = [shard.header.error for shard, _ in batch]
    # The vectors as they were are not here any more: the bounds of the parts bound the whole.
    bound = {name: min(error[name] for error in errors) for name in errors[0]}
    return store.put_stored(batch[0][0].codec, stored, rows, bound)
