"""Whether neighbours help, or were lucky: the interval of their lead over the student alone.

Both answer the same rows, so only those that one of them has right and the other wrong tell them apart. Had
neither an edge, each of these would fall to either side like a coin (McNemar, 1947). The exact interval of
that coin (Clopper and Pearson, 1934), as a share of all rows, is the interval of the lead; it lies above zero
just where the exact sign test says that chance alone makes such a lead in less than one case in twenty.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Interval: TypeAlias = tuple[float, float]
"""The ends of a 95 % interval."""

_TAIL = 0.025


def lead_interval(ours: NDArray[np.bool_], others: NDArray[np.bool_]) -> Interval:
    """Return the 95 % interval of a difference of accuracies on the same rows.

    It knows nothing of how ``ours`` came about: the best of many on these very rows leads by more than it
    would on others.

    Args:
        ours: which rows are right, bool of shape (n,), n above 0.
        others: which rows are right without, bool of shape (n,).
    """
    from scipy.special import betaincinv

    won, lost = int((ours & ~others).sum()), int((others & ~ours).sum())
    if not won + lost:
        return 0.0, 0.0
    least = float(betaincinv(won, lost + 1, _TAIL)) if won else 0.0
    most = float(betaincinv(won + 1, lost, 1 - _TAIL)) if lost else 1.0
    apart = (won + lost) / len(ours)
    return apart * (2 * least - 1), apart * (2 * most - 1)
