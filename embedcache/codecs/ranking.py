"""How vectors rank by similarity, and how much of that ranking other vectors keep."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from embedcache.codecs.base import Vectors

MOST_PAIRS = 100_000
MOST_QUERIES = 500
NEIGHBOURS = 10
_BLOCK_ROWS = 4096


class Ranking:
    """The similarities (cosines) among vectors; rows of zeros have none and are left out.

    Args:
        vectors: float32, shape (n, d).
        seed: of the pairs that are looked at.
    """

    def __init__(self, vectors: Vectors, seed: int) -> None:
        self._rows = np.flatnonzero(vectors.any(axis=1))
        self._pairs = _pairs(len(self._rows), seed)
        unit = self._unit(vectors)
        self._similarities = self._similarities_of(unit)
        self._neighbours = _neighbours(unit)

    def agreement(self, vectors: Vectors) -> float | None:
        """Return Spearman's correlation of the pairs' similarities with those among other vectors.

        None where there is no order to agree with: all are equal, or there are none.
        """
        from scipy.stats import spearmanr

        similarities = self._similarities_of(self._unit(vectors))
        if len(np.unique(similarities)) < 2 or len(np.unique(self._similarities)) < 2:
            return None
        return float(spearmanr(self._similarities, similarities).statistic)

    def kept(self, vectors: Vectors) -> float | None:
        """Return the share of the ten nearest neighbours that other vectors have too.

        It is that of at most 500 rows. None where a row has no more than ten others to choose from.
        """
        if len(self._rows) <= NEIGHBOURS + 1:
            return None
        found = _neighbours(self._unit(vectors))
        return float((found[:, :, None] == self._neighbours[:, None, :]).any(axis=2).mean())

    def _unit(self, vectors: Vectors) -> Vectors:
        rows = vectors[self._rows].astype(np.float64)
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        unit: Vectors = np.divide(rows, norms, out=rows, where=norms > 0).astype(np.float32)
        return unit

    def _similarities_of(self, unit: Vectors) -> NDArray[np.float64]:
        parts = [
            np.einsum("nd,nd->n", unit[block[:, 0]], unit[block[:, 1]], dtype=np.float64)
            for block in np.array_split(self._pairs, len(self._pairs) // _BLOCK_ROWS + 1)
        ]
        return np.concatenate(parts)


def _pairs(count: int, seed: int) -> NDArray[np.int64]:
    """Return distinct pairs of distinct rows, shape (p, 2)."""
    if count < 2:
        return np.empty((0, 2), np.int64)
    generator = np.random.default_rng(seed)
    first = generator.integers(count, size=MOST_PAIRS)
    # Any step but a full round leads to another row.
    second = (first + generator.integers(1, count, size=MOST_PAIRS)) % count
    return np.unique(np.sort(np.stack([first, second], axis=1), axis=1), axis=0)


def _neighbours(unit: Vectors) -> NDArray[np.int64]:
    """Return the nearest others of the first rows, shape (queries, 10)."""
    import faiss

    queries, count = min(MOST_QUERIES, len(unit)), min(NEIGHBOURS + 1, len(unit))
    if not queries:
        return np.empty((0, 0), np.int64)
    _, found = faiss.knn(unit[:queries], unit, count, metric=faiss.METRIC_INNER_PRODUCT)
    # Among many exact copies a row may not find itself: then the last one found is left out.
    own = found == np.arange(queries)[:, None]
    own[~own.any(axis=1), -1] = True
    others: NDArray[np.int64] = found[~own].reshape(queries, count - 1)
    return others
