"""Formats: the bytes of one source -> raw rows, judged only where the format itself decides.

A raw row is ``(position, text, id, label, *more)``. The position counts lines from 1 (a CSV record: its first
line), or rows from 1. ``text`` is the value of the column, or the :class:`Problem` of the row; a row with a
problem ends after the label. ``id`` and ``label`` have no meaning unless they were asked for.

Bytes that are not UTF-8 become lone surrogates (``surrogateescape``), as a JSON escape of half a pair does.
Neither can be encoded again, which is how the reader finds them, value by value.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import TYPE_CHECKING

from embedcache.corpus.columnar import open_arrow, open_parquet, open_reader
from embedcache.corpus.delimited import decoded_line, open_delimited
from embedcache.corpus.memory import MemoryRows, plain
from embedcache.corpus.source_columns import (
    Columns,
    Opened,
    Problem,
    RawRow,
    find_text_column,
    is_utf8,
    refuse_columns,
)
from embedcache.corpus.sources import (
    JSON_LIST,
    Source,
    open_bytes,
    open_file,
    readable,
    refuse_foreign,
    source_name,
)
from embedcache.errors import InputError

if TYPE_CHECKING:
    import io

__all__ = ["Columns", "Problem", "RawRow", "RawRows", "is_utf8", "raw_rows"]

MAX_LINE_BYTES = 1 << 26
"""A longer line is refused: it would have to be held in memory, and is no sentence."""

_BOM = b"\xef\xbb\xbf"


class RawRows(Iterator[RawRow]):
    """Raw rows in order.

    Attributes:
        column: the column of the text; None for plain text.
    """

    def __init__(self, rows: Iterator[RawRow], column: str | None) -> None:
        self._rows, self.column = rows, column

    def __iter__(self) -> Iterator[RawRow]:
        """Return the rows that are left."""
        return self._rows

    def __next__(self) -> RawRow:
        """Return the next row."""
        return next(self._rows)


@contextmanager
def raw_rows(source: Source, kind: str, wanted: Columns) -> Iterator[RawRows]:
    """Open ``source``, of the format ``kind``, and give its raw rows in order.

    Raises:
        MissingInputError: the file or a column is missing.
        InputError: the data is damaged, cut off or of another format, the text column cannot be told, or, at
            the end, too many rows are of another width than the header.
    """
    name = source_name(source)
    if wanted.delimiter is not None and kind not in ("csv", "tsv"):
        raise InputError(
            f"{name}: --delimiter is for CSV and TSV, and this is read as {kind}; pass --format csv"
        )
    with ExitStack() as stack:
        with readable(name, kind):
            opened = _open(source, kind, name, wanted, stack)
        yield RawRows(_guarded(opened.rows, name, kind), opened.column)
        opened.check()


def _open(source: Source, kind: str, name: str, wanted: Columns, stack: ExitStack) -> Opened:
    if isinstance(source, MemoryRows):
        return _memory(source, name, wanted)
    if kind in ("parquet", "arrow"):
        path = stack.enter_context(open_file(source))
        if not path.stat().st_size:
            raise InputError(f"{name}: no rows to read as {kind}: the file is empty")
        return (open_parquet if kind == "parquet" else open_arrow)(path, name, wanted, stack)
    stream = stack.enter_context(open_bytes(source))
    refuse_foreign(stream, name, kind)
    if not stream.peek(1):
        raise InputError(f"{name}: no rows to read as {kind}: the file is empty")
    lines = _lines(stream, name)
    if kind == "text":
        return _text(lines, name, wanted)
    if kind == "jsonl":
        return _objects(
            map(_parsed, lines),
            f"{name}: no line is a JSON object. {JSON_LIST}, or pass the right --format",
            name,
            wanted,
        )
    return open_delimited(lines, kind, name, wanted)


def _guarded(rows: Iterable[RawRow], name: str, kind: str) -> Iterator[RawRow]:
    with readable(name, kind):
        yield from rows


def _lines(stream: io.BufferedReader, name: str) -> Iterator[bytes]:
    """Yield the lines of ``stream`` with their endings, without a byte order mark before the first."""
    line = stream.readline(MAX_LINE_BYTES + 1).removeprefix(_BOM)
    number = 1
    while line:
        if len(line) > MAX_LINE_BYTES:
            raise InputError(
                f"{name}:{number}: a line of more than {MAX_LINE_BYTES >> 20} MiB; expected one row a line: "
                "pass the right --format, or split the line"
            )
        yield line
        line = stream.readline(MAX_LINE_BYTES + 1)
        number += 1


def _text(lines: Iterator[bytes], name: str, wanted: Columns) -> Opened:
    refuse_columns(wanted, name, "plain text")
    return Opened((number, decoded_line(line), None, None) for number, line in enumerate(lines, 1))


def _parsed(line: bytes) -> object:
    """Return the JSON object of a line, or the problem with it."""
    if line.isspace():
        return Problem.EMPTY
    try:
        return json.loads(line.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError):
        return Problem.MALFORMED_JSON


def _objects(rows: Iterable[object], none: str, name: str, wanted: Columns) -> Opened:
    """Give the rows of mappings, of which the first tells the columns; ``none`` says that there is none."""
    rows = iter(rows)
    before: list[object] = []
    for row in rows:
        before.append(row)
        if isinstance(row, Mapping):
            break
    else:
        if all(row is Problem.EMPTY for row in before):
            return Opened((number, Problem.EMPTY, None, None) for number in range(1, len(before) + 1))
        raise InputError(none)
    textual = [str(key) for key, value in row.items() if isinstance(value, str)]
    text = find_text_column(wanted, [str(key) for key in row], textual, f"{name}:{len(before)}")
    return Opened(_fields(chain(before, rows), text, wanted.others), text)


def _fields(rows: Iterable[object], text: str, others: Sequence[str | None]) -> Iterator[RawRow]:
    for number, row in enumerate(rows, 1):
        if isinstance(row, Mapping):
            try:
                yield (number, row[text], *(None if name is None else row[name] for name in others))
            except KeyError:
                yield number, Problem.MISSING_COLUMN, None, None
        else:
            yield number, row if isinstance(row, Problem) else Problem.MALFORMED_JSON, None, None


def _memory(source: MemoryRows, name: str, wanted: Columns) -> Opened:
    if source.kind == "arrow":
        return open_reader(source.read(), name, wanted)
    rows = map(_plain_row, source.read())
    if source.kind == "objects":
        return _objects(rows, f"{name}: no row is a dictionary", name, wanted)
    refuse_columns(wanted, name, "a list of strings")
    return Opened((number, text, None, None) for number, text in enumerate(rows, 1))


def _plain_row(row: object) -> object:
    if isinstance(row, Mapping):
        return {str(name): plain(value) for name, value in row.items()}
    return plain(row)
