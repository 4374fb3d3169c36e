"""Vectors of a copy: conflicts between caches, shards copied as files, and rows written as new shards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embedcache.codecs import CODEC_NAMES, Codec, Stored, Vectors, get_codec, measure, pq
from embedcache.copying.options import LAST, CopyOptions
from embedcache.errors import InputError
from embedcache.fsio import canonical_json
from embedcache.keys import KeyArray, KeyIndex
from embedcache.progress import Progress
from embedcache.store import Shard, ShardStore, VectorBatch
from embedcache.store.index import sort_keys
from embedcache.store.noise import compare_rows, noise_angle
from embedcache.teacher.options import DEFAULT_SHARD_ROWS

_BLOCK_ROWS = 8192

Mask = NDArray[np.bool_]
Stores = Mapping[str, ShardStore]
"""Folder of a cache -> its vectors of one contract."""


@dataclass
class VectorConflict:
    """Conflicting texts: two caches hold different vectors for them.

    All were computed in the same two ways.

    Attributes:
        teacher: its name.
        kept, left: folders of the cache whose vectors are kept and of the other one.
        kept_by, left_by: codec and provenance of their vectors.
        decided_by: ``finer codec`` or ``--prefer ...``; empty where nothing decides.
        rows: vectors that are left out.
        worst_cosine: lowest cosine between the two vectors of a text.
    """

    teacher: str
    kept: str
    left: str
    kept_by: Mapping[str, object]
    left_by: Mapping[str, object]
    decided_by: str
    rows: int = 0
    worst_cosine: float = 1.0

    def describe(self) -> str:
        """Return the conflict in one line."""
        kept, left = (", ".join(f"{k} {v}" for k, v in by.items()) for by in (self.kept_by, self.left_by))
        return (
            f"teacher {self.teacher!r}: {self.rows:,} texts have other vectors in {self.kept} ({kept}) "
            f"than in {self.left} ({left}), worst cosine {self.worst_cosine:.6f}"
        )


class VectorConflictError(InputError):
    """Caches hold different vectors in one codec, and nothing says which to keep."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a shard.

    Attributes:
        folder: folder of the cache the shard lies in.
        store: its store.
        name: name of the shard.
        rows: int64, shape (n,), ascending.
    """

    folder: str
    store: ShardStore
    name: str
    rows: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    def __getitem__(self, places: NDArray[np.integer] | Mask | slice) -> Rows:
        """Return some of the rows."""
        return Rows(self.folder, self.store, self.name, self.rows[places])

    @property
    def shard(self) -> Shard:
        """The shard, opened when it is asked for."""
        return self.store.shard(self.name)

    @property
    def keys(self) -> KeyArray:
        """Their keys, dtype ``V16``, shape (n,)."""
        return self.shard.keys[self.rows]

    @property
    def stored(self) -> Stored:
        """Their vectors as the codec stores them."""
        return self.shard.stored.take(self.rows)

    @property
    def vectors(self) -> Vectors:
        """Their vectors, float32, shape (n, d)."""
        return np.asarray(self.shard.codec.decode(self.stored), dtype=np.float32)

    @property
    def way(self) -> Mapping[str, object]:
        """Codec and provenance."""
        return {"codec": self.shard.codec.name, **self.shard.header.provenance}

    @property
    def coarseness(self) -> int:
        """Number of the codec, the finest first."""
        return CODEC_NAMES.index(self.shard.codec.name)

    def is_finer(self, codec: str | None) -> bool:
        """Return whether the rows are in a finer codec than ``codec``; False for None."""
        return codec is not None and self.coarseness < CODEC_NAMES.index(codec)


@dataclass(frozen=True)
class VectorPlan:
    """Plan of copying the vectors of one teacher.

    Attributes:
        whole: shards whose files are copied unchanged.
        batches: codec and rows of each shard to write.
        rows: texts whose vectors are copied; not those that the target has as fine.
        conflicts: conflicts of vectors, the worst first.
    """

    whole: Sequence[Rows]
    batches: Sequence[tuple[Codec, list[Rows]]]
    rows: int
    conflicts: Sequence[VectorConflict]


def plan_vectors(
    teacher: str, sources: Stores, target: Stores, wanted: KeyIndex | None, options: CopyOptions,
    progress: Progress,
) -> VectorPlan:  # fmt: skip
    """Decide conflicts, which shards are copied as files and which rows are written as new shards.

    In a conflict the finer codec wins, among equals what the target has, and then the preferred source.
    Memory: some 30 bytes a row.

    Args:
        teacher: name in messages.
        sources: caches with vectors of one contract, in their order.
        target: the cache that is written; empty unless it has such vectors.
        wanted: keys to copy; None: all.
        options: form of the copy.
        progress: receives the rows compared.

    Raises:
        CorruptCacheError: if a shard is damaged.
        InputError: if there are too few vectors to train ``pq``.
    """
    found: dict[str, Rows] = {}
    order = list(sources.items())[:: -1 if options.prefer == LAST else 1]
    for folder, store in (*target.items(), *order):
        for shard, own in store.own_rows():
            some = own if wanted is None else own & (wanted.locate(shard.keys) >= 0)
            found.setdefault(shard.name, Rows(folder, store, shard.name, np.flatnonzero(some)))
    # Of a key in several shards the first row is taken.
    ranked = sorted(found.values(), key=lambda one: one.coarseness)
    starts = np.cumsum([0, *map(len, ranked)])
    index = sort_keys(lambda: (one.keys for one in ranked), int(starts[-1]))
    progress.phase(f"compare {teacher}", int(starts[-1]))
    chosen, conflicts = list[Rows](), dict[bytes, VectorConflict]()
    is_whole = wanted is None and options.codec is None and options.shard_rows is None
    for start, one in zip(starts.tolist(), ranked, strict=False):
        firsts = index.locate(one.keys)
        is_first = firsts == np.arange(start, start + len(one))
        owners = np.searchsorted(starts, firsts, side="right") - 1
        for number in np.unique(owners[~is_first]).tolist():
            places = np.flatnonzero((owners == number) & ~is_first)
            kept, left = ranked[number][firsts[places] - starts[number]], one[places]
            cosines = _differing(kept, left)
            if len(cosines):
                is_whole &= one.folder in target
                is_finer = kept.is_finer(left.shard.codec.name)
                decided_by = "finer codec" if is_finer else options.prefer and f"prefer {options.prefer}"
                sides = kept.folder, left.folder, kept.way, left.way
                conflict = conflicts.setdefault(
                    canonical_json(sides), VectorConflict(teacher, *sides, decided_by or "")
                )
                conflict.rows += len(cosines)
                conflict.worst_cosine = min(conflict.worst_cosine, float(cosines.min()))
        if one.folder not in target:
            chosen.append(one[is_first])
        progress.advance(len(one))
    whole, again = list[Rows](), list[Rows]()
    for one in chosen:
        # A union keeps rows that are never read, too. Cut, they might be read first under a new name.
        is_same_form = options.shard_rows in (None, len(one.shard)) and not one.is_finer(options.codec)
        is_file = is_same_form and (is_whole or len(one) == len(one.shard))
        (whole if is_file else again).append(one)
    batches = list(_batches(again, options.codec, options.shard_rows or DEFAULT_SHARD_ROWS))
    worst_first = sorted(conflicts.values(), key=lambda conflict: conflict.worst_cosine)
    return VectorPlan(whole, batches, sum(map(len, chosen)), worst_first)


def _differing(kept: Rows, left: Rows) -> NDArray[np.float64]:
    """Return the cosines of those vectors of n texts that differ beyond noise."""
    angle = noise_angle(kept.shard.header) + noise_angle(left.shard.header)
    found = []
    for start in range(0, len(left), _BLOCK_ROWS):
        block = slice(start, start + _BLOCK_ROWS)
        x, y = kept[block].vectors, left[block].vectors
        cosines, beyond = compare_rows(x, y, np.full(len(x), angle))
        found.append(cosines[beyond])
    return np.concatenate(found)


def _batches(rows: Sequence[Rows], codec: str | None, shard_rows: int) -> Iterator[tuple[Codec, list[Rows]]]:
    """Cut rows into full shards, each of rows of one codec and one provenance."""
    changed = [one for one in rows if one.is_finer(codec)]
    new = _new_codec(codec, changed) if codec is not None and changed else None
    groups: dict[bytes, list[Rows]] = {}
    for one in rows:
        groups.setdefault(canonical_json([one.way, one.shard.header.codebook]), []).append(one)
    for group in groups.values():
        used = new if new is not None and group[0].is_finer(codec) else group[0].shard.codec
        starts = np.cumsum([0, *map(len, group)])
        for begin in range(0, int(starts[-1]), shard_rows):
            end = begin + shard_rows
            first, last = np.searchsorted(starts[:-1], [begin, end], side="right") - 1
            cut = zip(group[first : last + 1], starts[first : last + 1].tolist(), strict=True)
            pieces = [one[max(begin - start, 0) : max(end - start, 0)] for one, start in cut]
            yield used, [piece for piece in pieces if len(piece)]


def _new_codec(name: str, rows: Sequence[Rows]) -> Codec:
    """Return the codec to write rows in; that of ``pq`` is trained on rows spread evenly over them."""
    if name != pq.NAME:
        return get_codec(name)
    step = -(-sum(map(len, rows)) // pq.MOST_TRAINING_ROWS)
    return pq.train(np.concatenate([one[::step].vectors for one in rows]))


def write_vectors(plan: VectorPlan, store: ShardStore, codebooks: Path, progress: Progress) -> None:
    """Write the planned shards into a store; existing shards stay.

    Args:
        plan: the plan.
        store: the store.
        codebooks: its folder of codebooks.
        progress: receives the shards written.

    Raises:
        CorruptCacheError: if a shard is damaged.
        StorageError: if the store cannot be written.
    """
    progress.phase("write shards", len(plan.whole) + len(plan.batches), "shards")
    for codec in [*(one.shard.codec for one in plan.whole), *(codec for codec, _ in plan.batches)]:
        if isinstance(codec, pq.PQCodec) and not (codebooks / f"{codec.codebook}.npy").exists():
            pq.save(codebooks, codec)
    for one in plan.whole:
        store.put_raw(one.name, one.store.container.open(one.name))
        progress.advance()
    for codec, pieces in plan.batches:
        stored, error = _encoded(codec, pieces)
        store.put_stored(codec, stored, _batch_of(pieces), error)
        progress.advance()
    store.finish()


def _encoded(codec: Codec, pieces: Sequence[Rows]) -> tuple[Stored, dict[str, float]]:
    """Return the rows of a shard as they are stored, and the error for its header."""
    if codec.name != pieces[0].shard.codec.name:
        vectors = np.concatenate([piece.vectors for piece in pieces])
        stored = codec.encode(vectors)
        return stored, measure(codec, vectors, stored)
    parts = [piece.stored for piece in pieces]
    scales = [part.scale for part in parts if part.scale is not None]
    vector = np.concatenate([part.vector for part in parts])
    # The vectors before encoding are gone: the bounds of the parts bound the whole.
    errors = [piece.shard.header.error for piece in pieces]
    error = {name: min(one[name] for one in errors) for name in errors[0]}
    return Stored(vector, np.concatenate(scales) if scales else None), error


def _batch_of(pieces: Sequence[Rows]) -> VectorBatch:
    """Return all of the rows but their vectors."""
    header = pieces[0].shard.header
    return VectorBatch(
        keys=np.concatenate([piece.keys for piece in pieces]),
        vectors=np.empty((0, header.contract.dimension), dtype=np.float32),
        tokens=np.concatenate([piece.shard.tokens[piece.rows] for piece in pieces]),
        truncated=np.concatenate([piece.shard.truncated[piece.rows] for piece in pieces]),
        provenance=header.provenance,
    )
