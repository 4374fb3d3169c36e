"""Rows of a corpus with all that a cache knows of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embedcache.cache import Cache
from embedcache.corpus.corpus import Corpus
from embedcache.corpus.part import ORIGINAL
from embedcache.errors import InputError


@dataclass(frozen=True)
class ShownText:
    """A text of a row.

    Attributes:
        text: the text.
        key: its key, in hexadecimal.
        recipe: how it was made, in words; empty for the original.
        tokens: teacher -> tokens that it saw, special ones included; of teachers that have encoded the text.
    """

    text: str
    key: str
    recipe: str
    tokens: dict[str, int]


@dataclass(frozen=True)
class ShownRow:
    """A row of a corpus.

    Attributes:
        row: its number, from 0.
        id: its id, where the corpus has them.
        label: its label, where the corpus has them.
        views: ``original`` and the views by name -> the text.
    """

    row: int
    id: str | None
    label: str | int | float | None
    views: dict[str, ShownText]

    def facts(self) -> dict[str, object]:
        """Return what there is to say in a line: id, label, start of the key, tokens of the original text."""
        original = self.views[ORIGINAL]
        tokens = {f"tokens ({name})": count for name, count in original.tokens.items()}
        facts = {"id": self.id, "label": self.label, "key": original.key[:12], **tokens}
        return {name: value for name, value in facts.items() if value is not None}


def show_rows(cache: Cache, corpus: Corpus, rows: Sequence[int]) -> list[ShownRow]:
    """Return ``rows`` of a corpus of ``cache`` with all their views, in the order asked.

    Raises:
        InputError: if a row is not one of the corpus, or a view was made of another state of it.
        CorruptCacheError: if a file is damaged.
    """
    if beyond := [row for row in rows if not 0 <= row < len(corpus)]:
        raise InputError(
            f"no row {beyond[0]} in corpus {corpus.name!r}: it has {len(corpus)}, counted from 0"
        )
    wanted = np.array(rows, dtype=np.int64)
    ids = corpus.ids(wanted) if corpus.info.has_ids else [None] * len(rows)
    labels = corpus.labels(wanted) if corpus.info.has_labels else [None] * len(rows)
    views = {ORIGINAL: _shown(cache, corpus, "", wanted)}
    for name in corpus.view_names():
        view = corpus.view(name)
        views[name] = _shown(cache, view, view.recipe.describe(), wanted)
    return [
        ShownRow(row, ids[place], labels[place], {name: texts[place] for name, texts in views.items()})
        for place, row in enumerate(rows)
    ]


def _shown(cache: Cache, texts: Corpus, recipe: str, rows: NDArray[np.int64]) -> list[ShownText]:
    keys = texts.keys_of(rows)
    tokens: list[dict[str, int]] = [{} for _ in rows]
    for teacher in cache.teachers():
        store = cache.store(teacher.contract)
        positions = store.locate(keys)
        places = np.flatnonzero(positions >= 0)
        counts, _ = store.seen(positions[places])
        for place, count in zip(places.tolist(), counts.tolist(), strict=True):
            # Some encoders do not tell how many there were.
            if count:
                tokens[place][teacher.name] = count
    return [
        ShownText(text, key.tobytes().hex(), recipe, found)
        for text, key, found in zip(texts.texts(rows), keys, tokens, strict=True)
    ]
