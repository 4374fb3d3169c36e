"""Checks of rows: those of a corpus against its digests, and which of them a teacher lacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from embedcache.corpus.corpus import Corpus, View
from embedcache.corpus.description import DESCRIPTION
from embedcache.corpus.part import ORIGINAL, key_view
from embedcache.corpus.readers import RowBatch
from embedcache.corpus.store import ColumnReader
from embedcache.errors import CorruptCacheError, InputError
from embedcache.keys import KEY_DTYPE, KeyArray, KeyIndex
from embedcache.missing import Locator, MissingRows, is_embedded
from embedcache.verify.files import first_line


def check_rows(corpus: Corpus) -> Iterator[tuple[str, str]]:
    """Check row numbers, the key of every text and the digests of the columns.

    Args:
        corpus: a corpus or a view, whose parts have the digests in their names.

    Yields:
        name of a file of the corpus, what is wrong with it; nothing after the first part with an error.
    """
    columns, first_row = ColumnReader(), 0
    for number, part in enumerate(corpus.parts):
        try:
            texts, ids, labels = (
                corpus.column(number, name).to_pylist() if name in corpus.info.columns else None
                for name in (ORIGINAL, "id", "label")
            )
            read = columns.read(RowBatch(texts or [], ids, labels))
            rows = corpus.column(number, "row").to_numpy()
            keys = key_view(corpus.column(number, "key"))
        except (CorruptCacheError, InputError) as error:
            yield part.file_name, first_line(error)
            return
        if not np.array_equal(rows, np.arange(first_row, first_row + part.rows)):
            yield part.file_name, f"its rows are not numbered from {first_row}"
            return
        if wrong := np.flatnonzero(key_view(read["key"]) != keys).tolist():
            what = f"{len(wrong)} keys are not those of their texts (first: row {first_row + wrong[0]})"
            yield part.file_name, what
            return
        first_row += part.rows
    if columns.described() != corpus.info.columns:
        yield DESCRIPTION, "the digests of its columns are not those of the rows"


def rows_without_vector(texts: Sequence[Corpus], store: Locator) -> list[tuple[int, MissingRows]]:
    """Return the corpora and embedded views that have only some vectors; if none has, those without any.

    A teacher need not have encoded every corpus and view of a cache.

    Args:
        texts: corpora and views.
        store: the teacher's vectors.

    Returns:
        Number of each, and its rows without a vector.
    """
    some, none = list[tuple[int, MissingRows]](), list[tuple[int, MissingRows]]()
    for number, corpus in enumerate(texts):
        if isinstance(corpus, View) and not is_embedded(corpus, store):
            continue
        missing = MissingRows.of(corpus, store)
        if len(missing):
            (some if len(missing) < missing.distinct else none).append((number, missing))
    return some or none


def find_rows(
    parts: Sequence[KeyArray], corpora: Sequence[Corpus]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the number of the first corpus that holds each key, -1 where none does, and the row there.

    Args:
        parts: arrays of keys, which count as one.
        corpora: corpora and views.
    """
    keys = np.concatenate([np.empty(0, KEY_DTYPE), *parts])
    index, numbers, rows = KeyIndex(keys), np.full(len(keys), -1), np.zeros(len(keys), np.int64)
    for number, corpus in enumerate(corpora if len(keys) else ()):
        start = 0
        for part in corpus.iter_keys():
            places = index.locate(part)
            # Of a text in several rows the first is taken: written last.
            fresh = np.flatnonzero(places >= 0)[::-1]
            fresh = fresh[numbers[places[fresh]] < 0]
            numbers[places[fresh]], rows[places[fresh]] = number, start + fresh
            start += len(part)
    # A key that comes twice was found at its first place.
    firsts = index.locate(keys)
    return numbers[firsts], rows[firsts]
