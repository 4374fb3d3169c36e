"""The order of training rows: a pure function of (seed, epoch), in batches of like length or of random rows.

An epoch's order takes one uint32 a row. It is computed from small parts of the corpus: random words are drawn
again where keeping them would cost eight bytes a row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import Protocol, overload

import numpy as np
from numpy.typing import NDArray

BUCKET_BATCHES = 64
ORDERS = {"bucketed": BUCKET_BATCHES, "random": 1}
"""Batches a bucket of each order of rows."""

MOST_ROWS = 2**32 - 1
"""Most rows of an order: row numbers, and the one after the last, take four bytes."""

HELD_OUT_STREAM = 2**31 - 1
"""Epoch number of the permutation that draws held-out rows; no training reaches it."""

_PARTITION_ROWS = 2**18
_MOST_PARTITION_BITS = 5
_DRAWN_AT_ONCE = 2**16


class Lengths(Protocol):
    """Token counts of n rows: an array, or an object that looks them up."""

    def __len__(self) -> int:
        """Return n."""
        ...

    def __getitem__(self, rows: NDArray[np.uint32], /) -> NDArray[np.integer]:
        """Return the tokens of each of ``rows``, in the order asked."""
        ...


class EpochBatches(Sequence[NDArray[np.uint32]]):
    """The batches of one epoch, cut from one array on access.

    Args:
        order: uint32, shape (n,); the rows, batch after batch.
        batch_size: rows a batch; the last of ``order`` may be smaller.
        sequence: uint32; the batches' numbers in training order.
        breaks: positions in that order that begin a new window, whose vectors may not have been fetched.
    """

    def __init__(
        self,
        order: NDArray[np.uint32],
        batch_size: int,
        sequence: NDArray[np.uint32],
        breaks: Collection[int] = (),
    ) -> None:
        self._order, self._batch_size, self._sequence = order, batch_size, sequence
        self._breaks = breaks

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self._sequence)

    def windows(self, start: int = 0) -> Iterator[list[NDArray[np.uint32]]]:
        """Yield the batches from ``start`` on, window by window."""
        inside = sorted({number for number in self._breaks if start < number < len(self)})
        for first, end in pairwise([start, *inside, len(self)]):
            if first < end:
                yield self[first:end]

    @overload
    def __getitem__(self, number: int) -> NDArray[np.uint32]: ...

    @overload
    def __getitem__(self, number: slice) -> list[NDArray[np.uint32]]: ...

    def __getitem__(self, number: int | slice) -> NDArray[np.uint32] | list[NDArray[np.uint32]]:
        """Return the rows of the batch at position ``number`` of the training; a list for a slice."""
        if isinstance(number, slice):
            return [self[one] for one in range(len(self))[number]]
        start = int(self._sequence[number]) * self._batch_size
        return self._order[start : start + self._batch_size]


def permutation(n: int, *stream: int, first: int | None = None) -> NDArray[np.uint32]:
    """Return a permutation of ``range(n)`` that depends on ``n`` and the numbers of a stream only.

    It sorts raw random words, which numpy promises never to change, unlike ``Generator.permutation``.

    Args:
        n: number of rows; at most ``MOST_ROWS``.
        stream: numbers that identify the permutation, such as seed and epoch.
        first: return only this many numbers of its beginning.
    """
    order = np.empty(n if first is None else min(first, n), dtype=np.uint32)
    done, parts = 0, _ordered_parts(n, stream)
    while done < len(order):
        part = next(parts)[: len(order) - done]
        order[done : done + len(part)] = part
        done += len(part)
    return order


def epoch_batches(
    lengths: Lengths,
    batch_size: int,
    *,
    seed: int,
    epoch: int,
    bucket_batches: int = BUCKET_BATCHES,
) -> EpochBatches:
    """Return the batches of one epoch; every row is in exactly one.

    Rows are shuffled, cut into buckets of ``bucket_batches`` batches, sorted by length inside a bucket, and
    cut into batches, which are shuffled over the epoch: padding is small, and neither the rows of a batch nor
    the order of batches repeats. Buckets of one batch are not sorted: batches are random rows.

    Args:
        lengths: tokens of each row, n of them.
        batch_size: rows a batch; the last one of an epoch may be smaller.
        seed, epoch: the order depends on them only.
        bucket_batches: batches a bucket; 1 gives random batches.
    """
    order = permutation(len(lengths), seed, epoch)
    sort_buckets(order, lengths, batch_size, bucket_batches)
    count = -(-len(order) // batch_size)
    # Streams of different numbers are independent.
    return EpochBatches(order, batch_size, permutation(count, seed, epoch, 1))


def sort_buckets(rows: NDArray[np.uint32], lengths: Lengths, batch_size: int, bucket_batches: int) -> None:
    """Sort the rows of each bucket by length, in place; see ``epoch_batches``."""
    if bucket_batches == 1:
        return
    bucket_rows = batch_size * bucket_batches
    for start in range(0, len(rows), bucket_rows):
        bucket = rows[start : start + bucket_rows]
        bucket[:] = bucket[np.argsort(lengths[bucket], kind="stable")]


def _ordered_parts(n: int, stream: tuple[int, ...]) -> Iterator[NDArray[np.uint32]]:
    """Yield ``argsort(words, kind="stable")`` of n random words in parts of equal leading bits."""
    bits = min(_MOST_PARTITION_BITS, ((n - 1) // _PARTITION_ROWS).bit_length())
    beginning = np.uint64(64 - bits)
    for partition in range(2**bits):
        generator = np.random.PCG64(np.random.SeedSequence(stream))
        words, rows = [], []
        for start in range(0, n, _DRAWN_AT_ONCE):
            drawn = generator.random_raw(min(_DRAWN_AT_ONCE, n - start))
            found = np.flatnonzero(drawn >> beginning == partition)
            words.append(drawn[found])
            rows.append((found + start).astype(np.uint32))
        yield np.concatenate(rows)[np.argsort(np.concatenate(words), kind="stable")]
