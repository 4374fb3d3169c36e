"""Some of the keys of a corpus, part by part."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from embedcache.keys import KeyArray


class PickedKeys(Sequence[KeyArray]):
    """The keys of the rows that a mask picks, taken part by part when asked for.

    Args:
        parts: all keys.
        mask: bool, shape (rows,).
    """

    def __init__(self, parts: Sequence[KeyArray], mask: NDArray[np.bool_]) -> None:
        self._parts, self._mask = parts, mask
        self._starts = [0, *accumulate(len(part) for part in parts)]

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, number: int) -> KeyArray:  # type: ignore[override]  # nobody slices it
        inside = slice(self._starts[number], self._starts[number + 1])
        return self._parts[number][self._mask[inside]]
