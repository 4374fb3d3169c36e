"""The shape of a cloud of vectors: how far apart they point, how many directions they use."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embedcache.codecs import Vectors
from embedcache.doctor.histogram import Histogram, histogram
from embedcache.doctor.scan import EXAMPLES, fingerprint

RANDOM_PAIRS = 100_000
"""Pairs whose cosines are averaged; the mean's standard error is then below 0.001."""

NEAR_DUPLICATE = 0.999
"""Cosine from which on two texts have practically the same target: further apart than float16 rounds
(1e-6), closer than a student ever comes to its teacher."""

DEAD_VARIANCE = 1e-6
"""Share of the mean variance below which a dimension is dead: a standard deviation a thousandth of the
others', which float16 cannot tell from a constant."""

_BLOCK_ROWS = 4096
_BLOCK_COSINES = 1 << 24


@dataclass(frozen=True)
class NearPair:
    """Two rows of the sample and the cosine of their vectors."""

    first: int
    second: int
    cosine: float


@dataclass(frozen=True)
class Geometry:
    """The shape of a sample of vectors.

    Attributes:
        rows: vectors measured.
        norms: their lengths.
        cosines: cosines of random pairs.
        mean_cosine: the mean of those; 0 where directions are spread evenly.
        spectrum: float64, falling; each principal component's share of the variance around the mean.
        effective_rank: exp of the entropy of the spectrum: how many directions are in use.
        participation_ratio: 1 / sum of its squares: the same, ruled by the largest components.
        dead: dimensions that hardly vary.
        near_rows: rows with a near duplicate among the different vectors of the sample.
        near_pairs: how many such pairs.
        near_examples: some of them.
    """

    rows: int
    norms: Histogram
    cosines: Histogram
    mean_cosine: float
    spectrum: NDArray[np.float64]
    effective_rank: float
    participation_ratio: float
    dead: tuple[int, ...]
    near_rows: int
    near_pairs: int
    near_examples: tuple[NearPair, ...]

    @property
    def first_component(self) -> float:
        """The first principal component's share of the variance."""
        return float(self.spectrum[0])

    def to_json(self) -> dict[str, object]:
        """Return all figures as a JSON object."""
        return {
            "rows": self.rows,
            "norms": self.norms.to_json(),
            "cosines": self.cosines.to_json(),
            "mean_cosine": round(self.mean_cosine, 6),
            "spectrum": [float(f"{share:.6g}") for share in self.spectrum],
            "effective_rank": round(self.effective_rank, 3),
            "participation_ratio": round(self.participation_ratio, 3),
            "dead_dimensions": list(self.dead),
            "near_duplicates": {"rows": self.near_rows, "pairs": self.near_pairs},
        }


def measure_geometry(vectors: Vectors, *, seed: int) -> Geometry | None:
    """Measure ``vectors``, float32 of shape (n, d), finite and none of them zero; None where n < 2.

    Args:
        vectors: the sample; memory beyond it is d x d doubles and some megabytes.
        seed: chooses the random pairs.
    """
    if len(vectors) < 2:
        return None
    norms = np.sqrt(np.einsum("nd,nd->n", vectors, vectors, dtype=np.float64))
    unit = (vectors / norms[:, None]).astype(np.float32)
    cosines = _random_cosines(unit, seed)
    variances, spectrum = _spectrum(vectors)
    positive = spectrum[spectrum > 0]
    near = _near_duplicates(unit, vectors)
    return Geometry(
        rows=len(vectors),
        norms=histogram(norms),
        cosines=histogram(cosines),
        mean_cosine=float(cosines.mean()),
        spectrum=spectrum,
        effective_rank=float(np.exp(-(positive * np.log(positive)).sum())) if len(positive) else 0.0,
        participation_ratio=float(1 / (positive**2).sum()) if len(positive) else 0.0,
        dead=tuple(np.flatnonzero(variances <= DEAD_VARIANCE * variances.mean()).tolist()),
        near_rows=near[0],
        near_pairs=near[1],
        near_examples=near[2],
    )


def _random_cosines(unit: Vectors, seed: int) -> NDArray[np.float64]:
    generator = np.random.default_rng(seed)
    first = generator.integers(len(unit), size=RANDOM_PAIRS)
    # Never a row with itself: the step to the second goes round at most to just before the first.
    second = (first + generator.integers(1, len(unit), size=RANDOM_PAIRS)) % len(unit)
    cosines = np.empty(RANDOM_PAIRS)
    for start in range(0, RANDOM_PAIRS, _BLOCK_ROWS):
        block = slice(start, start + _BLOCK_ROWS)
        cosines[block] = np.einsum("nd,nd->n", unit[first[block]], unit[second[block]])
    return cosines


def _spectrum(vectors: Vectors) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the variance of each dimension, and the shares of the principal components, falling."""
    mean = vectors.mean(axis=0, dtype=np.float64)
    covariance = np.zeros((vectors.shape[1], vectors.shape[1]))
    for start in range(0, len(vectors), _BLOCK_ROWS):
        centred = vectors[start : start + _BLOCK_ROWS] - mean
        covariance += centred.T @ centred
    covariance /= len(vectors)
    variances = np.diagonal(covariance).copy()
    eigenvalues = np.clip(np.linalg.eigvalsh(covariance)[::-1], 0, None)
    total = eigenvalues.sum()
    return variances, eigenvalues / total if total > 0 else eigenvalues


def _near_duplicates(unit: Vectors, vectors: Vectors) -> tuple[int, int, tuple[NearPair, ...]]:
    """Return rows with a near duplicate, pairs, and examples; of equal vectors one stands for all."""
    rows = np.sort(np.unique(fingerprint(vectors), return_index=True)[1])
    unit = unit[rows]
    size = max(1, _BLOCK_COSINES // len(unit))
    touched = np.zeros(len(unit), dtype=np.bool_)
    pairs = 0
    examples: list[NearPair] = []
    for start in range(0, len(unit), size):
        cosines = unit[start : start + size] @ unit[start:].T
        near = cosines >= NEAR_DUPLICATE
        near[:, : near.shape[0]] &= np.triu(np.ones((near.shape[0], near.shape[0]), dtype=np.bool_), k=1)
        pairs += int(np.count_nonzero(near))
        hits = near.any(axis=1)
        touched[start : start + size] |= hits
        touched[start:] |= near.any(axis=0)
        for row in np.flatnonzero(hits)[: EXAMPLES - len(examples)].tolist():
            column = int(near[row].argmax())
            examples.append(
                NearPair(int(rows[start + row]), int(rows[start + column]), float(cosines[row, column]))
            )
    return int(np.count_nonzero(touched)), pairs, tuple(examples)
