"""Conflicts of vectors: texts whose vectors in two caches are farther apart than noise explains."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embedcache.codecs import CODEC_NAMES, Vectors
from embedcache.copying.options import LAST
from embedcache.errors import InputError
from embedcache.fsio import canonical_json
from embedcache.keys import KeyArray
from embedcache.noise import compare_rows, noise_angle
from embedcache.progress import Progress
from embedcache.reuse import shard_places
from embedcache.store import Shard, ShardStore

_BLOCK_ROWS = 8192

Mask = NDArray[np.bool_]
Rows = NDArray[np.int64]
Wanted = Callable[[KeyArray], Mask]
"""Keys (n,) -> bool (n,): the keys whose vectors are copied."""
Stores = Mapping[str, ShardStore]
"""Folder of a cache -> its vectors of one contract."""


@dataclass
class VectorConflict:
    """Texts with different vectors in two caches, all computed in the same two ways.

    Attributes:
        teacher: its name.
        kept, left: folders of the cache whose vectors are kept and of the other one.
        kept_by, left_by: codec and provenance of their vectors.
        decided_by: ``finer codec`` or ``--prefer ...``; empty where nothing decides.
        rows: vectors that are left out.
        worst_cosine: lowest cosine between the two vectors of a text.
        expected_cosine: lowest cosine that noise explains.
    """

    teacher: str
    kept: str
    left: str
    kept_by: Mapping[str, object]
    left_by: Mapping[str, object]
    decided_by: str
    rows: int = 0
    worst_cosine: float = 1.0
    expected_cosine: float = 1.0

    def add(self, rows: int, worst_cosine: float, expected_cosine: float) -> None:
        """Count further rows."""
        self.rows += rows
        if worst_cosine <= self.worst_cosine:
            self.worst_cosine, self.expected_cosine = worst_cosine, expected_cosine

    def describe(self) -> str:
        """Return the conflict in one line."""
        kept, left = (", ".join(f"{k} {v}" for k, v in by.items()) for by in (self.kept_by, self.left_by))
        return (
            f"teacher {self.teacher!r}: {self.rows:,} texts have other vectors in {self.kept} ({kept}) "
            f"than in {self.left} ({left}), worst cosine {self.worst_cosine:.6f}, "
            f"expected {self.expected_cosine:.6f}"
        )


class VectorConflictError(InputError):
    """Caches hold different vectors in one codec, and nothing says which to keep.

    Attributes:
        conflicts: those that are not decided.
    """

    def __init__(self, conflicts: Sequence[VectorConflict]) -> None:
        self.conflicts = tuple(conflicts)
        shown = "; ".join(conflict.describe() for conflict in self.conflicts)
        super().__init__(
            f"{shown}. Nothing was copied. Choose with --prefer FIRST or LAST; vectors of an existing target "
            "are never replaced."
        )


class _Side(NamedTuple):
    """Rows of a shard in the cache at ``folder``."""

    folder: str
    shard: Shard
    rows: Rows

    @property
    def way(self) -> Mapping[str, object]:
        """Codec and provenance."""
        return {"codec": self.shard.codec.name, **self.shard.header.provenance}

    @property
    def coarseness(self) -> int:
        """Number of the codec, the finest first."""
        return CODEC_NAMES.index(self.shard.codec.name)


def find_conflicts(
    teacher: str, sources: Stores, target: Stores, prefer: str | None, wanted: Wanted, progress: Progress
) -> tuple[dict[str, Mask], list[VectorConflict]]:
    """Compare the vectors that several caches have of the same texts.

    The finer codec wins, among equals what the target has, and then the earlier source. Rows that their own
    store does not read, because it has the key in another shard, are not compared.

    Args:
        teacher: its name.
        sources: caches with vectors of one contract, the preferred first.
        target: the cache that is written; empty unless it has such vectors.
        prefer: ``FIRST``, ``LAST`` or None; as it is reported.
        wanted: keys that are compared.
        progress: receives the rows compared.

    Returns:
        Name of a shard -> rows of it that lose, bool of shape (n,), for shards with any; and the conflicts.
    """
    lost: dict[str, Mask] = {}
    conflicts: dict[bytes, VectorConflict] = {}
    earlier: dict[str, ShardStore] = {}
    progress.phase(f"compare {teacher}", sum(len(shard) for one in sources.values() for shard in one.shards))
    for folder, store in sources.items():
        seen = {shard.name for one in earlier.values() for shard in one.shards}
        # The target comes last: it matters for what the sources together have.
        others = {**earlier, **target}
        for shard, own in store.own_rows() if others else ():
            rows = np.flatnonzero(own & wanted(shard.keys) & (shard.name not in seen))
            for start in range(0, len(rows), _BLOCK_ROWS):
                for other in others.items():
                    block = rows[start : start + _BLOCK_ROWS]
                    if shard.name in lost:
                        block = block[~lost[shard.name][block]]
                    for kept, left, worst, expected in _compare(_Side(folder, shard, block), *other):
                        mask = lost.setdefault(left.shard.name, np.zeros(len(left.shard), dtype=np.bool_))
                        mask[left.rows] = True
                        key = canonical_json([kept.folder, left.folder, kept.way, left.way])
                        if key not in conflicts:
                            decided = f"--prefer {prefer}" if prefer else ""
                            if kept.shard.codec.name != left.shard.codec.name:
                                decided = "finer codec"
                            elif prefer == LAST and kept.folder in target:
                                decided = ""
                            conflicts[key] = VectorConflict(
                                teacher, kept.folder, left.folder, kept.way, left.way, decided
                            )
                        conflicts[key].add(len(left.rows), worst, expected)
            progress.advance(len(shard))
        earlier[folder] = store
    return lost, sorted(conflicts.values(), key=lambda conflict: conflict.worst_cosine)


def _compare(one: _Side, folder: str, store: ShardStore) -> Iterator[tuple[_Side, _Side, float, float]]:
    """Compare rows with the vectors that another cache reads for their keys.

    Yields:
        For each shard of the other cache the rows that differ beyond noise: those that are kept, those that
        are left out, their worst cosine, and the lowest that noise explains.
    """
    positions = store.locate(one.shard.keys[one.rows])
    rows, positions = one.rows[positions >= 0], positions[positions >= 0]
    numbers, places = shard_places(store, positions)
    for number in np.unique(numbers).tolist():
        those, other = numbers == number, _Side(folder, store.shards[number], places)
        angle = noise_angle(one.shard.header) + noise_angle(other.shard.header)
        found = decoded(one.shard, rows[those])
        cosines, beyond = compare_rows(found, store.vectors(positions[those]), np.full(len(found), angle))
        if beyond.any():
            sides = one._replace(rows=rows[those][beyond]), other._replace(rows=places[those][beyond])
            left, kept = sides if sides[1].coarseness <= sides[0].coarseness else sides[::-1]
            yield kept, left, float(cosines[beyond].min()), math.cos(min(angle, math.pi))


def decoded(shard: Shard, rows: Rows) -> Vectors:
    """Return the vectors of rows of a shard as float32, shape (n, d)."""
    return np.asarray(shard.codec.decode(shard.stored.take(rows)), dtype=np.float32)
