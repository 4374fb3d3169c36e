"""Token-budget batches: texts of like length together, so that little of a forward pass is padding."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def token_budget_batches(lengths: NDArray[np.int64], batch_tokens: int) -> list[NDArray[np.int64]]:
    """Split rows into batches of at most ``batch_tokens`` tokens, padding counted.

    Longest first, so that a batch too large for the memory shows at once. A row longer than the budget gets a
    batch of its own. The result depends on the lengths alone, never on timing.

    Args:
        lengths: tokens of each row, shape (n,).
        batch_tokens: budget of a batch: rows x tokens of its longest row.

    Returns:
        Arrays of row numbers; together they hold every row exactly once.
    """
    order = np.argsort(-lengths, kind="stable")
    batches = []
    start = 0
    while start < len(order):
        longest = max(1, int(lengths[order[start]]))
        end = start + max(1, batch_tokens // longest)
        batches.append(order[start:end])
        start = end
    return batches
