"""Orders that go over the rows window by window, so that not all of their vectors have to be here at once.

An order cuts the rows of an epoch into windows, one after the other; inside a window rows are shuffled and
put together by length as in a whole epoch. It is fixed before anything is trained: a function of the rows,
what the windows are cut by, the seed and the epoch, the same in every process and whenever it is asked.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from distill.data.sampler import (
    BUCKET_BATCHES,
    EpochBatches,
    Lengths,
    epoch_batches,
    permutation,
    stream_permutation,
)

# Third numbers of streams of random words; the sampler's own has a 1 there, or no third number.
_ROWS_STREAM, _BATCHES_STREAM, _GROUPS_STREAM = 2, 3, 4

_ROWS_AT_ONCE = 1 << 18

Rows = NDArray[np.uint32]


@dataclass(frozen=True)
class Windows:
    """The windows of one epoch.

    Attributes:
        rows: uint32, shape (n,); places of rows among those trained on, window after window.
        edges: int64, shape (windows + 1,); where in ``rows`` each window begins, and n.
    """

    rows: Rows
    edges: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of windows."""
        return len(self.edges) - 1

    def window(self, number: int) -> Rows:
        """Return the rows of a window."""
        return self.rows[self.edges[number] : self.edges[number + 1]]


class Order(ABC):
    """In which order the rows are trained on."""

    def windows(self, epoch: int) -> Windows | None:
        """Return the windows of an epoch; None where all rows are shuffled together."""
        return None

    @abstractmethod
    def window_of(self, rows: NDArray[np.integer], epoch: int) -> NDArray[np.integer]:
        """Return the window of each of ``rows`` in an epoch, in the order asked."""

    @abstractmethod
    def restricted(self, rows: NDArray[np.integer] | NDArray[np.bool_]) -> Order:
        """Return the order of some of the rows, in numbers or by a mask; each is in the window it was in."""

    @property
    def digest(self) -> str | None:
        """What the windows are cut by, where it is more than the settings say; None where it is not."""
        return None

    def batches(self, lengths: Lengths, batch_size: int, *, seed: int, epoch: int) -> EpochBatches:
        """Return the batches of an epoch; every row stands in exactly one.

        Args:
            lengths: tokens of each row.
            batch_size: rows a batch.
            seed, epoch: what the order inside a window is a function of.
        """
        windows = self.windows(epoch)
        if windows is None:
            return epoch_batches(lengths, batch_size, seed=seed, epoch=epoch)
        return windowed_batches(windows, lengths, batch_size, seed=seed, epoch=epoch)


def windowed_batches(
    windows: Windows,
    lengths: Lengths,
    batch_size: int,
    *,
    seed: int,
    epoch: int,
    bucket_batches: int = BUCKET_BATCHES,
) -> EpochBatches:
    """Return the batches of one epoch, window after window.

    There are as many batches as without windows: where a window ends in the midst of a batch, that batch is
    filled up with rows of the next window, and stands between the batches of the two.

    Args:
        windows: the windows.
        lengths: tokens of each row.
        batch_size: rows a batch; the last one of an epoch may be smaller.
        seed, epoch: what the order inside a window is a function of.
        bucket_batches: batches a bucket of rows of like length.
    """
    order = np.empty_like(windows.rows)
    count = -(-len(order) // batch_size)
    sequence = np.arange(count, dtype=np.uint32)
    bucket_rows = batch_size * bucket_batches
    for number, (start, end) in enumerate(pairwise(windows.edges.tolist())):
        shuffled = stream_permutation(end - start, (seed, epoch, _ROWS_STREAM, number))
        order[start:end] = windows.window(number)[shuffled]
        # The batches that are of this window alone.
        first, last = -(-start // batch_size), count if end == len(order) else end // batch_size
        stop = min(last * batch_size, end)
        for begin in range(first * batch_size, stop, bucket_rows):
            bucket = order[begin : min(begin + bucket_rows, stop)]
            bucket[:] = bucket[np.argsort(lengths[bucket], kind="stable")]
        if last > first:
            mixed = stream_permutation(last - first, (seed, epoch, _BATCHES_STREAM, number))
            sequence[first:last] = first + mixed
    return EpochBatches(order, batch_size, sequence, (windows.edges[1:-1] // batch_size).tolist())


class WholeOrder(Order):
    """All rows are shuffled together, in every epoch."""

    def window_of(self, rows: NDArray[np.integer], epoch: int) -> NDArray[np.integer]:
        """Return 0 for each row."""
        return np.zeros(len(rows), dtype=np.int64)

    def restricted(self, rows: NDArray[np.integer] | NDArray[np.bool_]) -> WholeOrder:
        """Return this order."""
        return self


class GroupOrder(Order):
    """Rows whose vectors lie in the same shards are a group; an epoch goes over groups in a random order.

    As many groups as fit are one window, in another composition every epoch.

    Args:
        group_of: shape (n,); the group of each row.
        shards: the shards of each group.
        sizes: bytes of each shard, by number.
        names: what the bytes of each shard are known by, by number.
        room: bytes that the shards of a window may have together.
        seed: chooses the order of the groups.

    Raises:
        ValueError: if a group is larger than ``room``.
    """

    def __init__(
        self,
        group_of: NDArray[np.integer],
        shards: Sequence[Sequence[int]],
        sizes: Sequence[int],
        names: Sequence[str],
        room: int,
        seed: int,
    ) -> None:
        largest = max((sum(sizes[shard] for shard in group) for group in shards), default=0)
        if largest > room:
            raise ValueError(f"a group of shards has {largest:,} bytes, and {room:,} are allowed")
        self._group_of, self._shards, self._sizes, self._names = group_of, shards, sizes, names
        self._room, self._seed = room, seed
        # Two epochs are asked for in turn: the one that is trained on, and the next for its first window.
        self._window_of_group = lru_cache(maxsize=2)(self._packed)

    def windows(self, epoch: int) -> Windows:
        """Return the windows of an epoch."""
        return _cut(len(self._group_of), lambda rows: self.window_of(rows, epoch))

    def window_of(self, rows: NDArray[np.integer], epoch: int) -> NDArray[np.integer]:
        """Return the window of each of ``rows`` in an epoch, in the order asked."""
        found: NDArray[np.uint32] = self._window_of_group(epoch)[self._group_of[rows]]
        return found

    def room_for(self, rows: int) -> tuple[int, int]:
        """Return with how much room the first window has ``rows`` rows, and the bytes of all shards."""
        counts = np.bincount(self._group_of, minlength=len(self._shards))
        held, room, left = set[int](), 0, rows
        for group in self._in_turn(0):
            if left <= 0:
                break
            room += sum(self._sizes[shard] for shard in set(self._shards[group]) - held)
            held.update(self._shards[group])
            left -= int(counts[group])
        everything = {shard for group in self._shards for shard in group}
        return room, sum(self._sizes[shard] for shard in everything)

    @property
    def digest(self) -> str | None:
        """The sha256 of what the windows are cut by: the room, the shards of the rows and their order."""
        # Numbers of shards change when others come between them, of which no row is read.
        needed = sorted({shard for group in self._shards for shard in group})
        place = {shard: number for number, shard in enumerate(needed)}
        groups = [[place[shard] for shard in group] for group in self._shards]
        shards = [[self._names[shard], self._sizes[shard]] for shard in needed]
        digest = hashlib.sha256(f"{self._room} {groups} {shards}".encode())
        digest.update(np.ascontiguousarray(self._group_of, dtype=np.uint32).data)
        return digest.hexdigest()

    def restricted(self, rows: NDArray[np.integer] | NDArray[np.bool_]) -> GroupOrder:
        """Return the order of some of the rows."""
        return GroupOrder(
            self._group_of[rows], self._shards, self._sizes, self._names, self._room, self._seed
        )

    def _packed(self, epoch: int) -> NDArray[np.uint32]:
        """Return the window of each group in an epoch."""
        window_of = np.empty(len(self._shards), dtype=np.uint32)
        number, used, held = 0, 0, set[int]()
        for group in self._in_turn(epoch):
            fresh = set(self._shards[group]) - held
            size = sum(self._sizes[shard] for shard in fresh)
            if held and used + size > self._room:
                number, used, held = number + 1, 0, set()
                fresh = set(self._shards[group])
                size = sum(self._sizes[shard] for shard in fresh)
            used, held = used + size, held | fresh
            window_of[group] = number
        return window_of

    def _in_turn(self, epoch: int) -> list[int]:
        """Return the groups in the order in which an epoch goes over them."""
        distinct, lead_of = np.unique([group[0] for group in self._shards], return_inverse=True)
        mixed = stream_permutation(len(distinct), (self._seed, epoch, _GROUPS_STREAM))
        rank = np.empty(len(distinct), dtype=np.int64)
        rank[mixed] = np.arange(len(distinct))
        # Groups of one shard of the first teacher stay together: of the others' shards they share some.
        found: list[int] = np.argsort(rank[lead_of], kind="stable").tolist()
        return found


def draw(order: Order, rows: int, seed: int, stream: int, count: int) -> NDArray[np.int64]:
    """Return ``count`` of ``rows`` places, drawn at random among those of the first window.

    Args:
        order: the order.
        rows: how many rows there are.
        seed, stream: what the draw is a function of.
        count: how many to draw, at most as many as the window has.
    """
    windows = order.windows(0)
    if windows is None:
        return permutation(rows, seed, stream, first=count).astype(np.int64)
    among = np.sort(windows.window(0))
    return among[permutation(len(among), seed, stream, first=count)].astype(np.int64)


class _Blocks:
    """The numbers below ``rows``, some at a time, as often as they are gone over."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        for start in range(0, self._rows, _ROWS_AT_ONCE):
            yield np.arange(start, min(start + _ROWS_AT_ONCE, self._rows))


def _cut(rows: int, window_of: Callable[[NDArray[np.int64]], NDArray[np.integer]]) -> Windows:
    """Return windows, given what tells the window of each of ``rows`` rows; some may be empty."""
    blocks = _Blocks(rows)
    last = max((int(window_of(block).max()) for block in blocks), default=-1)
    counts = np.zeros(last + 1, dtype=np.int64)
    for block in blocks:
        counts += np.bincount(window_of(block), minlength=last + 1)
    edges = np.cumsum([0, *counts], dtype=np.int64)
    order = np.empty(rows, dtype=np.uint32)
    free = edges[:-1].copy()
    # Block by block: sorting the windows of all rows at once would take eight bytes a row.
    for block in blocks:
        windows = window_of(block)
        sorted_rows = np.argsort(windows, kind="stable")
        found, begins, sizes = np.unique(windows[sorted_rows], return_index=True, return_counts=True)
        inside = np.arange(len(block)) - np.repeat(begins, sizes)
        order[np.repeat(free[found], sizes) + inside] = block[sorted_rows]
        free[found] += sizes
    return Windows(order, edges)
