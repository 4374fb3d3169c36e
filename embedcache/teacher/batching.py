"""Batches of texts by length, and the vectors and counts that come out of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embedcache.codecs import Vectors


class EncodedTexts(NamedTuple):
    """Vectors of n texts.

    Attributes:
        vectors: float32, shape (n, d).
        tokens: int32, shape (n,); tokens of each text that the teacher saw; 0 if it cannot count them.
        truncated: bool, shape (n,); True for texts that were cut.
    """

    vectors: Vectors
    tokens: NDArray[np.int32]
    truncated: NDArray[np.bool_]


@dataclass
class EncodeCounts:
    """Texts that an encoder has encoded so far, and their tokens.

    Attributes:
        rows: texts encoded.
        tokens: their tokens.
        resumed: texts whose vectors a stopped build had encoded.
    """

    rows: int = 0
    tokens: int = 0
    resumed: int = 0


def token_budget_batches(lengths: NDArray[np.int64], batch_tokens: int) -> list[NDArray[np.int64]]:
    """Split rows into batches of like length, at most ``batch_tokens`` tokens each, padding counted.

    Longest first, so a batch too large for the memory shows at once. A row longer than the budget is a
    batch by itself. The result depends on the lengths alone, never on timing.

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
