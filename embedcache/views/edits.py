"""Views by editing words: crop, delete-words, delete-one-word, synonym.

A word is what stands between blanks (``str.split``); what is kept is joined with one blank. At least one word
is changed or goes, and at least one stays. What happens to a text depends on recipe, seed and text alone: not
on its position, batch or machine.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import Any

from embedcache.errors import InputError, MissingExtraError
from embedcache.views.recipe import Kept, Made, Maker, Recipe

CORE = re.compile(r"(\W*)(\w(?:.*\w)?)(\W*)", re.DOTALL)
"""Matches a whole word that has a core: what is before it, the core, what is after it."""

_DRAWS_A_BLOCK = 8
_MASK = (1 << 64) - 1
_REMEMBERED_WORDS = 1 << 18


class Draws:
    """Stream of random numbers for every text.

    Args:
        salt: key of the recipe.
    """

    def __init__(self, salt: bytes) -> None:
        self._key = hashlib.blake2b(salt, digest_size=32).digest()

    def of(self, text: str) -> Draw:
        """Return the stream of ``text``."""
        return Draw(hashlib.blake2b(text.encode(), key=self._key, digest_size=64).digest())


class Draw:
    """Random numbers of one text: 64 bits a draw, any number of them."""

    __slots__ = ("_block", "_left", "_start")

    def __init__(self, start: bytes) -> None:
        self._start = start
        self._block, self._left = int.from_bytes(start, "little"), _DRAWS_A_BLOCK

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
    """Return how many of ``words`` words a share is: rounded, at least one."""
    return max(int(share * words + 0.5), 1)


def put(words: list[str], place: int, new: str) -> None:
    """Put ``new`` in the place of a word's core, in its case and with its punctuation."""
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
    of = Draws(recipe.salt).of

    def one(text: str) -> Made:
        words = text.split()
        if len(words) < 2:
            return Kept.ONE_WORD
        return edit(words, min(words_of_share(len(words), share), len(words) - 1), of(text))

    return lambda texts: [one(text) for text in texts]


def _crop(words: list[str], without: int, draw: Draw) -> str:
    start = draw.below(without + 1)
    return " ".join(words[start : start + len(words) - without])


def _delete(words: list[str], without: int, draw: Draw) -> str:
    for place in sorted(draw.sample(len(words), without), reverse=True):
        del words[place]
    return " ".join(words)


def open_lexicon(specifier: str) -> Any:
    """Return a lexicon of the library ``wn`` such as ``oewn:2024``.

    Raises:
        MissingExtraError: if ``wn`` is not installed.
        InputError: if it does not hold the lexicon.
    """
    try:
        import wn
    except ImportError as error:
        raise MissingExtraError(
            "synonym views need the library wn; run: pip install 'embedcache[views]'"
        ) from error
    if ":" not in specifier:
        raise InputError(
            f"lexicon {specifier!r} names no version, and another version has other synonyms: write "
            "'synonym:0.1,lexicon=oewn:2024'"
        )
    try:
        return wn.Wordnet(specifier, expand="")
    except wn.Error as error:
        raise InputError(
            f"wn holds no lexicon {specifier!r} ({error}). Run: python -m wn download {specifier}"
        ) from error


def synonym_maker(recipe: Recipe) -> Maker:
    """Return the maker of a ``synonym`` view.

    A word is looked up as it stands, in small letters. Inflected forms, which a lexicon does not list, stay.
    Synonyms of all senses count alike.

    Raises:
        MissingExtraError, InputError: as :func:`open_lexicon`.
    """
    lexicon = open_lexicon(str(recipe.parameters["lexicon"]))
    share = float(recipe.parameters["share"])
    of = Draws(recipe.salt).of

    @lru_cache(_REMEMBERED_WORDS)
    def synonyms(word: str) -> tuple[str, ...]:
        forms = {
            form.replace("_", " ")
            for synset in lexicon.synsets(word)
            for form in map(str, synset.lemmas())
            if form.casefold() != word
        }
        return tuple(sorted(forms))

    def one(text: str) -> Made:
        words = text.split()
        known = {
            place: found
            for place, core in enumerate(map(CORE.fullmatch, words))
            if core is not None and (found := synonyms(core[2].casefold()))
        }
        if not known:
            return Kept.NO_SYNONYM
        draw, places = of(text), list(known)
        count = min(words_of_share(len(words), share), len(places))
        for number in sorted(draw.sample(len(places), count)):
            found = known[places[number]]
            put(words, places[number], found[draw.below(len(found))])
        return " ".join(words)

    return lambda texts: [one(text) for text in texts]
