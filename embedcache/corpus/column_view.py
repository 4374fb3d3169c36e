"""A column of the source as a view: its cells beside the texts they stand with.

The source is read again, as the corpus was read and once more for the column; a row that the corpus skipped
is skipped here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from embedcache.corpus.conditions import RowConditions
from embedcache.corpus.formats import Columns, Problem, is_utf8, raw_rows
from embedcache.corpus.memory import MemoryRows
from embedcache.corpus.readers import ReadOptions, text_of_row
from embedcache.corpus.sources import STDIN, Source, format_of, source_name
from embedcache.errors import InputError
from embedcache.views.kept import Kept, Made


def refuse_missing_column(sources: Sequence[Source], options: ReadOptions, column: str) -> None:
    """Check that every source has ``column``, from their first rows.

    Raises:
        MissingInputError: if a source or the column is missing.
        InputError: if the column holds no text, or the source can be read only once.
    """
    for source in sources:
        if source == STDIN or (isinstance(source, MemoryRows) and source.once):
            raise InputError(
                f"a view of column {column!r} reads {source_name(source)} a second time, which is not "
                "possible: give a file"
            )
        with raw_rows(source, format_of(source, options.format), _wanted(column, options)) as rows:
            next(rows, None)


class ColumnCells:
    """Cells of a column, chunk by chunk in the order of the corpus's rows.

    Args:
        sources, options: what the corpus was read from, and how.
        column: the column.
    """

    def __init__(self, sources: Sequence[Source], options: ReadOptions, column: str) -> None:
        self._cells = (cell for source in sources for cell in _cells_of(source, options, column))
        self._name = f"column {column!r} of {', '.join(source_name(source) for source in sources)[:200]}"

    def make(self, first_row: int, texts: list[str]) -> list[Made]:
        """Return the cells beside ``texts``, which are the corpus's rows from ``first_row`` on.

        Raises:
            InputError: if the source has other rows than the corpus, or cannot be read.
        """
        found = list(islice(self._cells, len(texts)))
        if [text for text, _ in found] != texts:
            raise InputError(
                f"{self._name} does not fit the corpus from row {first_row} on: the source changed while "
                "it was read; run the same command again"
            )
        return [cell for _, cell in found]


def _wanted(column: str, options: ReadOptions) -> Columns:
    return Columns(text=column, text_option="--view column:NAME", delimiter=options.delimiter)


def _cells_of(source: Source, options: ReadOptions, column: str) -> Iterator[tuple[str, Made]]:
    asked, conditions = options.columns, RowConditions(options.rows)
    with_id, with_label = asked.id is not None, asked.label is not None
    kind = format_of(source, options.format)
    # Side by side, because a row without the cell is still a row of the corpus.
    with raw_rows(source, kind, asked) as rows, raw_rows(source, kind, _wanted(column, options)) as beside:
        for row, cell in zip(rows, beside, strict=True):
            if not conditions.hold(row):
                continue
            text = text_of_row(row, pairs=options.reads_pairs, with_id=with_id, with_label=with_label)
            if not isinstance(text, Problem):
                yield text, _made(cell[1])


def _made(cell: object) -> Made:
    if not isinstance(cell, str) or not cell or cell.isspace():
        return Kept.EMPTY_CELL
    return cell if "\0" not in cell and is_utf8(cell) else Kept.UNUSABLE_CELL
