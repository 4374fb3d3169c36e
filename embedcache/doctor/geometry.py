"""Geometry: how far apart the vectors of a sample point, and how many directions they use."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from embedcache.codecs import Vectors
from embedcache.doctor.findings import EXAMPLES, Finding, judge
from embedcache.doctor.scan import TextsOf
from embedcache.keys import KeyArray

LEAST_SAMPLE = 50
"""Figures of fewer vectors are chance."""
RANDOM_PAIRS = 100_000
"""Pairs whose cosines are averaged; the standard error of the mean is below 0.001."""
NEAR_COSINE = 0.999
"""Float16 rounds by less; a student never comes as close to its teacher."""
DEAD_VARIANCE = 1e-6
"""Share of the mean variance; float16 cannot tell such a dimension from a constant."""
_BLOCK_COSINES = 1 << 24


def measure_geometry(vectors: Vectors, keys: KeyArray, texts_of: TextsOf, *, seed: int) -> Iterator[Finding]:
    """Yield the figures of a sample.

    Args:
        vectors: float32, shape (n, d), finite and not zero; time grows with the square of n.
        keys: their keys, dtype ``V16``, shape (n,).
        texts_of: texts of keys, for examples.
        seed: seed of the random pairs.
    """
    rows, dimension = vectors.shape
    if rows < LEAST_SAMPLE:
        advice = f"Build at least {LEAST_SAMPLE} vectors to judge geometry and codecs."
        yield Finding("sample", f"{rows:,} vectors", rows, "look", advice)
        return
    directions = unit(vectors)
    near, pairs = _near_pairs(directions, vectors)
    figure = f"{near:,} of {rows:,} sampled"
    examples = [texts_of(keys[pair]) for pair in pairs]
    yield judge("near-identical vectors", near / rows, figure, examples=examples)
    cosines = random_cosines(directions, seed)
    low, high = np.quantile(cosines, [0.05, 0.95])
    figure = f"{cosines.mean():.3f}, 90 % from {low:.2f} to {high:.2f}"
    yield judge("mean cosine", float(cosines.mean()), figure)
    covariance = np.atleast_2d(np.cov(vectors, rowvar=False, dtype=np.float64))
    shares = np.clip(np.linalg.eigvalsh(covariance), 0, None)
    shares = shares[shares > 0] / max(shares.sum(), np.finfo(np.float64).tiny)
    # exp of the entropy; 0 where all vectors are the same.
    rank = float(np.exp(-(shares * np.log(shares)).sum())) if len(shares) else 0.0
    figure = f"effective rank {rank:.0f} of {dimension:,}"
    yield judge("unused directions", 1 - rank / min(dimension, rows - 1), figure)
    first = float(shares.max(initial=0))
    yield judge("first component", first, f"{first:.1%} of the variance")
    variances = np.diagonal(covariance)
    dead = np.count_nonzero(variances <= DEAD_VARIANCE * variances.mean())
    yield judge("dead dimensions", dead / dimension, f"{dead:,} of {dimension:,}")


def unit(vectors: NDArray[np.floating]) -> Vectors:
    """Return vectors scaled to length one, float32; zeros stay zero."""
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    scaled: Vectors = (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)
    return scaled


def random_cosines(unit: Vectors, seed: int) -> NDArray[np.float64]:
    """Return the cosines of 100,000 random pairs of different rows, which have length one."""
    generator = np.random.default_rng(seed)
    first = generator.integers(len(unit), size=RANDOM_PAIRS)
    # A step of less than a full round leads to another row.
    second = (first + generator.integers(1, len(unit), size=RANDOM_PAIRS)) % len(unit)
    blocks = zip(np.array_split(first, 32), np.array_split(second, 32), strict=True)
    return np.concatenate([np.einsum("nd,nd->n", unit[a], unit[b], dtype=np.float64) for a, b in blocks])


def _near_pairs(unit: Vectors, vectors: Vectors) -> tuple[int, list[NDArray[np.int64]]]:
    """Return the number of rows with a near neighbour, and some pairs; one row stands for equal vectors."""
    digests = np.fromiter((hash(row.tobytes()) for row in vectors), np.int64, len(vectors))
    rows = np.sort(np.unique(digests, return_index=True)[1])
    unit = unit[rows]
    is_near = np.zeros(len(unit), dtype=np.bool_)
    pairs: list[NDArray[np.int64]] = []
    size = max(1, _BLOCK_COSINES // len(unit))
    for start in range(0, len(unit), size):
        near = np.triu(unit[start : start + size] @ unit[start:].T >= NEAR_COSINE, k=1)
        is_near[start : start + size] |= near.any(axis=1)
        is_near[start:] |= near.any(axis=0)
        if len(pairs) < EXAMPLES:
            pairs += [rows[start + pair] for pair in np.argwhere(near)[: EXAMPLES - len(pairs)]]
    return int(np.count_nonzero(is_near)), pairs
