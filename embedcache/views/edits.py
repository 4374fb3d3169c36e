"""Views by editing words: crop, delete-words, delete-one-word.

A word is what stands between blanks (``str.split``); what is kept is joined with one blank. At least one word
is changed or goes, and at least one stays. What happens to a text depends on recipe, seed and text alone: not
on its position, batch or machine.
"""

from __future__ import annotations

import hashlib
import re

from embedcache.views.recipe import Kept, Made, Maker, Recipe

CORE = re.compile(r"(\W*)(\w(?:.*\w)?)(\W*)", re.DOTALL)
"""Matches a whole word that has a core: the part before it, the core, the part after it."""

_DRAWS_A_BLOCK = 8
_MASK = (1 << 64) - 1


class Draw:
    """Random numbers of one text: 64 bits a draw, any number of them.

    Args:
        salt: key of the recipe.
        text: the text.
    """

    def __init__(self, salt: bytes, text: str) -> None:
        key = hashlib.blake2b(salt, digest_size=32).digest()
        self._start = hashlib.blake2b(text.encode(), key=key, digest_size=64).digest()
        self._block, self._left = int.from_bytes(self._start, "little"), _DRAWS_A_BLOCK

    def below(self, count: int) -> int:
        """Return a whole number from 0 to ``count - 1``; each as likely as any other to 2**-40 at least."""
        if not self._left:
            self._start = hashlib.blake2b(self._start, digest_size=64).digest()
            self._block, self._left = int.from_bytes(self._start, "little"), _DRAWS_A_BLOCK
        number = self._block & _MASK
        self._block >>= 64
        self._left -= 1
        return (number * count) >> 64

    def sample(self, count: int, size: int) -> list[int]:
        """Return ``size`` different numbers from 0 to ``count - 1``, in no order."""
        moved: dict[int, int] = {}
        found = []
        # The first steps of a shuffle of range(count), of which only the places touched are held.
        for end in range(count, count - size, -1):
            place = self.below(end)
            found.append(moved.get(place, place))
            moved[place] = moved.get(end - 1, end - 1)
        return found


def words_of_share(words: int, share: float) -> int:
    """Return the number of words in a share of ``words``: rounded, at least one."""
    return max(int(share * words + 0.5), 1)


def put(words: list[str], place: int, new: str) -> None:
    """Replace a word's core by ``new``, in its case and with its punctuation."""
    core = CORE.fullmatch(words[place])
    if core is None:
        return
    old = core[2]
    if old.isupper() and len(old) > 1:
        new = new.upper()
    elif old[:1].isupper():
        new = new[:1].upper() + new[1:]
    words[place] = core[1] + new + core[3]


def edit_maker(recipe: Recipe) -> Maker:
    """Return the maker of a ``crop``, ``delete-words`` or ``delete-one-word`` view."""
    edit = _crop if recipe.kind == "crop" else _delete
    share = float(recipe.parameters.get("share", 0.0))
    salt = recipe.salt

    def one(text: str) -> Made:
        words = text.split()
        if len(words) < 2:
            return Kept.ONE_WORD
        return edit(words, min(words_of_share(len(words), share), len(words) - 1), Draw(salt, text))

    return lambda texts: [one(text) for text in texts]


def _crop(words: list[str], without: int, draw: Draw) -> str:
    start = draw.below(without + 1)
    return " ".join(words[start : start + len(words) - without])


def _delete(words: list[str], without: int, draw: Draw) -> str:
    for place in sorted(draw.sample(len(words), without), reverse=True):
        del words[place]
    return " ".join(words)
