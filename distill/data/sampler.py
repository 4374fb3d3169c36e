"""The order of training rows: a pure function of (seed, epoch), with rows of like length in one batch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BUCKET_BATCHES = 64


def permutation(n: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return a permutation of ``range(n)`` that depends on (n, seed, epoch) alone.

    It sorts raw random words, which numpy promises never to change, unlike ``Generator.permutation``.
    """
    words = np.random.PCG64(np.random.SeedSequence([seed, epoch])).random_raw(n)
    return np.argsort(words, kind="stable")


def epoch_batches(
    lengths: NDArray[np.integer],
    batch_size: int,
    *,
    seed: int,
    epoch: int,
    bucket_batches: int = BUCKET_BATCHES,
) -> list[NDArray[np.int64]]:
    """Return the batches of one epoch; every row stands in exactly one.

    Rows are shuffled, cut into buckets of ``bucket_batches`` batches, sorted by length inside a bucket, cut
    into batches, and the batches are shuffled over the whole epoch: padding is small, and neither the rows of
    a batch nor the order of batches repeats from epoch to epoch.

    Args:
        lengths: tokens of each row, shape (n,).
        batch_size: rows a batch; the last one of an epoch may be smaller.
        seed, epoch: what the order is a function of.
        bucket_batches: batches a bucket; 1 gives plain random batches.
    """
    order = permutation(len(lengths), seed, epoch)
    bucket_rows = batch_size * bucket_batches
    batches: list[NDArray[np.int64]] = []
    for start in range(0, len(order), bucket_rows):
        bucket = order[start : start + bucket_rows]
        bucket = bucket[np.argsort(lengths[bucket], kind="stable")]
        batches.extend(bucket[i : i + batch_size] for i in range(0, len(bucket), batch_size))
    # A stream of its own: seeds are words of the key, so (seed, epoch, 1) is independent of (seed, epoch).
    words = np.random.PCG64(np.random.SeedSequence([seed, epoch, 1])).random_raw(len(batches))
    return [batches[i] for i in np.argsort(words, kind="stable")]
