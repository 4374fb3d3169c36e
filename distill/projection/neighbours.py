"""How well labels are told by a row's nearest neighbours: what a projection is meant to better."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from embedcache.codecs import Vectors

NEIGHBOURS = 10
_ROWS_AT_ONCE = 512


def neighbour_accuracy(vectors: Vectors, labels: NDArray[np.int64], neighbours: int = NEIGHBOURS) -> float:
    """Return the share of rows whose label most of their nearest neighbours have, the row itself left out.

    Args:
        vectors: float32, shape (n, d), of any length; nearest is what has the highest cosine.
        labels: int64, shape (n,); numbers from 0. Of labels with as many votes the smallest wins.
        neighbours: those that vote, at most n - 1.
    """
    count = min(neighbours, len(vectors) - 1)
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    right = 0
    for start in range(0, len(unit), _ROWS_AT_ONCE):
        rows = np.arange(start, min(start + _ROWS_AT_ONCE, len(unit)))
        similarities = unit[rows] @ unit.T
        similarities[rows - start, rows] = -np.inf
        nearest = np.argpartition(-similarities, count - 1, axis=1)[:, :count]
        votes = np.zeros((len(rows), int(labels.max()) + 1), dtype=np.int64)
        np.add.at(votes, (np.arange(len(rows))[:, None], labels[nearest]), 1)
        right += int((votes.argmax(axis=1) == labels[rows]).sum())
    return right / len(unit)
