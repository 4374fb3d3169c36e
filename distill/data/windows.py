"""Order of training rows by windows, so that only the vectors of two windows are needed at a time.

An order cuts the rows of an epoch into consecutive windows; inside a window rows are shuffled, and bucketed
by length or not, as in a whole epoch. It depends only on the rows, their shards, the seed and the epoch, so
it is the same in every process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from distill.data.sampler import BUCKET_BATCHES, EpochBatches, Lengths, permutation, sort_buckets

# Third numbers of streams of random words; the sampler's have a 1 or none.
_ROWS_STREAM, _BATCHES_STREAM, _GROUPS_STREAM = 2, 3, 4

Rows = NDArray[np.uint32]


@dataclass(frozen=True)
class Windows:
    """The windows of one epoch.

    Attributes:
        rows: uint32, shape (n,); indices of training rows, window after window.
        edges: int64, shape (windows + 1,); the start of each window in ``rows``, and n.
    """

    rows: Rows
    edges: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of windows."""
        return len(self.edges) - 1

    def window(self, number: int) -> Rows:
        """Return the rows of a window."""
        return self.rows[self.edges[number] : self.edges[number + 1]]


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

    There are as many batches as without windows: a batch in which a window ends is filled with rows of the
    next one, and comes between the batches of the two.

    Args:
        windows: the windows.
        lengths: tokens of each row.
        batch_size: rows a batch; the last one of an epoch may be smaller.
        seed, epoch: these determine the order inside a window.
        bucket_batches: batches a bucket of rows of like length; 1 gives random batches.
    """
    order = np.empty_like(windows.rows)
    count = -(-len(order) // batch_size)
    sequence = np.arange(count, dtype=np.uint32)
    for number, (start, end) in enumerate(pairwise(windows.edges.tolist())):
        shuffled = permutation(end - start, seed, epoch, _ROWS_STREAM, number)
        order[start:end] = windows.window(number)[shuffled]
        # The batches that are of this window alone.
        first, last = -(-start // batch_size), count if end == len(order) else end // batch_size
        stop = min(last * batch_size, end)
        sort_buckets(order[first * batch_size : stop], lengths, batch_size, bucket_batches)
        if last > first:
            mixed = permutation(last - first, seed, epoch, _BATCHES_STREAM, number)
            sequence[first:last] = first + mixed
    return EpochBatches(order, batch_size, sequence, (windows.edges[1:-1] // batch_size).tolist())


class WindowOrder:
    """Windows of groups, the rows whose vectors are in the same shards, in a random order every epoch.

    A window holds as many groups as fit; its composition changes with the epoch.

    Args:
        group_of: shape (n,); the group of each row.
        shards: the shards of each group.
        sizes: bytes of each shard, by number.
        names: digest or name of each shard, by number.
        room: most bytes of the shards of a window; no group may be larger.
        seed: of the order of the groups.
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
        self._group_of, self._shards, self._sizes, self._names = group_of, shards, sizes, names
        self._room, self._seed = room, seed
        # The current epoch, and the next one for its first window.
        self._window_of_group = lru_cache(maxsize=2)(self._packed)

    def windows(self, epoch: int) -> Windows:
        """Return the windows of an epoch."""
        window_of = self._window_of_group(epoch)[self._group_of]
        edges = np.cumsum([0, *np.bincount(window_of)], dtype=np.int64)
        return Windows(np.argsort(window_of, kind="stable").astype(np.uint32), edges)

    def window_of(self, rows: NDArray[np.integer], epoch: int) -> NDArray[np.integer]:
        """Return the window of each of ``rows`` in an epoch, in the order asked."""
        found: NDArray[np.uint32] = self._window_of_group(epoch)[self._group_of[rows]]
        return found

    def shards(self, epoch: int) -> list[list[int]]:
        """Return the numbers of the shards of each window of an epoch, ascending."""
        window_of = self._window_of_group(epoch)
        found = [set[int]() for _ in range(int(window_of.max()) + 1)]
        for window, shards in zip(window_of.tolist(), self._shards, strict=True):
            found[window].update(shards)
        return [sorted(shards) for shards in found]

    @property
    def digest(self) -> str:
        """The sha256 of room, shards of the rows and their order."""
        # Unused shards that come between change the numbers, but not the order.
        needed = sorted({shard for group in self._shards for shard in group})
        place = {shard: number for number, shard in enumerate(needed)}
        groups = [[place[shard] for shard in group] for group in self._shards]
        shards = [[self._names[shard], self._sizes[shard]] for shard in needed]
        digest = hashlib.sha256(f"{self._room} {groups} {shards}".encode())
        digest.update(np.ascontiguousarray(self._group_of, dtype=np.uint32).data)
        return digest.hexdigest()

    def restricted(self, rows: NDArray[np.integer] | NDArray[np.bool_]) -> WindowOrder:
        """Return the order of some of the rows."""
        return WindowOrder(
            self._group_of[rows], self._shards, self._sizes, self._names, self._room, self._seed
        )

    def _packed(self, epoch: int) -> NDArray[np.uint32]:
        """Return the window of each group in an epoch."""
        window_of = np.empty(len(self._shards), dtype=np.uint32)
        number, held = 0, set[int]()
        for group in self._in_turn(epoch):
            if held and sum(self._sizes[shard] for shard in held.union(self._shards[group])) > self._room:
                number, held = number + 1, set()
            held.update(self._shards[group])
            window_of[group] = number
        return window_of

    def _in_turn(self, epoch: int) -> list[int]:
        """Return the groups in the order in which an epoch goes over them."""
        distinct, lead_of = np.unique([group[0] for group in self._shards], return_inverse=True)
        mixed = permutation(len(distinct), self._seed, epoch, _GROUPS_STREAM)
        rank = np.empty(len(distinct), dtype=np.int64)
        rank[mixed] = np.arange(len(distinct))
        # Groups of one shard of the first teacher stay together: they share shards of the others.
        found: list[int] = np.argsort(rank[lead_of], kind="stable").tolist()
        return found


def draw(order: WindowOrder | None, rows: int, seed: int, stream: int, count: int) -> NDArray[np.int64]:
    """Draw ``count`` of ``rows`` indices at random, int64; with windows, of the first one.

    Args:
        order: the order; None: all rows are shuffled together.
        rows: number of rows.
        seed, stream: the draw depends on them only.
        count: number of rows to draw, at most the size of the window.
    """
    if order is None:
        return permutation(rows, seed, stream, first=count).astype(np.int64)
    among = order.windows(0).window(0)
    return among[permutation(len(among), seed, stream, first=count)].astype(np.int64)
