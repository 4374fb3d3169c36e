"""Copies of shards: files that are taken unchanged, and rows that are written again as full shards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embedcache.codecs import CODEC_NAMES, Codec, Stored, Vectors, get_codec, pq
from embedcache.codecs.quality import measure
from embedcache.copying.conflicts import Holder, Mask, VectorConflict, Wanted, find_conflicts
from embedcache.copying.options import LAST
from embedcache.fsio import canonical_json
from embedcache.keys import first_occurrences
from embedcache.progress import Progress
from embedcache.store import Shard, ShardStore, VectorBatch

DEFAULT_SHARD_ROWS = 16384


@dataclass(frozen=True)
class Piece:
    """Rows of a shard, ascending, that are written again."""

    shard: Shard
    rows: NDArray[np.int64]

    def vectors(self) -> Vectors:
        """Return the vectors as float32, shape (n, d)."""
        return np.asarray(self.shard.codec.decode(self.shard.stored.take(self.rows)), dtype=np.float32)


@dataclass
class ShardPlan:
    """Plan of copying the vectors of one teacher.

    Attributes:
        whole: shards whose files are taken unchanged, and their stores.
        batches: codec and rows of each shard to write.
        rows: distinct texts whose vectors are copied.
        missing: those that the target lacks.
        conflicts: conflicts of vectors.
    """

    whole: list[tuple[Shard, ShardStore]] = field(default_factory=list)
    batches: list[tuple[Codec, list[Piece]]] = field(default_factory=list)
    rows: int = 0
    missing: int = 0
    conflicts: list[VectorConflict] = field(default_factory=list)


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
    teacher: str,
    sources: Sequence[Holder],
    target: Holder | None,
    wanted: Wanted,
    *,
    codec: str | None,
    shard_rows: int | None,
    prefer: str | None,
    progress: Progress,
) -> ShardPlan:
    """Decide which shards are copied unchanged and which rows are written again.

    What is written is a function of the sources, so an interrupted copy continues where it stopped. Memory: a
    few bytes a row.

    Args:
        teacher: name in messages.
        sources: caches with vectors of one contract, in their order.
        target: the cache that is written, where it has such vectors.
        wanted: keys to copy.
        codec: codec to write; vectors in a coarser one stay as they are. None: no change.
        shard_rows: rows of a full shard; None: shards of any size stay as they are.
        prefer: ``FIRST``, ``LAST`` or None.
        progress: receives the rows compared.

    Raises:
        CorruptCacheError: if a shard is damaged.
        InputError: if there are too few vectors to train ``pq``.
    """
    ordered = list(reversed(sources) if prefer == LAST else sources)
    lost, conflicts = find_conflicts(teacher, ordered, target, prefer, wanted, progress)
    plan, here = ShardPlan(conflicts=conflicts), None if target is None else target.store
    there = set() if here is None else {shard.name for shard in here.shards}
    found: dict[str, tuple[Shard, ShardStore, Mask]] = {}
    for holder in ordered:
        for shard, own in holder.store.own_rows():
            found.setdefault(shard.name, (shard, holder.store, own))
    # Of a key in several shards the row in the finest codec is taken, of the preferred source.
    shards = sorted(found.values(), key=lambda one: CODEC_NAMES.index(one[0].codec.name))
    keep = [wanted(shard.keys) & ~lost.get(shard.name, np.False_) for shard, _, _ in shards]
    # A union keeps rows that are never read, too. What is cut does not: new names might bring them forward.
    is_union = codec is None and shard_rows is None and all(mask.all() for mask in keep)
    if not is_union:
        keep = [mask & own for mask, (_, _, own) in zip(keep, shards, strict=True)]
    firsts = first_occurrences([shard.keys[mask] for (shard, _, _), mask in zip(shards, keep, strict=True)])
    again: list[Piece] = []
    for (shard, store, _), mask in zip(shards, keep, strict=True):
        rows, firsts = np.flatnonzero(mask)[firsts[: mask.sum()]], firsts[mask.sum() :]
        plan.rows += len(rows)
        plan.missing += len(rows) if here is None else int((here.locate(shard.keys[rows]) < 0).sum())
        is_whole = is_union or len(rows) == len(shard)
        is_same_form = shard_rows in (None, len(shard)) and not _is_changed(shard, codec)
        if is_same_form and (is_whole or shard.name in there):
            plan.whole.append((shard, store))
        elif len(rows):
            again.append(Piece(shard, rows))
    plan.batches = list(_batches(again, codec, shard_rows or DEFAULT_SHARD_ROWS))
    return plan


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
    for shard, source in plan.whole:
        if shard.name not in there:
            _save_codebook(shard.codec, codebooks)
            store.put_raw(shard.name, source.container.open(shard.name))
            done.unchanged += 1
            done.bytes += shard.bytes
        progress.advance()
    for codec, pieces in plan.batches:
        _save_codebook(codec, codebooks)
        stored, error = _encoded(codec, pieces)
        name = store.put_stored(codec, stored, _rows_of(pieces), error)
        if name not in there:
            done.written += 1
            done.bytes += store.shards[-1].bytes
        if _is_reencoded(codec, pieces):
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
    step = -(-sum(len(piece.rows) for piece in pieces) // pq.MOST_TRAINING_ROWS)
    return pq.train(np.concatenate([Piece(piece.shard, piece.rows[::step]).vectors() for piece in pieces]))


def _batches(
    pieces: Sequence[Piece], codec: str | None, shard_rows: int
) -> Iterator[tuple[Codec, list[Piece]]]:
    """Cut rows into full shards, each of rows of one codec and one provenance."""
    changed = [piece for piece in pieces if _is_changed(piece.shard, codec)]
    new = _new_codec(codec, changed) if codec is not None and changed else None
    groups: dict[tuple[str, str | None, bytes], list[Piece]] = {}
    for piece in pieces:
        header = piece.shard.header
        kind = (header.codec, header.codebook, canonical_json(dict(header.provenance)))
        groups.setdefault(kind, []).append(piece)
    for group in groups.values():
        old = group[0].shard.codec
        used = new if new is not None and _is_changed(group[0].shard, codec) else old
        batch: list[Piece] = []
        room = shard_rows
        for piece in group:
            rows = piece.rows
            while len(rows):
                batch.append(Piece(piece.shard, rows[:room]))
                rows, room = rows[room:], room - len(batch[-1].rows)
                if not room:
                    yield used, batch
                    batch, room = [], shard_rows
        if batch:
            yield used, batch


def _is_reencoded(codec: Codec, pieces: Sequence[Piece]) -> bool:
    old = pieces[0].shard.codec
    return (codec.name, codec.codebook) != (old.name, old.codebook)


def _encoded(codec: Codec, pieces: Sequence[Piece]) -> tuple[Stored, dict[str, float]]:
    """Return the rows of a shard as they are stored, and the error for its header."""
    if _is_reencoded(codec, pieces):
        vectors = np.concatenate([piece.vectors() for piece in pieces])
        stored = codec.encode(vectors)
        return stored, measure(codec, vectors, stored).to_json()
    parts = [piece.shard.stored.take(piece.rows) for piece in pieces]
    scales = [part.scale for part in parts if part.scale is not None]
    vector = np.concatenate([part.vector for part in parts])
    # The vectors before encoding are gone: the bounds of the parts bound the whole.
    errors = [piece.shard.header.error for piece in pieces]
    error = {name: min(one[name] for one in errors) for name in errors[0]}
    return Stored(vector, np.concatenate(scales) if scales else None), error


def _rows_of(pieces: Sequence[Piece]) -> VectorBatch:
    """Return all of the rows but their vectors."""
    header = pieces[0].shard.header
    return VectorBatch(
        keys=np.concatenate([piece.shard.keys[piece.rows] for piece in pieces]),
        vectors=np.empty((0, header.contract.dimension), dtype=np.float32),
        tokens=np.concatenate([piece.shard.tokens[piece.rows] for piece in pieces]),
        truncated=np.concatenate([piece.shard.truncated[piece.rows] for piece in pieces]),
        provenance=header.provenance,
    )


def _save_codebook(codec: Codec, folder: Path) -> None:
    if isinstance(codec, pq.PQCodec) and not (folder / f"{codec.codebook}.npy").exists():
        pq.save(folder, codec)
