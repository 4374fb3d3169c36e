"""Rows of corpora that hold a text, and texts that differ from it only in case, spacing or punctuation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from embedcache.corpus.corpus import Corpus, View
from embedcache.corpus.folding import fold
from embedcache.keys import key_array
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


def find_occurrences(text: str, corpora: Sequence[Corpus]) -> list[Occurrence]:
    """Return the rows that hold a text, corpus by corpus; views are corpora, too.

    Raises:
        CorruptCacheError: if a corpus is damaged.
    """
    found = []
    for corpus in corpora:
        (rows,) = np.nonzero(corpus.keys() == key_array([text])[0])
        if len(rows):
            name, view = (corpus.of.name, corpus.name) if isinstance(corpus, View) else (corpus.name, None)
            found.append(Occurrence(name, len(rows), tuple(rows[:_MOST_ROWS].tolist()), view))
    return found


def find_near(text: str, corpora: Sequence[Corpus], progress: Progress = NO_PROGRESS) -> list[NearText]:
    """Return the first few near texts of a text. Reads every text of the corpora.

    Raises:
        CorruptCacheError: if a corpus is damaged.
    """
    folded = fold(text)
    near: dict[str, NearText] = {}
    progress.phase("search texts", sum(map(len, corpora)))
    for corpus in corpora:
        start = 0
        for part in corpus.iter_texts():
            for row, other in enumerate(part, start):
                if other != text and fold(other) == folded:
                    near.setdefault(other, NearText(other, corpus.name, row))
            start += len(part)
            progress.advance(len(part))
            if len(near) >= _MOST_NEAR:
                return list(near.values())[:_MOST_NEAR]
    return list(near.values())
