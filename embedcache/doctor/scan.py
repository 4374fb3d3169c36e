"""One pass over all vectors: what is broken, how long they are, which are the same, how long their texts are.

Memory is nine bytes a vector for finding equal ones (twice that for a moment), whatever the width.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embedcache.codecs import Vectors
from embedcache.doctor.population import Population
from embedcache.doctor.progress import Meter, OnProgress
from embedcache.keys import KEY_DTYPE, KeyArray
from embedcache.sampling import KeySample

EXAMPLES = 5
"""Texts shown of each kind."""

SHOWN_GROUPS = 3
"""Groups of equal vectors of which two texts are shown."""

LONGEST_COUNTED = 65536
"""Token counts beyond this are counted as this many: a damaged count must not fill the memory."""


@dataclass(frozen=True)
class Flaw:
    """Vectors of which something is amiss.

    Attributes:
        count: how many.
        keys: of the first of them, at most :data:`EXAMPLES`.
    """

    count: int
    keys: KeyArray


@dataclass(frozen=True)
class Norms:
    """Lengths of the finite vectors that are not zero."""

    least: float
    mean: float
    most: float


@dataclass(frozen=True)
class Identical:
    """Vectors that are the same in every bit although their texts differ; zero vectors are left out.

    Attributes:
        vectors: vectors that share their value with another.
        groups: values that are shared.
        largest: vectors that share the commonest value.
        keys: two of each of the :data:`SHOWN_GROUPS` largest groups, one after the other.
    """

    vectors: int
    groups: int
    largest: int
    keys: KeyArray


@dataclass(frozen=True)
class Scan:
    """What a pass over all vectors found.

    Attributes:
        vectors: vectors looked at.
        non_finite: those with a NaN or an infinity.
        zero: those of nothing but zeros.
        norms: lengths of the others; None where there are none.
        identical: equal ones among the others.
        tokens: int64; ``tokens[n]`` vectors are of texts of n tokens; ``tokens[0]`` of unknown length.
        truncated: vectors of texts of which the teacher saw only the beginning.
        sample: keys of a sample that depends on keys and seed alone; broken and zero vectors are left out.
    """

    vectors: int
    non_finite: Flaw
    zero: Flaw
    norms: Norms | None
    identical: Identical
    tokens: NDArray[np.int64]
    truncated: int
    sample: KeyArray


def scan(
    population: Population,
    *,
    sample: int,
    seed: int,
    on_progress: OnProgress | None = None,
) -> Scan:
    """Look at every vector of ``population`` once.

    Args:
        population: the vectors.
        sample: size of the sample; smaller where there are fewer usable vectors.
        seed: chooses the sample.
        on_progress: called after every block.
    """
    meter = Meter("vectors", len(population), on_progress)
    non_finite, zero = _Flawed(), _Flawed()
    chosen = KeySample(sample, seed)
    fingerprints = np.zeros(len(population), dtype=np.uint64)
    usable = np.zeros(len(population), dtype=np.bool_)
    tokens = np.zeros(1, dtype=np.int64)
    seen = truncated = 0
    least, most, total, counted = np.inf, -np.inf, 0.0, 0
    for keys, positions in population.blocks():
        vectors = population.store.vectors(positions)
        finite = np.isfinite(vectors).all(axis=1)
        is_zero = ~vectors.any(axis=1)
        good = finite & ~is_zero
        non_finite.add(keys[~finite])
        zero.add(keys[is_zero])
        if good.any():
            # In double precision: squares of large float32 values would not fit.
            norms = np.sqrt(np.einsum("nd,nd->n", vectors[good], vectors[good], dtype=np.float64))
            least, most = min(least, float(norms.min())), max(most, float(norms.max()))
            total, counted = total + float(norms.sum()), counted + len(norms)
        chosen.add(keys[good])
        fingerprints[seen : seen + len(keys)] = fingerprint(vectors)
        usable[seen : seen + len(keys)] = good
        lengths, cut = population.store.seen(positions)
        tokens = _added(tokens, np.bincount(np.clip(lengths, 0, LONGEST_COUNTED)))
        truncated += int(np.count_nonzero(cut))
        seen += len(keys)
        meter.step(len(keys))
    return Scan(
        vectors=seen,
        non_finite=non_finite.flaw(),
        zero=zero.flaw(),
        norms=Norms(least, total / counted, most) if counted else None,
        identical=_identical(population, fingerprints[:seen], usable[:seen]),
        tokens=tokens,
        truncated=truncated,
        sample=chosen.keys(),
    )


def fingerprint(vectors: Vectors) -> NDArray[np.uint64]:
    """Return 64 bits of each row of ``vectors`` (float32, shape (n, d)): equal rows give equal bits.

    Rows that differ give the same bits about once in 2**64 pairs, unless somebody made them for it.
    """
    rows, width = vectors.shape
    words = np.zeros((rows, (width + 1) // 2), dtype=np.uint64)
    words.view(np.float32)[:, :width] = vectors
    # Every place has its own factor. Products alone would cancel where two signs flip: hence the shifts.
    factors = np.random.default_rng(0).integers(2**63, size=words.shape[1], dtype=np.uint64)
    words *= factors * np.uint64(2) + np.uint64(1)
    words ^= words >> np.uint64(32)
    words *= np.uint64(0x9E3779B97F4A7C15)
    words ^= words >> np.uint64(29)
    bits: NDArray[np.uint64] = words.sum(axis=1, dtype=np.uint64)
    return bits


def _identical(
    population: Population, fingerprints: NDArray[np.uint64], usable: NDArray[np.bool_]
) -> Identical:
    ordered = fingerprints[usable]
    ordered.sort()
    as_before = np.zeros(len(ordered) + 1, dtype=np.bool_)
    as_before[1:-1] = ordered[1:] == ordered[:-1]
    starts = np.flatnonzero(as_before[1:] & ~as_before[:-1])
    if not len(starts):
        return Identical(0, 0, 0, np.empty(0, dtype=KEY_DTYPE))
    sizes = np.flatnonzero(as_before[:-1] & ~as_before[1:]) - starts + 1
    largest = np.argsort(-sizes, kind="stable")[:SHOWN_GROUPS]
    values = ordered[starts[largest]].tolist()
    numbers = np.concatenate([np.flatnonzero((fingerprints == value) & usable)[:2] for value in values])
    rising = np.argsort(numbers)
    keys = np.empty(len(numbers), dtype=KEY_DTYPE)
    keys[rising] = population.keys_at(numbers[rising])
    return Identical(int(sizes.sum()), len(starts), int(sizes.max()), keys)


def _added(counts: NDArray[np.int64], more: NDArray[np.int64]) -> NDArray[np.int64]:
    longer, shorter = (counts, more) if len(counts) >= len(more) else (more, counts)
    longer[: len(shorter)] += shorter
    return longer


class _Flawed:
    """Counts keys and keeps the first of them."""

    def __init__(self) -> None:
        self._count = 0
        self._kept = np.empty(0, dtype=KEY_DTYPE)

    def add(self, keys: KeyArray) -> None:
        self._count += len(keys)
        if len(keys) and len(self._kept) < EXAMPLES:
            self._kept = np.concatenate([self._kept, keys])[:EXAMPLES]

    def flaw(self) -> Flaw:
        return Flaw(self._count, self._kept)
