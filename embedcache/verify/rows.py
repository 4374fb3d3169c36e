"""Checks of rows: those of a corpus against its digests, and which of them a teacher lacks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import numpy as np

from embedcache.corpus.columns import ColumnReader
from embedcache.corpus.corpus import DESCRIPTION, Corpus, View
from embedcache.corpus.part import ORIGINAL, key_view
from embedcache.corpus.readers import RowBatch
from embedcache.errors import CorruptCacheError, InputError
from embedcache.missing import MissingRows
from embedcache.store import ShardStore
from embedcache.verify.findings import first_line
from embedcache.view_coverage import ViewCoverage


def check_rows(corpus: Corpus, skip: Collection[str] = ()) -> Iterator[tuple[str, str]]:
    """Check row numbers, the key of every text and the digests of the columns.

    Args:
        corpus: a corpus or a view.
        skip: file names of parts that are missing or damaged.

    Yields:
        name of a file of the corpus, what is wrong with it.
    """
    columns, first_row, is_whole = ColumnReader(), 0, not skip
    for number, part in enumerate(corpus.parts):
        wrong = "" if part.file_name in skip else _wrong_in_part(corpus, number, first_row, columns)
        if wrong:
            yield part.file_name, wrong
        is_whole = is_whole and not wrong
        first_row += part.rows
    if is_whole and columns.described() != corpus.info.columns:
        yield DESCRIPTION, "the digests of its columns are not those of the rows"


def _wrong_in_part(corpus: Corpus, number: int, first_row: int, columns: ColumnReader) -> str:
    part = corpus.parts[number]
    try:
        texts, ids, labels = (
            corpus.column(number, name).to_pylist() if name in corpus.info.columns else None
            for name in (ORIGINAL, "id", "label")
        )
        read = columns.read(RowBatch(texts or [], ids, labels))
        rows = corpus.column(number, "row").to_numpy()
        keys = key_view(corpus.column(number, "key"))
    except (CorruptCacheError, InputError) as error:
        return first_line(error)
    if not np.array_equal(rows, np.arange(first_row, first_row + part.rows)):
        return f"its rows are not numbered from {first_row}"
    if wrong := np.flatnonzero(key_view(read["key"]) != keys).tolist():
        return f"{len(wrong)} keys are not those of their texts (first: row {first_row + wrong[0]})"
    return ""


def rows_without_vector(
    texts: Iterable[Corpus], store: ShardStore, *, is_lost: bool = False
) -> list[tuple[Corpus, MissingRows]]:
    """Return the corpora and embedded views that lack vectors, and their rows.

    A teacher need not have encoded every corpus and view: those with some vectors count. If they lack none,
    corpora without any count, and at last the view with the most.

    Args:
        texts: corpora and views.
        store: the teacher's vectors.
        is_lost: True if shards are known to be lost; else views with few vectors were never encoded.
    """
    some, none, few = [], [], dict[float, tuple[Corpus, MissingRows]]()
    for corpus in texts:
        coverage = ViewCoverage.of(corpus, store) if isinstance(corpus, View) else None
        if coverage is not None and not coverage.embedded:
            continue
        missing = MissingRows.of(corpus, store)
        if coverage is not None and not coverage.is_embedded:
            few[coverage.embedded / coverage.own] = (corpus, missing)
        elif 0 < len(missing) < missing.distinct:
            some.append((corpus, missing))
        elif len(missing):
            none.append((corpus, missing))
    return some or none or ([few[max(few)]] if is_lost and few else [])
