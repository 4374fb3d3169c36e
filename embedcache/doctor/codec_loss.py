"""Codec comparison: size and loss of each codec on the same vectors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embedcache.codecs import CODEC_NAMES, Codec, Vectors, get_codec, measure, pq
from embedcache.errors import InputError
from embedcache.progress import NO_PROGRESS, Progress

MOST_PAIRS = 100_000
MOST_QUERIES = 500
NEIGHBOURS = 10


@dataclass(frozen=True)
class CodecLoss:
    """Size and loss of a codec; figures that could not be measured are None.

    Attributes:
        codec: its name.
        bytes_per_vector: bytes of a vector in a shard, its scale included.
        mean_cosine, worst_cosine: between vectors and what comes back of them.
        rank_agreement: Spearman correlation of the cosines of pairs, before and after.
        neighbours_kept: share of the ten nearest neighbours that stay.
        note: reason why nothing was measured.
    """

    codec: str
    bytes_per_vector: int
    mean_cosine: float | None = None
    worst_cosine: float | None = None
    rank_agreement: float | None = None
    neighbours_kept: float | None = None
    note: str = ""


def compare_codecs(
    vectors: Vectors, *, seed: int = 0, progress: Progress = NO_PROGRESS
) -> Iterator[CodecLoss]:
    """Yield the loss of every codec on one half of the vectors; ``pq`` is trained on the other half.

    Args:
        vectors: float32, shape (n, d), not zero.
        seed: seed of the halves, the codebook and the pairs.
        progress: receives phases.
    """
    order = np.random.default_rng(seed).permutation(len(vectors))
    scored, training = np.array_split(vectors[order], 2)
    for name in CODEC_NAMES:
        progress.phase(f"measure {name}")
        width = vectors.shape[1]
        size = pq.stored_width(width) if name == pq.NAME else get_codec(name).bytes_per_row(width)
        try:
            codec = pq.train(training, seed=seed) if name == pq.NAME else get_codec(name)
            yield _loss(codec, size, scored, seed)
        except InputError as error:
            yield CodecLoss(name, size, note=str(error))


def _loss(codec: Codec, size: int, vectors: Vectors, seed: int) -> CodecLoss:
    stored = codec.encode(vectors)
    error = measure(codec, vectors, stored)
    decoded = codec.decode(stored).astype(np.float32, copy=False)
    return CodecLoss(
        codec.name,
        size,
        error.mean_cosine,
        error.worst_cosine,
        rank_agreement(vectors, decoded, seed),
        neighbours_kept(vectors, decoded),
    )


def rank_agreement(before: Vectors, after: Vectors, seed: int = 0) -> float | None:
    """Return Spearman's correlation of the cosines of random pairs of rows; None where all are equal."""
    from scipy.stats import spearmanr

    if len(before) < 2:
        return None
    generator = np.random.default_rng(seed)
    first = generator.integers(len(before), size=MOST_PAIRS)
    second = (first + generator.integers(1, len(before), size=MOST_PAIRS)) % len(before)
    pairs = np.unique(np.sort(np.stack([first, second]), axis=0), axis=1)
    cosines = [_cosines(_unit(vectors), pairs) for vectors in (before, after)]
    if any(len(np.unique(one)) < 2 for one in cosines):
        return None
    return float(spearmanr(*cosines).statistic)


def neighbours_kept(before: Vectors, after: Vectors) -> float | None:
    """Return the share of the ten nearest neighbours of 500 rows that stay; None for ten rows and fewer."""
    if len(before) <= NEIGHBOURS + 1:
        return None
    old, new = (_neighbours(_unit(vectors)) for vectors in (before, after))
    return float((new[:, :, None] == old[:, None, :]).any(axis=2).mean())


def _unit(vectors: Vectors) -> Vectors:
    norms = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    unit: Vectors = (vectors / np.where(norms > 0, norms, 1)).astype(np.float32)
    return unit


def _cosines(unit: Vectors, pairs: NDArray[np.int64]) -> NDArray[np.float64]:
    blocks = np.array_split(pairs, 32, axis=1)
    return np.concatenate([np.einsum("nd,nd->n", unit[a], unit[b], dtype=np.float64) for a, b in blocks])


def _neighbours(unit: Vectors) -> NDArray[np.int64]:
    cosines = unit[:MOST_QUERIES] @ unit.T
    np.fill_diagonal(cosines, -np.inf)
    nearest: NDArray[np.int64] = np.argpartition(-cosines, NEIGHBOURS, axis=1)[:, :NEIGHBOURS]
    return nearest
