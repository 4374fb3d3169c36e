"""Prefetching of vectors from a remote: the order of rows is known."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from distill.data.windows import Order
from embedcache.share.mirror import StreamedStore
from embedcache.store import ShardStore

_ROWS_AT_ONCE = 1 << 18

Needs = list[list[list[int]]]
"""For each window of an epoch, for each store, the numbers of the shards it needs."""


class Ahead:
    """Prefetches the shards of the current and the next window.

    Args:
        stores: stores of the vectors; those that are not streamed are left alone.
        positions: of each row's vector in each of them.
        order: the order of rows.
        epochs: how many there are.
    """

    def __init__(
        self,
        stores: Sequence[ShardStore],
        positions: Sequence[NDArray[np.integer]],
        order: Order,
        epochs: int,
    ) -> None:
        self._order, self._epochs = order, epochs
        self._streams = [
            (store, places)
            for store, places in zip(stores, positions, strict=True)
            if isinstance(store, StreamedStore)
        ]
        self._reached = (-1, -1)
        # The epoch that is trained on, and the one after it.
        self._needs = lru_cache(maxsize=2)(self._find_needs)

    def begin(self) -> None:
        """Fetch the first window."""
        if self._streams:
            self._want(0, 0)

    def reach(self, rows: NDArray[np.integer], epoch: int) -> None:
        """Fetch the windows of ``rows`` and after, once ``rows`` are needed.

        Args:
            rows: places among the rows trained on.
            epoch: the epoch they are of.
        """
        if not self._streams:
            return
        window = int(self._order.window_of(rows, epoch).max())
        if (epoch, window) != self._reached:
            self._reached = (epoch, window)
            self._want(epoch, window)

    def _want(self, epoch: int, window: int) -> None:
        windows = self._needs(epoch)[window : window + 2]
        if len(windows) == 1 and epoch + 1 < self._epochs:
            windows = [*windows, self._needs(epoch + 1)[0]]
        for number, (store, _) in enumerate(self._streams):
            store.want(*(needs[number] for needs in windows))

    def _find_needs(self, epoch: int) -> Needs:
        rows = len(self._streams[0][1])
        found: dict[int, list[set[int]]] = {0: [set() for _ in self._streams]}
        for start in range(0, rows, _ROWS_AT_ONCE):
            block = np.arange(start, min(start + _ROWS_AT_ONCE, rows))
            windows = self._order.window_of(block, epoch).astype(np.int64)
            for number, (store, positions) in enumerate(self._streams):
                shards = store.shards_at(positions[block].astype(np.int64))
                count = len(store.shard_sizes)
                for both in np.unique(windows * count + shards).tolist():
                    window, shard = divmod(both, count)
                    found.setdefault(window, [set() for _ in self._streams])[number].add(shard)
        nothing: list[set[int]] = [set() for _ in self._streams]
        return [[sorted(shards) for shards in found.get(window, nothing)] for window in range(max(found) + 1)]
