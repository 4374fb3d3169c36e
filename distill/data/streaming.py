"""Training on vectors that are fetched on the way: which rows share a window, and what to fetch next."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from distill.data.targets import Targets
from distill.data.windows import GroupOrder, Order
from distill.errors import ConfigError, DataError
from embedcache.corpus.corpus import Corpus
from embedcache.share.mirror import StreamedStore
from embedcache.sizes import readable
from embedcache.store import ShardStore

_ROWS_AT_ONCE = 1 << 18

Needs = list[list[list[int]]]
"""For each window of an epoch, for each store, the numbers of the shards it needs."""


def make_order(
    limit: int | None, targets: Targets, corpus: Corpus, rows: NDArray[np.uint32], seed: int
) -> Order:
    """Return the order of the distinct rows of a corpus, held-out ones included.

    Args:
        limit: most bytes of fetched shards that are kept at a time; None: any number.
        targets: the targets, not joined with rows yet.
        corpus: the corpus, or the view of it that is encoded.
        rows: the rows, ascending.
        seed: of the order of shards.

    Raises:
        ConfigError: if two of the largest shards are more than the limit.
        DataError: if vectors are missing.
    """
    if limit is None:
        return Order()
    positions = targets.join(corpus, rows, rows[:0]).positions
    numbers, sizes, names = list[NDArray[np.int64]](), list[int](), list[str]()
    for store, places in zip(targets.stores, positions, strict=True):
        if isinstance(store, StreamedStore):
            numbers.append(store.shards_at(places.astype(np.int64)) + len(sizes))
            sizes += store.shard_sizes
            names += store.shard_names
    needed = np.unique(np.concatenate([np.unique(shards) for shards in numbers])).tolist()
    everything = sum(sizes[shard] for shard in needed)
    if everything <= limit:
        return Order()
    group_of, groups = _groups(numbers, len(sizes))
    # The next window is fetched while one is trained on.
    room = limit // 2
    largest = max(sum(sizes[shard] for shard in group) for group in groups)
    if largest > room:
        raise ConfigError(
            f"{readable(limit)} has to hold two windows, and one row needs {readable(largest)} of shards: "
            f"give --cache-limit {readable(min(2 * largest, everything), up=True)} or more",
            "stream.limit",
        )
    return GroupOrder(group_of, groups, sizes, names, room, seed)


def _groups(
    numbers: Sequence[NDArray[np.int64]], shards: int
) -> tuple[NDArray[np.uint32], list[tuple[int, ...]]]:
    """Return the group of each row, and the shards of each group: rows of the same shards are one."""
    together = np.zeros_like(numbers[0])
    for of_teacher in numbers:
        # Renumbered each time, so that the product stays small.
        together = np.unique(together * shards + of_teacher, return_inverse=True)[1]
    _, first = np.unique(together, return_index=True)
    groups = [tuple(int(of_teacher[row]) for of_teacher in numbers) for row in first.tolist()]
    return together.astype(np.uint32), groups


def refuse_small_window(order: Order, needed: int, what: str) -> None:
    """Raise :class:`DataError` if the first window has fewer rows than are needed before training begins.

    Args:
        order: the order of all distinct rows.
        needed: how many rows are needed.
        what: their purpose, for the message.
    """
    if not isinstance(order, GroupOrder) or needed <= (there := len(order.windows(0).window(0))):
        return
    room, everything = order.room_for(needed)
    raise DataError(
        f"the first window has {there:,} rows, and {needed:,} are needed before training begins ({what}): "
        f"give --cache-limit {readable(min(2 * room, everything), up=True)} or more, or a smaller --held-out "
        "or --queue"
    )


class Ahead:
    """Prefetches the shards of the current and the next window.

    Args:
        stores: stores of the vectors; only streamed ones are prefetched.
        positions: of each row's vector in each store.
        order: the order of rows.
        epochs: number of epochs.
    """

    def __init__(
        self,
        stores: Sequence[ShardStore],
        positions: Sequence[NDArray[np.integer]],
        order: Order,
        epochs: int,
    ) -> None:
        self._order, self._epochs = order, epochs
        both = zip(stores, positions, strict=True)
        self._streams = [(store, places) for store, places in both if isinstance(store, StreamedStore)]
        self._reached = (-1, -1)
        # The current epoch and the next.
        self._needs = lru_cache(maxsize=2)(self._find_needs)

    def begin(self) -> None:
        """Fetch the first window."""
        if self._streams:
            self._want(0, 0)

    def reach(self, rows: NDArray[np.integer], epoch: int) -> None:
        """Fetch the window of ``rows``, indices of training rows, and the one after it."""
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
        found: list[list[set[int]]] = []
        rows = len(self._streams[0][1])
        for start in range(0, rows, _ROWS_AT_ONCE):
            block = np.arange(start, min(start + _ROWS_AT_ONCE, rows))
            windows = self._order.window_of(block, epoch).astype(np.int64)
            while len(found) <= windows.max():
                found.append([set() for _ in self._streams])
            for number, (store, positions) in enumerate(self._streams):
                count = len(store.shard_sizes)
                both = windows * count + store.shards_at(positions[block].astype(np.int64))
                for window, shard in (divmod(one, count) for one in np.unique(both).tolist()):
                    found[window][number].add(shard)
        return [[sorted(shards) for shards in window] for window in found]
