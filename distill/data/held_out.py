"""Which rows are kept out of training, drawn by a seed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from distill.data.sampler import permutation

HELD_OUT_STREAM = 2**31 - 1
"""Epoch number of the permutation that picks held-out rows; no training reaches it."""


def draw_held_out(rows: int, count: int, seed: int) -> NDArray[np.int64]:
    """Return ``count`` of the numbers below ``rows``, drawn at random."""
    return permutation(rows, seed, HELD_OUT_STREAM, first=count).astype(np.int64)


def rows_of_drawn(texts: Sequence[str], count: int, seed: int) -> NDArray[np.bool_]:
    """Return which rows are of ``count`` texts drawn at random, shape (rows,).

    Rows of one text stay together: else the held-out ones would not be new to what is trained.

    Args:
        texts: the text of each row.
        count: how many different texts to draw.
        seed: chooses them.
    """
    distinct = list(dict.fromkeys(texts))
    drawn = {distinct[place] for place in draw_held_out(len(distinct), count, seed).tolist()}
    return np.array([text in drawn for text in texts], dtype=np.bool_)
