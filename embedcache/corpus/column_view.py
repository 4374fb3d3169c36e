"""A column of the source as a view: its cells beside the texts they stand with.

The source is read twice side by side, once as the corpus was read and once for the column alone; a row that
the corpus skipped is skipped here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import islice

from embedcache.corpus.conditions import RowConditions
from embedcache.corpus.formats import Columns, Problem, is_utf8, raw_rows
from embedcache.corpus.readers import ReadOptions, text_of_row
from embedcache.corpus.sources import STDIN, Source, format_of, source_name
from embedcache.errors import InputError
from embedcache.views.kept import Kept, Made


def refuse_missing_column(sources: Sequence[Source], options: ReadOptions, column: str) -> None:
    """See that every source has ``column``, from their first rows.

    Raises:
        MissingInputError: if a source or the column is not there.
        InputError: if the column holds no text, or the source can be read only once.
    """
    for source in sources:
        if source == STDIN:
            raise InputError(
                f"a view of column {column!r} reads its source beside the texts, and standard input can be "
                "read only once: put it into a file"
            )
        with raw_rows(source, format_of(source, options.format), _view_columns(column)) as rows:
            next(rows, None)


class ColumnCells:
    """The cells of a column, chunk by chunk in the order of the corpus's rows.

    Args:
        sources, options: what the corpus was read from, and how.
        column: the column.
    """

    def __init__(self, sources: Sequence[Source], options: ReadOptions, column: str) -> None:
        self._cells = _cells(sources, options, column)
        self._what = f"column {column!r} of {', '.join(source_name(source) for source in sources)[:200]}"

    def make(self, first_row: int, texts: list[str]) -> list[Made]:
        """Return the cells beside ``texts``, which are the corpus's rows from ``first_row`` on.

        Raises:
            InputError: if the source has other rows than the corpus, or cannot be read.
        """
        made: list[Made] = []
        for text, cell in islice(self._cells, len(texts)):
            if text != texts[len(made)]:
                break
            made.append(cell)
        if len(made) < len(texts):
            raise InputError(
                f"{self._what} does not fit the corpus: row {first_row + len(made)} (counted from 0) is "
                "another there; the source has changed while it was read: run the same command again"
            )
        return made


def _view_columns(column: str) -> Columns:
    return Columns(text=column, text_option="--view column:NAME")


def _cells(sources: Sequence[Source], options: ReadOptions, column: str) -> Iterator[tuple[str, Made]]:
    for source in sources:
        yield from _cells_of(source, options, column)


def _cells_of(source: Source, options: ReadOptions, column: str) -> Iterator[tuple[str, Made]]:
    wanted, conditions = options.columns, RowConditions(options.rows)
    kind = format_of(source, options.format)
    with ExitStack() as stack:
        rows = stack.enter_context(raw_rows(source, kind, wanted))
        beside = stack.enter_context(raw_rows(source, kind, _view_columns(column)))
        for row, (_, cell, _, _) in zip(rows, beside, strict=True):
            if not conditions.hold(row):
                continue
            text = text_of_row(
                row,
                pairs=options.reads_pairs,
                with_id=wanted.id is not None,
                with_label=wanted.label is not None,
            )
            if not isinstance(text, Problem):
                yield text, _made(cell)


def _made(cell: object) -> Made:
    if not isinstance(cell, str) or not cell or cell.isspace():
        return Kept.EMPTY_CELL
    return cell if "\0" not in cell and is_utf8(cell) else Kept.UNUSABLE_CELL
