"""Formats: the bytes of one source -> raw rows, judged only where the format itself decides.

A raw row is ``(position, text, id, label, *more)``. The position counts lines from 1 (a CSV record: its first
line), or rows from 1. ``text`` is the value of the column, or the :class:`Problem` of the row; a row with a
problem ends after the label. ``id`` and ``label`` have no meaning unless they were asked for.

Bytes that are not UTF-8 become lone surrogates (``surrogateescape``), as a JSON escape of half a pair does.
Neither can be encoded again, which is how the reader finds them, value by value.
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import chain
from typing import Any

from embedcache.corpus.sources import (
    JSON_LIST,
    MEMORY,
    MemoryRows,
    Source,
    open_bytes,
    open_file,
    source_name,
)
from embedcache.corpus.tables import (
    Columns,
    Problem,
    RawRow,
    RawRows,
    decoded_line,
    find_text_column,
    open_arrow,
    open_delimited,
    open_parquet,
    open_reader,
    refuse_columns,
)
from embedcache.errors import EmbedCacheError, InputError, MissingInputError

MAX_LINE_BYTES = 1 << 26
"""A longer line is refused: it would have to be held in memory, and is no sentence."""

_BOM = b"\xef\xbb\xbf"
_HEAD_BYTES, _LEAST_BYTES_TO_JUDGE, _MOST_CONTROLS = 4096, 512, 0.05
_CONTROLS = bytes({*range(0x20), 0x7F} - set(b"\b\t\n\v\f\r\x1b"))

# First bytes that no text has. Some lines of such a file are UTF-8 by chance, and would be kept as rows.
_NOT_TEXT = {
    b"PAR1\x15": "Parquet",
    b"ARROW1\0\0": "Arrow",
    b"\xff\xff\xff\xff": "Arrow",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
    b"%PDF-": "a PDF document",
    b"PK\x03\x04": "a zip archive",
    b"\xfd7zXZ\0": "xz",
    b"BZh91AY&SY": "bzip2",
    b"\x1f\x8b": "gzip inside a compressed file",
    b"\x28\xb5\x2f\xfd": "zstd inside a compressed file",
}


@contextmanager
def raw_rows(source: Source, kind: str, wanted: Columns) -> Iterator[RawRows]:
    """Open ``source``, of the format ``kind``, and give its raw rows in order.

    Raises:
        MissingInputError: the file or a column is missing.
        InputError: the data is damaged, cut off or of another format, no text column is obvious, or, at the
            end, too many rows are of another width than the header.
    """
    name = source_name(source)
    if wanted.delimiter is not None and kind not in ("csv", "tsv"):
        raise InputError(
            f"{name}: --delimiter is for CSV and TSV, and this is read as {kind}; pass --format csv"
        )
    with ExitStack() as stack:
        with _readable(name, kind):
            opened = _open(source, kind, name, wanted, stack)
        yield replace(opened, rows=_guarded(opened.rows, name, kind))
        opened.check()


def _open(source: Source, kind: str, name: str, wanted: Columns, stack: ExitStack) -> RawRows:
    if isinstance(source, MemoryRows):
        return _memory(source, name, wanted)
    if kind in ("parquet", "arrow"):
        path = stack.enter_context(open_file(source))
        _refuse_empty(path.stat().st_size, name, kind)
        return (open_parquet if kind == "parquet" else open_arrow)(path, name, wanted, stack)
    stream = stack.enter_context(open_bytes(source))
    _refuse_foreign(stream, name, kind)
    _refuse_empty(len(stream.peek(1)), name, kind)
    lines = _lines(stream, name)
    if kind == "text":
        return _text(lines, name, wanted)
    if kind == "jsonl":
        return _objects(map(_parsed, lines), name, wanted)
    return open_delimited(lines, kind, name, wanted)


def _refuse_empty(size: int, name: str, kind: str) -> None:
    if not size:
        raise InputError(f"{name}: no rows to read as {kind}: the file is empty")


def _guarded(rows: Iterable[RawRow], name: str, kind: str) -> Iterator[RawRow]:
    with _readable(name, kind):
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


def _text(lines: Iterator[bytes], name: str, wanted: Columns) -> RawRows:
    refuse_columns(wanted, name, "plain text")
    return RawRows((number, decoded_line(line), None, None) for number, line in enumerate(lines, 1))


def _parsed(line: bytes) -> object:
    """Return the JSON object of a line, or the problem with it."""
    if line.isspace():
        return Problem.EMPTY
    try:
        return json.loads(line.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError):
        return Problem.MALFORMED_JSON


def _objects(rows: Iterator[object], name: str, wanted: Columns) -> RawRows:
    """Give the rows of mappings, of which the first tells the columns."""
    before: list[object] = []
    for row in rows:
        before.append(row)
        if isinstance(row, Mapping):
            break
    else:
        if all(row is Problem.EMPTY for row in before):
            return RawRows((number, Problem.EMPTY, None, None) for number in range(1, len(before) + 1))
        raise InputError(f"{name}: no line is a JSON object. {JSON_LIST}, or pass the right --format")
    textual = [str(key) for key, value in row.items() if isinstance(value, str)]
    text = find_text_column(wanted, [str(key) for key in row], textual, f"{name}:{len(before)}")
    return RawRows(_fields(chain(before, rows), text, wanted.others), text)


def _fields(rows: Iterable[object], text: str, others: Sequence[str | None]) -> Iterator[RawRow]:
    for number, row in enumerate(rows, 1):
        if isinstance(row, Mapping):
            try:
                yield (number, row[text], *(None if name is None else row[name] for name in others))
            except KeyError:
                yield number, Problem.MISSING_COLUMN, None, None
        else:
            yield number, row if isinstance(row, Problem) else Problem.MALFORMED_JSON, None, None


def _memory(source: MemoryRows, name: str, wanted: Columns) -> RawRows:
    if source.kind == "arrow":
        return open_reader(source.read(), name, wanted)
    rows = map(_plain_row, source.read())
    if source.kind == "objects":
        return _objects(rows, name, wanted)
    refuse_columns(wanted, name, "a list of strings")
    return RawRows((number, text, None, None) for number, text in enumerate(rows, 1))


def _plain_row(row: object) -> object:
    if isinstance(row, Mapping):
        return {str(name): _plain(value) for name, value in row.items()}
    return _plain(row)


def _plain(value: Any) -> object:
    """Return a value of a row as Python's own type: no NumPy scalar or string, and None for NaN."""
    if isinstance(value, str):
        return value if type(value) is str else str(value)
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        value = value.item()
    return None if isinstance(value, float) and value != value else value


@contextmanager
def _readable(name: str, kind: str) -> Iterator[None]:
    """Turn what reading damaged data raises into :class:`InputError`."""
    damage: tuple[type[Exception], ...] = (OSError, EOFError, zlib.error, UnicodeDecodeError)
    if kind in ("parquet", "arrow", MEMORY):
        import pyarrow as pa

        damage += (pa.ArrowException,)
    try:
        yield
    except EmbedCacheError:
        raise
    except damage as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        missing = isinstance(error, FileNotFoundError)
        raise (MissingInputError if missing else InputError)(
            f"{name} cannot be read as {kind} ({reason}); copy, download or write it again, or pass "
            "the right --format"
        ) from error


def _refuse_foreign(stream: io.BufferedReader, name: str, kind: str) -> None:
    """Raise :class:`InputError` where ``stream`` is no text, as the format ``kind`` is."""
    head = stream.peek(_HEAD_BYTES)
    meaning = next((meaning for magic, meaning in _NOT_TEXT.items() if head.startswith(magic)), None)
    controls = len(head) - len(head.translate(None, _CONTROLS))
    if meaning is None and len(head) >= _LEAST_BYTES_TO_JUDGE and controls > _MOST_CONTROLS * len(head):
        meaning = "binary data"
    if meaning is not None:
        raise InputError(
            f"{name} looks like {meaning}, expected {kind} in UTF-8; pass the right --format, or convert it"
        )
