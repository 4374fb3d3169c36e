"""Views by synonyms of a WordNet lexicon (ConGen, Table 6)."""

from __future__ import annotations

from functools import lru_cache

from embedcache.errors import InputError, MissingExtraError
from embedcache.views.edits import CORE, Draw, put, words_of_share
from embedcache.views.recipe import Kept, Made, Maker, Recipe

_REMEMBERED_WORDS = 1 << 18


def synonym_maker(recipe: Recipe) -> Maker:
    """Return the maker of a ``synonym`` view.

    A word is looked up as it stands, in small letters. Inflected forms, which a lexicon does not list, stay.
    Synonyms of all senses count alike.

    Raises:
        MissingExtraError: if the library ``wn`` is not installed.
        InputError: if it does not hold the lexicon.
    """
    name = str(recipe.parameters["lexicon"])
    try:
        import wn
    except ImportError as error:
        raise MissingExtraError(
            "synonym views need the library wn; run: pip install 'embedcache-distill[views]'"
        ) from error
    try:
        lexicon = wn.Wordnet(name, expand="")
    except wn.Error as error:
        raise InputError(
            f"wn holds no lexicon {name!r} ({error}). Run: python -m wn download {name}"
        ) from error

    @lru_cache(_REMEMBERED_WORDS)
    def synonyms(word: str) -> list[str]:
        forms = {str(form).replace("_", " ") for synset in lexicon.synsets(word) for form in synset.lemmas()}
        return sorted(form for form in forms if form.casefold() != word)

    def one(text: str) -> Made:
        words = text.split()
        known = {
            place: found
            for place, core in enumerate(map(CORE.fullmatch, words))
            if core is not None and (found := synonyms(core[2].casefold()))
        }
        if not known:
            return Kept.NO_SYNONYM
        draw, places = Draw(recipe.salt, text), list(known)
        count = min(words_of_share(len(words), float(recipe.parameters["share"])), len(places))
        for number in sorted(draw.sample(len(places), count)):
            found = known[places[number]]
            put(words, places[number], found[draw.below(len(found))])
        return " ".join(words)

    return lambda texts: [one(text) for text in texts]
