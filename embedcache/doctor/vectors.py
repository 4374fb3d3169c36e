"""Vectors of a store: broken and equal ones, and the geometry of a sample.

Memory is some 40 bytes a vector.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from embedcache.codecs import Vectors
from embedcache.doctor.findings import EXAMPLES, Finding, TextsOf, judge, share
from embedcache.progress import Progress
from embedcache.store import Positions, ShardStore

LEAST_SAMPLE = 50
"""Figures of fewer vectors are chance."""
RANDOM_PAIRS = 100_000
"""Pairs whose cosines are averaged; the standard error of the mean is below 0.001."""

# Vectors of 4096 float32 take 128 MiB.
_BLOCK_ROWS = 8192
# Rounding of vectors of length one. A pq code is a mean of its neighbours, hence shorter than they are.
_CODEC_ROUNDING = {"float32": 1e-3, "float16": 2e-3, "int8": 1e-2, "pq": 0.35}
_COMPUTE_ROUNDING = {"bfloat16": 1e-2, "float16": 2e-3, "served": 1e-2}


def judge_vectors(
    store: ShardStore, positions: Positions, texts_of: TextsOf, progress: Progress
) -> tuple[list[Finding], Positions]:
    """Look at every vector once.

    Args:
        store: the vectors.
        positions: positions of those that are judged, at least one.
        texts_of: texts of keys, for examples.
        progress: receives phases and rows.

    Returns:
        The findings, and the positions of the vectors that are finite and not zero.
    """
    progress.phase("scan vectors", len(positions))
    is_finite, is_zero = np.empty((2, len(positions)), np.bool_)
    lengths, digests = np.empty(len(positions)), np.empty(len(positions), np.int64)
    for start in range(0, len(positions), _BLOCK_ROWS):
        block = slice(start, start + _BLOCK_ROWS)
        vectors = store.vectors(positions[block])
        is_finite[block], is_zero[block] = np.isfinite(vectors).all(axis=1), ~vectors.any(axis=1)
        lengths[block] = np.linalg.norm(vectors.astype(np.float64), axis=1)
        digests[block] = [hash(row.tobytes()) for row in vectors]
        progress.advance(len(vectors))
    findings = []
    for name, broken in (("NaN or infinite", positions[~is_finite]), ("zero vectors", positions[is_zero])):
        examples = [[text] for text in texts_of(store.keys_at(broken[:EXAMPLES]))]
        findings.append(judge(name, len(broken), f"{len(broken):,}", examples=examples))
    good = is_finite & ~is_zero
    if good.any():
        findings.append(_judge_lengths(store, lengths[good]))
    findings.append(_judge_identical(store, positions[good], digests[good], texts_of))
    _, truncated = store.seen(positions)
    part, figure = share(int(truncated.sum()), len(positions), "")
    cut = store.contract.max_length or "no length"
    findings.append(judge("truncated texts", part, f"{figure}, cut at {cut}"))
    return findings, positions[good]


def _judge_lengths(store: ShardStore, lengths: NDArray[np.float64]) -> Finding:
    least, mean, most = float(lengths.min()), float(lengths.mean()), float(lengths.max())
    figure = f"{least:.5g} to {most:.5g}, mean {mean:.5g}"
    if not store.contract.is_unit_length:
        return judge("outliers", most / mean, f"lengths {figure}")
    allowed = max(
        _CODEC_ROUNDING[shard.header.codec]
        + _COMPUTE_ROUNDING.get(str(shard.header.provenance.get("compute_dtype")), 0)
        for shard in store.shards
    )
    return judge("lengths of vectors", max(abs(least - 1), abs(most - 1)) / allowed, figure)


def _judge_identical(
    store: ShardStore, positions: Positions, digests: NDArray[np.int64], texts_of: TextsOf
) -> Finding:
    values, counts = np.unique(digests, return_counts=True)
    shared, sizes = values[counts > 1], counts[counts > 1]
    largest = shared[np.argsort(-sizes, kind="stable")[:EXAMPLES]]
    examples = [texts_of(store.keys_at(positions[digests == value][:2])) for value in largest]
    part, figure = share(int(sizes.sum()), len(digests), "")
    figure = f"{figure}, at most {sizes.max(initial=0):,} alike"
    return judge("identical vectors", part, figure, examples=examples)


def judge_geometry(store: ShardStore, positions: Positions, seed: int) -> Iterator[Finding]:
    """Yield the mean cosine of a sample's vectors, and the share of unused directions.

    Args:
        store: the vectors.
        positions: positions of the sample; its vectors are finite and not zero.
        seed: seed of the random pairs.
    """
    rows, dimension = len(positions), store.contract.dimension
    if rows < LEAST_SAMPLE:
        advice = f"Build at least {LEAST_SAMPLE} vectors to judge geometry and codecs."
        yield Finding("sample", f"{rows:,} vectors", rows, "look", advice)
        return
    vectors = store.vectors(positions)
    cosines = _random_cosines(unit(vectors), seed)
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


def unit(vectors: NDArray[np.floating]) -> Vectors:
    """Return vectors scaled to length one, float32; zeros stay zero."""
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    scaled: Vectors = (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)
    return scaled


def _random_cosines(directions: Vectors, seed: int) -> NDArray[np.float64]:
    """Return the cosines of 100,000 random pairs of different rows, which have length one."""
    generator = np.random.default_rng(seed)
    first = generator.integers(len(directions), size=RANDOM_PAIRS)
    # A step of less than a full round leads to another row.
    second = (first + generator.integers(1, len(directions), size=RANDOM_PAIRS)) % len(directions)
    blocks = zip(np.array_split(first, 32), np.array_split(second, 32), strict=True)
    return np.concatenate(
        [np.einsum("nd,nd->n", directions[a], directions[b], dtype=np.float64) for a, b in blocks]
    )
