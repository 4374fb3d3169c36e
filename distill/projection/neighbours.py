"""How near rows of one label lie to each other: what a projection is meant to better."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distill.vectors import unit
from embedcache.codecs import Vectors

NEIGHBOURS = 10
_ROWS_AT_ONCE = 512


@dataclass(frozen=True)
class LabelCosines:
    """Mean cosines of pairs of different rows.

    Attributes:
        within: of two rows of one label; None where no label has two rows.
        between: of two rows of different labels; None where there is one label.
    """

    within: float | None
    between: float | None


def label_cosines(vectors: Vectors, labels: NDArray[np.int64]) -> LabelCosines:
    """Return the mean cosines within labels and between them, every pair of rows counted once.

    Args:
        vectors: float32, shape (n, d), of any length.
        labels: int64, shape (n,); numbers from 0.
    """
    counts = np.bincount(labels)
    scaled = unit(vectors).astype(np.float64)
    sums = np.zeros((len(counts), scaled.shape[1]))
    np.add.at(sums, labels, scaled)
    # The square of a sum holds the cosine of every pair twice, and of each row with itself.
    own = float((scaled * scaled).sum())
    same, every = float((sums * sums).sum()) - own, float((sums.sum(axis=0) ** 2).sum()) - own
    pairs, all_pairs = int((counts * (counts - 1)).sum()), len(labels) * (len(labels) - 1)
    return LabelCosines(
        within=same / pairs if pairs else None,
        between=(every - same) / (all_pairs - pairs) if all_pairs > pairs else None,
    )


def neighbour_accuracy(vectors: Vectors, labels: NDArray[np.int64], neighbours: int = NEIGHBOURS) -> float:
    """Return the share of rows whose label most of their nearest neighbours have, the row itself left out.

    Args:
        vectors: float32, shape (n, d), of any length; nearest is what has the highest cosine.
        labels: int64, shape (n,); numbers from 0. Of labels with as many votes the smallest wins.
        neighbours: those that vote, at most n - 1.
    """
    count = min(neighbours, len(vectors) - 1)
    scaled = unit(vectors)
    right = 0
    for start in range(0, len(scaled), _ROWS_AT_ONCE):
        rows = np.arange(start, min(start + _ROWS_AT_ONCE, len(scaled)))
        similarities = scaled[rows] @ scaled.T
        similarities[rows - start, rows] = -np.inf
        nearest = np.argpartition(-similarities, count - 1, axis=1)[:, :count]
        votes = np.zeros((len(rows), int(labels.max()) + 1), dtype=np.int64)
        np.add.at(votes, (np.arange(len(rows))[:, None], labels[nearest]), 1)
        right += int((votes.argmax(axis=1) == labels[rows]).sum())
    return right / len(scaled)
