"""Seeded samples of distinct texts, drawn while they stream by.

Keys are digests, so the texts whose keys rank lowest are a uniform sample of the distinct texts, whatever
their order and however often each one comes. Nothing else has to be remembered.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from embedcache.keys import KEY_BYTES, KEY_DTYPE, KeyArray, KeyIndex

SAMPLE_CHARACTERS = 1 << 26
"""A sample of texts is halved, and halved again, as soon as they are longer than this together."""


def ranks(keys: KeyArray, seed: int) -> NDArray[np.uint64]:
    """Return a number for each key, in an order that is random and depends on ``seed``; shape (n,)."""
    words = np.ascontiguousarray(keys).view(np.uint64).reshape(-1, KEY_BYTES // 8)[:, 0]
    factor = np.random.default_rng(seed).integers(1 << 63, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    # Odd, so that no two words get the same number.
    return words * factor


class KeySample:
    """A uniform sample of at most ``size`` of the distinct keys added.

    Args:
        size: how many to keep.
        seed: another seed draws another sample.
        characters: how long the texts kept may be together before ``size`` is halved.
    """

    def __init__(self, size: int, seed: int = 0, *, characters: int = SAMPLE_CHARACTERS) -> None:
        self._size = size
        self._seed = seed
        self._characters = characters
        self._highest = np.uint64(np.iinfo(np.uint64).max)
        self._keys: list[KeyArray] = []
        self._texts: list[str] = []
        self._length = 0
        self.complete = True
        """Whether every distinct key that was added is in the sample."""

    def add(self, keys: KeyArray, texts: Sequence[str] = ()) -> None:
        """Take part in the draw; ``texts``, where given, are kept beside their keys."""
        low = np.flatnonzero(ranks(keys, self._seed) <= self._highest)
        self._keys.append(keys[low])
        kept = [texts[i] for i in low.tolist()] if texts else []
        self._texts.extend(kept)
        self._length += sum(map(len, kept))
        if sum(map(len, self._keys)) > 2 * self._size or self._length > 2 * self._characters:
            self._settle()

    def keys(self) -> KeyArray:
        """Return the keys of the sample in random order, shape (n,)."""
        self._settle()
        return self._keys[0]

    def texts(self) -> list[str]:
        """Return the texts of the sample, in the order of :meth:`keys`."""
        self._settle()
        return list(self._texts)

    def _settle(self) -> None:
        keys = np.concatenate(self._keys) if self._keys else np.empty(0, dtype=KEY_DTYPE)
        places = KeyIndex(keys).first_places()
        places = places[np.argsort(ranks(keys[places], self._seed), kind="stable")]
        if self._texts:
            lengths = np.cumsum([len(self._texts[i]) for i in places])
            while self._size > 1 and lengths[min(self._size, len(places)) - 1] > self._characters:
                self._size //= 2
        if len(places) > self._size:
            self.complete = False
            places = places[: self._size]
            self._highest = ranks(keys[places[-1:]], self._seed)[0]
        self._keys = [keys[places]]
        self._texts = [self._texts[i] for i in places] if self._texts else []
        self._length = sum(map(len, self._texts))
