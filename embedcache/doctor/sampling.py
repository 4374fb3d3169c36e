"""Seeded samples of distinct texts.

Keys are digests, so the texts whose keys rank lowest are a uniform sample. Order and repeats do not matter.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from embedcache.keys import KEY_BYTES, KeyArray


def ranks(keys: KeyArray, seed: int) -> NDArray[np.uint64]:
    """Return a number for each key, in an order that is random and depends on ``seed``; shape (n,)."""
    words = np.ascontiguousarray(keys).view(np.uint64).reshape(-1, KEY_BYTES // 8)[:, 0]
    factor = np.random.default_rng(seed).integers(1 << 63, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    # Odd, so that no two words get the same number.
    return words * factor


def sample_keys(keys: KeyArray, size: int, seed: int) -> KeyArray:
    """Return a uniform sample of at most ``size`` distinct keys, in random order.

    A sample joined with further keys can be sampled again: the result is a sample of all of them.
    """
    return keys[np.unique(ranks(keys, seed), return_index=True)[1][:size]]
