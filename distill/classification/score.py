"""How good a classifier is: accuracy, macro F1 and Matthews' correlation."""

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


def matthews(predicted: NDArray[np.int64], labels: NDArray[np.int64]) -> float:
    """Return Matthews' correlation of what is said with what is right, -1 to 1.

    It is 0 where either is one label alone.

    Source: for two labels Matthews (1975), for more Gorodkin (2004), "Comparing two K-category assignments by
    a K-category correlation coefficient", Eq. 8. It is the measure of CoLA.

    Args:
        predicted: int64, shape (n,), n above 0; numbers from 0.
        labels: the same of what is right.
    """
    count = max(int(predicted.max()), int(labels.max())) + 1
    said = np.bincount(predicted, minlength=count).astype(np.float64)
    are = np.bincount(labels, minlength=count).astype(np.float64)
    rows = float(len(labels))
    spread = (rows**2 - said @ said) * (rows**2 - are @ are)
    if spread == 0:
        return 0.0
    return float((rows * (predicted == labels).sum() - said @ are) / np.sqrt(spread))
