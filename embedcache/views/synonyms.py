"""Views by synonyms of a WordNet lexicon (ConGen, Table 6)."""

from __future__ import annotations

from functools import lru_cache

from embedcache.errors import InputError, MissingExtraError
from embedcache.views.edits import CORE, Draw, put, words_of_share
from embedcache.views.recipe import Kept, Made, Maker, Recipe

_REMEMBERED_WORDS = 1 << 18
_FUNCTION_WORDS = """
a about above across after against all along although always am among an and another any anybody anyone
anything are around as at be because been before behind being below beneath beside besides between beyond
both but by can cannot could despite did do does doing done down during each eight either eleven else enough
even ever every everybody everyone everything except few five for four from had has have having he her here
hers herself him himself his how however hundred i if in inside into is it its itself just least less like
many may me might mine more most much must my myself near neither never nine no nobody none nor not nothing
now of off on once one only onto or other others ought our ours ourselves out outside over own past per
rather same seven several shall she should since six so some somebody someone something such ten than that
the their theirs them themselves then there these they this those though thousand three through throughout
thus till to too toward towards twelve two under underneath unless unlike until up upon us very via was we
were what whatever when whenever where wherever whether which whichever while who whoever whole whom whose
why will with within without would yes yet you your yours yourself yourselves
"""
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())
"""English words that stay: no nouns, verbs, adjectives or adverbs in most of their uses."""


def synonym_maker(recipe: Recipe) -> Maker:
    """Return the maker of a ``synonym`` view.

    A word is looked up in lower case, with its base forms. Synonyms are those of its most frequent senses, by
    the lexicon's counts in tagged text; without counts, of the senses it lists first. Numbers, function words
    and inflected forms stay, and in a lexicon with counts every word without one.

    Raises:
        MissingExtraError: if the library ``wn`` is not installed.
        InputError: if it does not hold the lexicon.
    """
    name, most = str(recipe.parameters["lexicon"]), int(recipe.parameters["senses"])
    try:
        import wn
        from wn.morphy import morphy
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
    english = lexicon.lexicons()[0].language == "en"
    lexicon.lemmatizer = morphy if english else None
    # Adverbs alone are asked, as they are the fewest.
    counted = any(sense.counts() for sense in lexicon.senses(pos="r"))

    @lru_cache(_REMEMBERED_WORDS)
    def synonyms(word: str) -> list[str]:
        if word.isdecimal() or (english and word in FUNCTION_WORDS):
            return []
        counts = {sense: sum(sense.counts()) for sense in lexicon.senses(word)}
        frequent = sorted(counts, key=lambda sense: -counts[sense])[:most]
        forms = {
            str(form).replace("_", " ")
            for sense in frequent
            if sense.word().lemma().casefold() == word and (counts[sense] or not counted)
            for form in sense.synset().lemmas()
        }
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
