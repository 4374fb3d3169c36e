"""Texts of keys."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from embedcache.corpus.corpus import Corpus
from embedcache.keys import KeyArray, KeyIndex


def find_texts(keys: KeyArray, corpora: Iterable[Corpus]) -> list[str | None]:
    """Return the text of each key, None where no corpus has it.

    Args:
        keys: dtype ``V16``, shape (n,).
        corpora: corpora and views to search.

    Raises:
        CorruptCacheError: if a corpus is damaged.
    """
    index = KeyIndex(keys)
    found: dict[int, str] = {}
    for corpus in corpora:
        start = 0
        for part in corpus.iter_keys():
            places = index.locate(part)
            rows = np.flatnonzero(places >= 0)
            for place, text in zip(places[rows].tolist(), corpus.texts(start + rows), strict=True):
                found.setdefault(place, text)
            start += len(part)
    # A key that comes twice is found at its first place.
    return [found.get(place) for place in index.locate(keys).tolist()]
