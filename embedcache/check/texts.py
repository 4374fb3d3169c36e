"""The texts behind keys, out of the corpora of a cache."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from embedcache.corpus.corpus import Corpus
from embedcache.corpus.part import ORIGINAL, key_view
from embedcache.errors import CorruptCacheError
from embedcache.key_index import KeyIndex
from embedcache.keys import KEY_BYTES, KeyArray, key


def texts_of(keys: KeyArray, corpora: Iterable[Corpus]) -> list[str | None]:
    """Return the text of each key, None where no corpus has it.

    A text counts only if it has the key it stands beside. Damaged parts are passed over.

    Args:
        keys: dtype ``V16``, shape (n,).
        corpora: where to look.
    """
    index = KeyIndex(keys)
    names = keys.tobytes()
    found: list[str | None] = [None] * len(keys)
    for corpus in corpora:
        for number, part_keys in sound_keys(corpus):
            places = index.locate(part_keys)
            rows = [row for row in np.flatnonzero(places >= 0).tolist() if found[places[row]] is None]
            for row, text in _rows_of(corpus, number, rows):
                place = int(places[row]) * KEY_BYTES
                if key(text) == names[place : place + KEY_BYTES]:
                    found[places[row]] = text
    # A key that stands twice is found at its first place.
    return [found[place] for place in index.locate(keys).tolist()]


def sound_keys(corpus: Corpus) -> Iterator[tuple[int, KeyArray]]:
    """Yield the number and the keys of each part of a corpus that can be read."""
    for number in range(len(corpus.parts)):
        try:
            keys = key_view(corpus.column(number, "key"))
            corpus.column(number, ORIGINAL)
        except CorruptCacheError:
            continue
        yield number, keys


def _rows_of(corpus: Corpus, number: int, rows: Sequence[int]) -> Iterator[tuple[int, str]]:
    if rows:
        import pyarrow as pa

        yield from zip(rows, corpus.column(number, ORIGINAL).take(pa.array(rows)).to_pylist(), strict=True)
