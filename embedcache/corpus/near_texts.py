"""Rows of corpora that hold a text, and texts that differ from it only in case, spacing or punctuation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from embedcache.corpus.corpus import Corpus, View
from embedcache.corpus.folding import fold
from embedcache.keys import KeyIndex, key_array
from embedcache.progress import NO_PROGRESS, Progress

_MOST_ROWS = 5
_MOST_NEAR = 3


@dataclass(frozen=True)
class Occurrence:
    """Rows of a corpus or view that hold a text: their number, and the first of them, counted from 0."""

    corpus: str
    count: int
    first_rows: tuple[int, ...]
    view: str | None = None


@dataclass(frozen=True)
class NearText:
    """A text of a corpus that differs from another only in case, spacing or punctuation."""

    text: str
    corpus: str
    row: int


def find_occurrences(texts: Sequence[str], corpora: Sequence[Corpus]) -> list[tuple[Occurrence, ...]]:
    """Return the rows of each text, corpus by corpus; views are corpora, too.

    Raises:
        CorruptCacheError: if a corpus is damaged.
    """
    keys = key_array(texts)
    index = KeyIndex(keys)
    found: dict[int, list[Occurrence]] = {}
    for corpus in corpora:
        places = np.concatenate([np.empty(0, np.int64), *map(index.locate, corpus.iter_keys())])
        for place in np.unique(places[places >= 0]).tolist():
            rows = np.flatnonzero(places == place)
            first = tuple(rows[:_MOST_ROWS].tolist())
            name, view = (corpus.of.name, corpus.name) if isinstance(corpus, View) else (corpus.name, None)
            found.setdefault(place, []).append(Occurrence(name, len(rows), first, view))
    return [tuple(found.get(place, ())) for place in index.locate(keys).tolist()]


def find_near(
    texts: Sequence[str], corpora: Sequence[Corpus], progress: Progress = NO_PROGRESS
) -> dict[str, tuple[NearText, ...]]:
    """Return the first few near texts of each text. Reads every text of the corpora.

    Raises:
        CorruptCacheError: if a corpus is damaged.
    """
    near: dict[str, dict[str, NearText]] = {fold(text): {} for text in texts}
    progress.phase("search texts", sum(map(len, corpora)) if texts else 0)
    for corpus in corpora if texts else ():
        start = 0
        for part in corpus.iter_texts():
            for row, text in enumerate(part, start):
                if (found := near.get(fold(text))) is not None and len(found) <= _MOST_NEAR:
                    found.setdefault(text, NearText(text, corpus.name, row))
            start += len(part)
            progress.advance(len(part))
    return {
        text: tuple(one for one in near[fold(text)].values() if one.text != text)[:_MOST_NEAR]
        for text in texts
    }
