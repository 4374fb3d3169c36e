"""Random choices that depend on a recipe and a text alone: not on position, batch, worker or machine."""

from __future__ import annotations

import hashlib

_WORDS = 8
_MASK = (1 << 64) - 1


class Draws:
    """A stream of random numbers for every text.

    Args:
        salt: what the recipe is told apart by.
    """

    def __init__(self, salt: bytes) -> None:
        self._key = hashlib.blake2b(salt, digest_size=32).digest()

    def of(self, text: str) -> Draw:
        """Return the stream of ``text``."""
        return Draw(hashlib.blake2b(text.encode(), key=self._key, digest_size=64).digest())


class Draw:
    """The random numbers of one text: 64 bits a draw, any number of them."""

    __slots__ = ("_block", "_left", "_start")

    def __init__(self, start: bytes) -> None:
        self._start = start
        self._block, self._left = int.from_bytes(start, "little"), _WORDS

    def below(self, count: int) -> int:
        """Return a whole number from 0 to ``count - 1``; each as likely as any other to 2**-40 at least."""
        if not self._left:
            self._start = hashlib.blake2b(self._start, digest_size=64).digest()
            self._block, self._left = int.from_bytes(self._start, "little"), _WORDS
        number = self._block & _MASK
        self._block >>= 64
        self._left -= 1
        return (number * count) >> 64

    def sample(self, count: int, size: int) -> list[int]:
        """Return ``size`` different numbers from 0 to ``count - 1``, in no order."""
        chosen: dict[int, int] = {}
        found = []
        # The first steps of a shuffle of range(count), of which only the places touched are held.
        for end in range(count, count - size, -1):
            place = self.below(end)
            found.append(chosen.get(place, place))
            chosen[place] = chosen.get(end - 1, end - 1)
        return found
