"""Views by leaving words out: crop, delete-words, delete-one-word.

A word is what stands between blanks (``str.split``); what is kept is joined with one blank. At least one word
goes, so that every text of two words or more is changed, and at least one stays. A text of one word (or one
in a script without blanks) stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from embedcache.views.kept import Kept, Made, Maker
from embedcache.views.recipe import Recipe
from embedcache.views.stream import Draw, Draws
from embedcache.views.words import words_of_share


def edit_maker(recipe: Recipe) -> Maker:
    """Return the maker of a ``crop``, ``delete-words`` or ``delete-one-word`` view."""
    edit = _EDITS[recipe.kind]
    share = float(recipe.parameters.get("share", 0.0))
    of = Draws(recipe.salt).of

    def make(texts: Sequence[str]) -> list[Made]:
        made: list[Made] = []
        for text in texts:
            words = text.split()
            if len(words) < 2:
                made.append(Kept.ONE_WORD)
            else:
                without = min(words_of_share(len(words), share), len(words) - 1)
                made.append(edit(words, without, of(text)))
        return made

    return make


def _crop(words: list[str], without: int, draw: Draw) -> str:
    start = draw.below(without + 1)
    return " ".join(words[start : start + len(words) - without])


def _delete(words: list[str], without: int, draw: Draw) -> str:
    for place in sorted(draw.sample(len(words), without), reverse=True):
        del words[place]
    return " ".join(words)


_EDITS: dict[str, Callable[[list[str], int, Draw], str]] = {
    "crop": _crop,
    "delete-words": _delete,
    "delete-one-word": _delete,
}
