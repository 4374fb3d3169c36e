"""Checks of rows: those of a corpus against its digests, and which of them a teacher lacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from embedcache.corpus.corpus import Corpus, View
from embedcache.corpus.description import DESCRIPTION
from embedcache.corpus.part import ORIGINAL, key_view
from embedcache.corpus.readers import RowBatch
from embedcache.corpus.store import ColumnReader
from embedcache.errors import CorruptCacheError, InputError
from embedcache.keys import KeyArray
from embedcache.missing import Locator, MissingRows, is_embedded
from embedcache.store.base import Positions
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


def rows_without_vector(
    texts: Sequence[Corpus], store: Locator, lost: Locator | None = None
) -> list[tuple[int, MissingRows]]:
    """Return the corpora and embedded views that lack vectors: number of each, and its rows without one.

    Args:
        texts: corpora and views.
        store: the teacher's vectors.
        lost: those it had before; they too say which views the teacher encoded.
    """
    had = store if lost is None else _Either(store, lost)
    embedded = (
        (number, MissingRows.of(corpus, store))
        for number, corpus in enumerate(texts)
        if not isinstance(corpus, View) or is_embedded(corpus, had)
    )
    return [(number, missing) for number, missing in embedded if len(missing)]


@dataclass(frozen=True)
class _Either:
    one: Locator
    other: Locator

    def locate(self, keys: KeyArray) -> Positions:
        return np.maximum(self.one.locate(keys), self.other.locate(keys))
