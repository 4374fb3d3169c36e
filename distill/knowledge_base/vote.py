"""What neighbours in a knowledge base make of a student's answer (ReAugKD, section 3.3).

A neighbour weighs as much as the student thinks it near: the weights are the softmax of ``s . z_k / tau``
over the k neighbours, which is the paper's q over the whole base, renormalised. Their soft labels, so
weighted, are mixed with the student's own probabilities.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Probabilities = NDArray[np.float64]


def softmax(logits: NDArray[np.floating]) -> Probabilities:
    """Return the softmax over the last axis, float64 of the same shape; -inf has no part in it."""
    wide = logits.astype(np.float64)
    raised = np.exp(wide - wide.max(axis=-1, keepdims=True))
    found: Probabilities = raised / raised.sum(axis=-1, keepdims=True)
    return found


def neighbour_weights(scores: NDArray[np.floating], tau: float) -> Probabilities:
    """Return what each neighbour weighs.

    Args:
        scores: cosines of n texts with their k neighbours, shape (n, k); -inf where there is no neighbour.
        tau: the temperature that the student was trained with.

    Returns:
        float64, shape (n, k); every row sums to 1.
    """
    return softmax(scores.astype(np.float64) / tau)


def neighbour_vote(
    scores: NDArray[np.floating], soft_labels: NDArray[np.floating], tau: float
) -> Probabilities:
    """Return the neighbours' answer.

    Args:
        scores: as for :func:`neighbour_weights`, shape (n, k).
        soft_labels: the teacher's probabilities for each neighbour, shape (n, k, c).
        tau: the temperature that the student was trained with.

    Returns:
        float64, shape (n, c); every row sums to 1 where the soft labels do.
    """
    weights = neighbour_weights(scores, tau)
    found: Probabilities = np.einsum("nk,nkc->nc", weights, soft_labels.astype(np.float64))
    return found


def mixed(student: Probabilities, voted: Probabilities, beta: float) -> Probabilities:
    """Return ``beta * student + (1 - beta) * voted``; all of shape (n, c)."""
    return beta * student + (1 - beta) * voted
