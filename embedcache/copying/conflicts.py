"""Conflicts of vectors: texts whose vectors in two caches are farther apart than noise explains."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embedcache.codecs import CODEC_NAMES
from embedcache.copying.options import LAST
from embedcache.errors import InputError
from embedcache.fsio import canonical_json
from embedcache.keys import KeyArray
from embedcache.noise import compare_rows, noise_angle
from embedcache.progress import Progress
from embedcache.store import Shard, ShardStore

_BLOCK_ROWS = 8192
_SHOWN = 5

Mask = NDArray[np.bool_]
Wanted = Callable[[KeyArray], Mask]
"""Keys (n,) -> bool (n,): the keys whose vectors are copied."""


@dataclass(frozen=True)
class Holder:
    """Vectors of a teacher in one cache: the cache's label in messages, and the store."""

    label: str
    store: ShardStore
    is_target: bool = False


@dataclass
class VectorConflict:
    """Texts with different vectors in two caches, all computed in the same two ways.

    Attributes:
        teacher: its name.
        kept, left: labels of the cache whose vectors are kept and of the other one.
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

    def __init__(self, conflicts: Sequence[VectorConflict], prefer: str | None) -> None:
        self.conflicts = tuple(conflicts)
        shown = "; ".join(conflict.describe() for conflict in self.conflicts[:_SHOWN])
        more = f"; and {len(self.conflicts) - _SHOWN} more" if len(self.conflicts) > _SHOWN else ""
        remedy = "Choose with --prefer FIRST or LAST."
        if prefer is not None:
            remedy = "Vectors of an existing target are never replaced: copy it and the sources elsewhere."
        super().__init__(f"{shown}{more}. Nothing was copied. {remedy}")


def find_conflicts(
    teacher: str,
    sources: Sequence[Holder],
    target: Holder | None,
    prefer: str | None,
    wanted: Wanted,
    progress: Progress,
) -> tuple[dict[str, Mask], list[VectorConflict]]:
    """Compare the vectors that several caches have of the same texts.

    The finer codec wins, among equals what the target has, and then the earlier source. Rows that their own
    store does not read, because it has the key in another shard, are not compared.

    Args:
        teacher: its name.
        sources: caches with vectors of one contract, the preferred first.
        target: the cache that is written, where it has such vectors.
        prefer: ``FIRST``, ``LAST`` or None; as it is reported.
        wanted: keys that are compared.
        progress: receives the rows compared.

    Returns:
        Name of a shard -> rows of it that lose, bool of shape (n,), for shards with any; and the conflicts.
    """
    lost: dict[str, Mask] = {}
    conflicts: dict[bytes, VectorConflict] = {}
    seen: set[str] = set()
    progress.phase(f"compare {teacher}", sum(len(shard) for one in sources for shard in one.store.shards))
    for number, holder in enumerate(sources):
        # The target comes last: it matters for what the sources together have.
        others = [*sources[:number], *([] if target is None else [target])]
        for shard, own in holder.store.own_rows() if others else ():
            for start in range(0, 0 if shard.name in seen else len(shard), _BLOCK_ROWS):
                rows = start + np.flatnonzero(own[start : start + _BLOCK_ROWS])
                rows = rows[wanted(shard.keys[rows])]
                for other in others:
                    if shard.name in lost:
                        rows = rows[~lost[shard.name][rows]]
                    for one in _compare(shard, rows, other.store):
                        is_finer = _coarseness(shard) < _coarseness(one.shard)
                        loser, places = (one.shard, one.places) if is_finer else (shard, one.rows)
                        lost.setdefault(loser.name, np.zeros(len(loser), dtype=np.bool_))[places] = True
                        sides = ((holder, shard), (other, one.shard))
                        _note(conflicts, teacher, sides if is_finer else sides[::-1], prefer, one)
            progress.advance(len(shard))
        seen |= {shard.name for shard in holder.store.shards}
    return lost, sorted(conflicts.values(), key=lambda conflict: conflict.worst_cosine)


@dataclass(frozen=True)
class _Beyond:
    """Rows of a shard that differ beyond noise from those at ``places`` of another shard, and by how much."""

    rows: NDArray[np.int64]
    shard: Shard
    places: NDArray[np.int64]
    worst_cosine: float
    expected_cosine: float


def _compare(shard: Shard, rows: NDArray[np.int64], other: ShardStore) -> list[_Beyond]:
    """Compare rows of a shard with the vectors that another store reads for their keys."""
    positions = other.locate(shard.keys[rows])
    rows, positions = rows[positions >= 0], positions[positions >= 0]
    if not len(rows):
        return []
    starts = np.cumsum([0, *map(len, other.shards)])
    numbers = np.searchsorted(starts, positions, side="right") - 1
    used, inverse = np.unique(numbers, return_inverse=True)
    angles = np.array([noise_angle(other.shards[one].header) for one in used.tolist()])
    angles += noise_angle(shard.header)
    mine = np.asarray(shard.codec.decode(shard.stored.take(rows)), dtype=np.float32)
    cosines, beyond = compare_rows(mine, other.vectors(positions), angles[inverse])
    found = []
    for one, angle in zip(used.tolist(), angles.tolist(), strict=True):
        those = beyond & (numbers == one)
        if those.any():
            worst, expected = float(cosines[those].min()), math.cos(min(angle, math.pi))
            places = positions[those] - starts[one]
            found.append(_Beyond(rows[those], other.shards[one], places, worst, expected))
    return found


def _note(
    conflicts: dict[bytes, VectorConflict],
    teacher: str,
    sides: Sequence[tuple[Holder, Shard]],
    prefer: str | None,
    found: _Beyond,
) -> None:
    """Count rows into the conflict of their two caches and provenances; of ``sides`` the first one wins."""
    (kept, _), (left, _) = sides
    ways = [{"codec": shard.codec.name, **shard.header.provenance} for _, shard in sides]
    decided = f"--prefer {prefer}" if prefer and not (kept.is_target and prefer == LAST) else ""
    if ways[0]["codec"] != ways[1]["codec"]:
        decided = "finer codec"
    new = VectorConflict(teacher, kept.label, left.label, ways[0], ways[1], decided)
    conflict = conflicts.setdefault(canonical_json([kept.label, left.label, *ways]), new)
    conflict.rows += len(found.rows)
    if found.worst_cosine <= conflict.worst_cosine:
        conflict.worst_cosine, conflict.expected_cosine = found.worst_cosine, found.expected_cosine


def _coarseness(shard: Shard) -> int:
    return CODEC_NAMES.index(shard.codec.name)
