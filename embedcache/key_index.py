"""From keys to positions: sorted arrays and binary search, 24 bytes a row, rebuilt when shards are opened."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from embedcache.keys import KEY_BYTES, KeyArray


def _halves(keys: KeyArray) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    # Two machine words compare far faster than sixteen bytes do.
    words = np.ascontiguousarray(keys).view(np.uint64).reshape(-1, KEY_BYTES // 8)
    return words[:, 0], words[:, 1]


class KeyIndex:
    """Finds keys among n keys.

    Args:
        keys: dtype ``V16``, shape (n,). Where a key stands several times, its first place counts.
    """

    def __init__(self, keys: KeyArray) -> None:
        first, second = _halves(keys)
        order = np.lexsort((second, first))
        first, second = first[order], second[order]
        fresh = np.ones(len(order), dtype=np.bool_)
        fresh[1:] = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
        # lexsort is stable, so the first of equal keys is the one that came first.
        self._first, self._second, self._places = first[fresh], second[fresh], order[fresh]

    def __len__(self) -> int:
        """Return the number of distinct keys."""
        return len(self._places)

    def locate(self, keys: KeyArray) -> NDArray[np.int64]:
        """Return the place of each key in the array given at first, -1 where it is missing."""
        places = np.full(len(keys), -1, dtype=np.int64)
        if not len(self._places) or not len(keys):
            return places
        first, second = _halves(keys)
        at = np.searchsorted(self._first, first, side="left")
        open_rows = np.arange(len(keys))
        # Keys that share their first half lie side by side; nearly always there is one.
        while len(open_rows):
            inside = at[open_rows] < len(self._places)
            open_rows = open_rows[inside]
            candidate = at[open_rows]
            same_first = self._first[candidate] == first[open_rows]
            hit = same_first & (self._second[candidate] == second[open_rows])
            places[open_rows[hit]] = self._places[candidate[hit]]
            open_rows = open_rows[same_first & ~hit]
            at[open_rows] += 1
        return places

    def first_places(self) -> NDArray[np.int64]:
        """Return the places of the distinct keys in ascending order: each key's first occurrence."""
        return np.sort(self._places)
