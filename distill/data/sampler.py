"""The order of training rows: a pure function of (seed, epoch), with rows of like length in one batch.

An epoch's order is one uint32 a row. What else it takes to compute is a small share of the corpus at a time:
random words are drawn again wherever keeping them would cost eight bytes a row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Protocol, overload

import numpy as np
from numpy.typing import NDArray

BUCKET_BATCHES = 64
MOST_ROWS = 2**32 - 1
"""Rows an order can be made of: a row number takes four bytes, and the number after the last one as well."""

_PARTITION_ROWS = 2**18
_MOST_PARTITION_BITS = 5
_DRAWN_AT_ONCE = 2**16


class Lengths(Protocol):
    """Tokens of n rows: an array, or something that looks them up where they are asked for."""

    def __len__(self) -> int:
        """Return n."""
        ...

    def __getitem__(self, rows: NDArray[np.uint32], /) -> NDArray[np.integer]:
        """Return the tokens of each of ``rows``, in the order asked."""
        ...


class EpochBatches(Sequence[NDArray[np.uint32]]):
    """The batches of one epoch, cut from one array when they are asked for.

    Args:
        order: uint32, shape (n,); the rows, batch after batch.
        batch_size: rows a batch; the last of ``order`` may be smaller.
        sequence: uint32; the batches' numbers in the order they are trained on.
        breaks: places in that order whose batches need what may not be here yet for those before them.
    """

    def __init__(
        self,
        order: NDArray[np.uint32],
        batch_size: int,
        sequence: NDArray[np.uint32],
        breaks: Collection[int] = (),
    ) -> None:
        self._order, self._batch_size, self._sequence = order, batch_size, sequence
        self.breaks = frozenset(breaks)
        """Where batches are not to be prepared together with those before them."""

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self._sequence)

    @overload
    def __getitem__(self, number: int) -> NDArray[np.uint32]: ...

    @overload
    def __getitem__(self, number: slice) -> list[NDArray[np.uint32]]: ...

    def __getitem__(self, number: int | slice) -> NDArray[np.uint32] | list[NDArray[np.uint32]]:
        """Return the rows of the batch that is trained on as number ``number``; several for a slice."""
        if isinstance(number, slice):
            return [self[one] for one in range(len(self))[number]]
        start = int(self._sequence[number]) * self._batch_size
        return self._order[start : start + self._batch_size]


def permutation(n: int, seed: int, epoch: int, *, first: int | None = None) -> NDArray[np.uint32]:
    """Return a permutation of ``range(n)`` that depends on (n, seed, epoch) alone.

    It sorts raw random words, which numpy promises never to change, unlike ``Generator.permutation``.

    Args:
        n: how many numbers; at most :data:`MOST_ROWS`.
        seed, epoch: what the permutation is a function of.
        first: return only so many numbers of its beginning.

    Raises:
        ValueError: if ``n`` is larger.
    """
    return _permutation(n, (seed, epoch), n if first is None else min(first, n))


def stream_permutation(n: int, stream: tuple[int, ...]) -> NDArray[np.uint32]:
    """Return a permutation of ``range(n)`` that depends on ``n`` and the numbers of a stream alone.

    Raises:
        ValueError: as :func:`permutation`.
    """
    return _permutation(n, stream, n)


def epoch_batches(
    lengths: Lengths,
    batch_size: int,
    *,
    seed: int,
    epoch: int,
    bucket_batches: int = BUCKET_BATCHES,
) -> EpochBatches:
    """Return the batches of one epoch; every row stands in exactly one.

    Rows are shuffled, cut into buckets of ``bucket_batches`` batches, sorted by length inside a bucket, cut
    into batches, and the batches are shuffled over the whole epoch: padding is small, and neither the rows of
    a batch nor the order of batches repeats from epoch to epoch.

    Args:
        lengths: tokens of each row, n of them.
        batch_size: rows a batch; the last one of an epoch may be smaller.
        seed, epoch: what the order is a function of.
        bucket_batches: batches a bucket; 1 gives plain random batches.
    """
    order = permutation(len(lengths), seed, epoch)
    bucket_rows = batch_size * bucket_batches
    for start in range(0, len(order), bucket_rows):
        bucket = order[start : start + bucket_rows]
        bucket[:] = bucket[np.argsort(lengths[bucket], kind="stable")]
    count = -(-len(order) // batch_size)
    # A stream of its own: seeds are words of the key, so (seed, epoch, 1) is independent of (seed, epoch).
    return EpochBatches(order, batch_size, _permutation(count, (seed, epoch, 1), count))


def _permutation(n: int, stream: tuple[int, ...], wanted: int) -> NDArray[np.uint32]:
    if n > MOST_ROWS:
        raise ValueError(f"an order of {n} rows was asked for, and four bytes number at most {MOST_ROWS}")
    order = np.empty(wanted, dtype=np.uint32)
    done = 0
    parts = _ordered_parts(n, stream)
    while done < wanted:
        part = next(parts)[: wanted - done]
        order[done : done + len(part)] = part
        done += len(part)
    return order


def _ordered_parts(n: int, stream: tuple[int, ...]) -> Iterator[NDArray[np.uint32]]:
    """Yield what ``argsort(words, kind="stable")`` of n random words would return, piece by piece.

    A piece is the rows whose words begin with the same bits.
    """
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
