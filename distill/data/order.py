"""Order of a training's rows: all at once, or in windows where not all vectors are here."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from distill.data.targets import Targets
from distill.data.windows import GroupOrder, Order, WholeOrder
from distill.errors import ConfigError, DataError
from embedcache.corpus.corpus import Corpus
from embedcache.share.mirror import StreamedStore
from embedcache.sizes import readable


def make_order(
    limit: int | None, targets: Targets, corpus: Corpus, rows: NDArray[np.uint32], seed: int
) -> Order:
    """Return the order of the distinct rows of a corpus, those held out among them.

    Args:
        limit: bytes of fetched shards that may be kept at a time; None: all of them.
        targets: where they are; of no rows yet.
        corpus: the corpus, or the view of it that is encoded.
        rows: the rows, ascending.
        seed: chooses the order of shards.

    Raises:
        ConfigError: if two of the largest shards are more than the limit.
        DataError: if vectors are missing.
    """
    if limit is None:
        return WholeOrder()
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
        return WholeOrder()
    group_of, groups = _groups(numbers, len(sizes))
    # While one window is trained on, the next is fetched.
    room = limit // 2
    largest = max(sum(sizes[shard] for shard in group) for group in groups)
    if largest > room:
        raise ConfigError(
            f"stream.limit {readable(limit)} has to hold two windows, the one that is trained on and "
            f"the next, and a shard of each teacher, which a single row needs, takes {readable(largest)}: "
            f"give --cache-limit {readable(min(2 * largest, everything), up=True)} or more"
        )
    return GroupOrder(group_of, groups, sizes, names, room, seed)


def _groups(
    numbers: Sequence[NDArray[np.int64]], shards: int
) -> tuple[NDArray[np.uint32], list[tuple[int, ...]]]:
    """Return the group of each row, and the shards of each group: rows of the same shards are one."""
    together = np.zeros_like(numbers[0])
    for of_teacher in numbers:
        # Numbers of groups stay small: those of all teachers' shards multiplied would not.
        together = np.unique(together * shards + of_teacher, return_inverse=True)[1]
    _, first = np.unique(together, return_index=True)
    groups = [tuple(int(of_teacher[row]) for of_teacher in numbers) for row in first.tolist()]
    return together.astype(np.uint32), groups


def refuse_small_window(order: Order, needed: int, what: str) -> None:
    """See that the rows that are looked at before training begins are in the first window.

    Args:
        order: the order of all distinct rows.
        needed: how many rows are needed.
        what: what for, for the message.

    Raises:
        DataError: if the first window is too small.
    """
    if not isinstance(order, GroupOrder) or needed <= (there := len(order.windows(0).window(0))):
        return
    room, everything = order.room_for(needed)
    raise DataError(
        f"the first window has {there:,} rows, and {needed:,} are needed before training begins ({what}): "
        f"give --cache-limit {readable(min(2 * room, everything), up=True)} or more, or a smaller --held-out "
        "or loss.queue"
    )
