"""Copies of shards: files that are taken unchanged, and rows that are written again as full shards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from embedcache.codecs import CODEC_NAMES, Codec, Stored, get_codec, pq
from embedcache.codecs.quality import measure
from embedcache.copying.conflicts import Mask, Rows, Stores, VectorConflict, Wanted, decoded, find_conflicts
from embedcache.copying.options import LAST, CopyOptions
from embedcache.fsio import canonical_json
from embedcache.keys import first_occurrences
from embedcache.progress import Progress
from embedcache.store import Shard, ShardStore, VectorBatch

DEFAULT_SHARD_ROWS = 16384

Piece = tuple[Shard, Rows]
"""Rows of a shard, ascending, that are written again."""


@dataclass(frozen=True)
class ShardPlan:
    """Plan of copying the vectors of one teacher.

    Attributes:
        whole: shards whose files are taken unchanged, and their stores.
        batches: codec and rows of each shard to write.
        rows: distinct texts whose vectors are copied.
        missing: those that the target lacked.
        conflicts: conflicts of vectors.
    """

    whole: Sequence[tuple[Shard, ShardStore]]
    batches: Sequence[tuple[Codec, list[Piece]]]
    rows: int
    missing: int
    conflicts: Sequence[VectorConflict]


@dataclass
class ShardsWritten:
    """Result of copying the vectors of one teacher; shards that the target had are not counted.

    Attributes:
        unchanged: shards copied as they are.
        written: shards written from rows.
        bytes: size of both.
        worst_cosine: lowest cosine between a vector before and after a change of the codec.
    """

    unchanged: int = 0
    written: int = 0
    bytes: int = 0
    worst_cosine: float = 1.0


def plan_shards(
    teacher: str, sources: Stores, target: Stores, wanted: Wanted, options: CopyOptions, progress: Progress
) -> ShardPlan:
    """Decide which shards are copied unchanged and which rows are written again.

    What is written is a function of the sources, so an interrupted copy continues where it stopped. Memory: a
    few bytes a row.

    Args:
        teacher: name in messages.
        sources: caches with vectors of one contract, in their order.
        target: the cache that is written; empty unless it has such vectors.
        wanted: keys to copy.
        options: form of the copy.
        progress: receives the rows compared.

    Raises:
        CorruptCacheError: if a shard is damaged.
        InputError: if there are too few vectors to train ``pq``.
    """
    codec, prefer = options.codec, options.prefer
    order = list(sources)[:: -1 if prefer == LAST else 1]
    ordered = {folder: sources[folder] for folder in order}
    lost, conflicts = find_conflicts(teacher, ordered, target, prefer, wanted, progress)
    there = {shard.name for store in target.values() for shard in store.shards}
    found: dict[str, tuple[Shard, ShardStore, Mask]] = {}
    for store in ordered.values():
        for shard, own in store.own_rows():
            found.setdefault(shard.name, (shard, store, own))
    # Of a key in several shards the row in the finest codec is taken, of the preferred source.
    shards = sorted(found.values(), key=lambda one: CODEC_NAMES.index(one[0].codec.name))
    keep = [wanted(shard.keys) & ~lost.get(shard.name, np.False_) for shard, _, _ in shards]
    # A union keeps rows that are never read, too. What is cut does not: new names might bring them forward.
    is_union = codec is None and options.shard_rows is None and all(mask.all() for mask in keep)
    if not is_union:
        keep = [mask & own for mask, (_, _, own) in zip(keep, shards, strict=True)]
    firsts = first_occurrences([shard.keys[mask] for (shard, _, _), mask in zip(shards, keep, strict=True)])
    whole: list[tuple[Shard, ShardStore]] = []
    again: list[Piece] = []
    total = missing = 0
    for (shard, store, _), mask in zip(shards, keep, strict=True):
        rows, firsts = np.flatnonzero(mask)[firsts[: mask.sum()]], firsts[mask.sum() :]
        absent = np.ones(len(rows), dtype=np.bool_)
        for one in target.values():
            absent = one.locate(shard.keys[rows]) < 0
        total, missing = total + len(rows), missing + int(absent.sum())
        is_same_form = options.shard_rows in (None, len(shard)) and not _is_changed(shard, codec)
        if is_same_form and (is_union or len(rows) == len(shard) or shard.name in there):
            whole.append((shard, store))
        elif len(rows):
            again.append((shard, rows))
    batches = list(_batches(again, codec, options.shard_rows or DEFAULT_SHARD_ROWS))
    return ShardPlan(whole, batches, total, missing, conflicts)


def write_shards(plan: ShardPlan, store: ShardStore, codebooks: Path, progress: Progress) -> ShardsWritten:
    """Write what was planned into a store; shards that are there stay.

    Args:
        plan: the plan.
        store: the store.
        codebooks: its folder of codebooks.
        progress: receives the shards written.

    Raises:
        CorruptCacheError: if a shard is damaged.
        StorageError: if the store cannot be written.
    """
    done, there = ShardsWritten(), set(store.container.names())
    progress.phase("write shards", len(plan.whole) + len(plan.batches), "shards")
    for codec in [*(shard.codec for shard, _ in plan.whole), *(codec for codec, _ in plan.batches)]:
        if isinstance(codec, pq.PQCodec) and not (codebooks / f"{codec.codebook}.npy").exists():
            pq.save(codebooks, codec)
    for shard, source in plan.whole:
        if shard.name not in there:
            store.put_raw(shard.name, source.container.open(shard.name))
            done.unchanged += 1
            done.bytes += shard.bytes
        progress.advance()
    for codec, pieces in plan.batches:
        stored, error = _encoded(codec, pieces)
        if store.put_stored(codec, stored, _rows_of(pieces), error) not in there:
            done.written += 1
            done.bytes += store.shards[-1].bytes
        if codec.name != pieces[0][0].codec.name:
            done.worst_cosine = min(done.worst_cosine, error["worst_cosine"])
        progress.advance()
    store.finish()
    return done


def _is_changed(shard: Shard, codec: str | None) -> bool:
    """Return whether a shard is written in another codec; precision that was lost does not come back."""
    return codec is not None and CODEC_NAMES.index(codec) > CODEC_NAMES.index(shard.codec.name)


def _new_codec(name: str, pieces: Sequence[Piece]) -> Codec:
    """Return the codec to write pieces in; that of ``pq`` is trained on rows spread evenly over them."""
    if name != pq.NAME:
        return get_codec(name)
    step = -(-sum(len(rows) for _, rows in pieces) // pq.MOST_TRAINING_ROWS)
    return pq.train(np.concatenate([decoded(shard, rows[::step]) for shard, rows in pieces]))


def _batches(
    pieces: Sequence[Piece], codec: str | None, shard_rows: int
) -> Iterator[tuple[Codec, list[Piece]]]:
    """Cut rows into full shards, each of rows of one codec and one provenance."""
    changed = [piece for piece in pieces if _is_changed(piece[0], codec)]
    new = _new_codec(codec, changed) if codec is not None and changed else None
    groups: dict[bytes, list[Piece]] = {}
    for shard, rows in pieces:
        header = shard.header
        kind = canonical_json([header.codec, header.codebook, dict(header.provenance)])
        groups.setdefault(kind, []).append((shard, rows))
    for group in groups.values():
        old = group[0][0]
        used = new if new is not None and _is_changed(old, codec) else old.codec
        owners = np.repeat(np.arange(len(group)), [len(rows) for _, rows in group])
        everything = np.concatenate([rows for _, rows in group])
        for start in range(0, len(everything), shard_rows):
            owner, rows = owners[start : start + shard_rows], everything[start : start + shard_rows]
            yield used, [(group[one][0], rows[owner == one]) for one in np.unique(owner).tolist()]


def _encoded(codec: Codec, pieces: Sequence[Piece]) -> tuple[Stored, dict[str, float]]:
    """Return the rows of a shard as they are stored, and the error for its header."""
    if codec.name != pieces[0][0].codec.name:
        vectors = np.concatenate([decoded(shard, rows) for shard, rows in pieces])
        stored = codec.encode(vectors)
        return stored, measure(codec, vectors, stored).to_json()
    parts = [shard.stored.take(rows) for shard, rows in pieces]
    scales = [part.scale for part in parts if part.scale is not None]
    vector = np.concatenate([part.vector for part in parts])
    # The vectors before encoding are gone: the bounds of the parts bound the whole.
    errors = [shard.header.error for shard, _ in pieces]
    error = {name: min(one[name] for one in errors) for name in errors[0]}
    return Stored(vector, np.concatenate(scales) if scales else None), error


def _rows_of(pieces: Sequence[Piece]) -> VectorBatch:
    """Return all of the rows but their vectors."""
    header = pieces[0][0].header
    return VectorBatch(
        keys=np.concatenate([shard.keys[rows] for shard, rows in pieces]),
        vectors=np.empty((0, header.contract.dimension), dtype=np.float32),
        tokens=np.concatenate([shard.tokens[rows] for shard, rows in pieces]),
        truncated=np.concatenate([shard.truncated[rows] for shard, rows in pieces]),
        provenance=header.provenance,
    )
