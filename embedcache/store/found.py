"""Where rows of a store lie, shard by shard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedcache.store.shard import Shard


@dataclass(frozen=True)
class Found:
    """Where the rows at some positions of a store lie.

    Attributes:
        order: int64, shape (n,); the positions' own order, sorted by shard.
        places: int64, shape (n,), in that order; the row of each in its shard.
        runs: the shards, and which of ``places`` are rows of them.
    """

    order: NDArray[np.int64]
    places: NDArray[np.int64]
    runs: list[tuple[Shard, slice]]

    def as_asked(self, ordered: NDArray[Any]) -> NDArray[Any]:
        """Return rows that are sorted by shard in the order of the positions."""
        if len(self.runs) < 2:
            return ordered
        rows = np.empty_like(ordered)
        rows[self.order] = ordered
        return rows
