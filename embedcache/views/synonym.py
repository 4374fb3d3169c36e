"""Views by WordNet synonyms, through the library ``wn`` and a lexicon that it holds.

A word is looked up as it stands, in small letters. Inflected forms, which a lexicon does not list, stay as
they are: their synonyms would have to be inflected too. Synonyms of all senses count alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from embedcache.errors import InputError, MissingExtraError
from embedcache.views.kept import Kept, Made, Maker
from embedcache.views.recipe import Recipe
from embedcache.views.stream import Draws
from embedcache.views.words import CORE, put, words_of_share

_REMEMBERED_WORDS = 1 << 18


def open_lexicon(specifier: str) -> Any:
    """Return a lexicon of ``wn`` such as ``oewn:2024``.

    Raises:
        MissingExtraError: if ``wn`` is not installed.
        InputError: if it does not hold the lexicon.
    """
    try:
        import wn
    except ImportError as error:
        raise MissingExtraError(
            "synonym views need the library wn, which is not installed; run: pip install 'embedcache[views]'"
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
            f"wn holds no lexicon {specifier!r} ({error}). Get it once with 'python -m wn download "
            f"{specifier}'; on a machine without a network, copy its .xml or .xml.gz file there and give it "
            "to wn.add(FILE) in Python"
        ) from error


def synonym_maker(recipe: Recipe) -> Maker:
    """Return the maker of a ``synonym`` view.

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

    def make(texts: Sequence[str]) -> list[Made]:
        return [one(text) for text in texts]

    def one(text: str) -> Made:
        words = text.split()
        choices = {
            place: found
            for place, core in enumerate(map(CORE.fullmatch, words))
            if core is not None and (found := synonyms(core[2].casefold()))
        }
        if not choices:
            return Kept.NO_SYNONYM
        draw, places = of(text), list(choices)
        count = min(words_of_share(len(words), share), len(places))
        for number in sorted(draw.sample(len(places), count)):
            found = choices[places[number]]
            put(words, places[number], found[draw.below(len(found))])
        return " ".join(words)

    return make
