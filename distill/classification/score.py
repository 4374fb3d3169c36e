"""How good a classifier is: accuracy and macro F1."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def accuracy(predicted: NDArray[np.int64], labels: NDArray[np.int64]) -> float:
    """Return the share of rows that are right, 0 to 1; both arrays have shape (n,), n above 0."""
    return float((predicted == labels).mean())


def macro_f1(predicted: NDArray[np.int64], labels: NDArray[np.int64]) -> float:
    """Return the mean of the F1 of all labels that a row has or is said to have, 0 to 1."""
    scores = []
    for label in np.union1d(predicted, labels):
        said, is_one = predicted == label, labels == label
        scores.append(2 * (said & is_one).sum() / (said.sum() + is_one.sum()))
    return float(np.mean(scores))
