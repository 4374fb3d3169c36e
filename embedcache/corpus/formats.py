"""Formats: the raw rows of one source, judged only where the format itself decides.

Bytes that are not UTF-8 become lone surrogates (``surrogateescape``), as a JSON escape of half a pair does.
Neither can be encoded again, which is how the reader finds them, value by value.
"""

from __future__ import annotations

import csv
import io
import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import chain, islice
from operator import itemgetter
from typing import Any, Literal

import numpy as np

from embedcache.corpus.columns import DELIMITERS, TEXT_COLUMNS, Columns, Problem, RawRow, RawRows, is_utf8
from embedcache.corpus.sources import STDIN, MemoryRows, Source, open_bytes, source_name
from embedcache.corpus.tables import batch_rows, field_names, open_table
from embedcache.corpus.url_files import UrlFile
from embedcache.errors import EmbedCacheError, EmptySourceError, InputError, MissingInputError

MAX_LINE_BYTES = 1 << 26
"""A longer line is refused: it would have to be held in memory, and is no sentence."""

# Share of malformed rows from which a file is read wrongly; least number where they cannot be skipped.
_WRONG_SHARE, _WRONG_LEAST = 0.01, 3

_ROWS_OF_KEYS = 1000
"""Objects that are looked at for the keys that the first one lacks."""

_BOM = b"\xef\xbb\xbf"
_HEAD_BYTES, _LEAST_BYTES_TO_JUDGE, _MOST_CONTROLS = 4096, 512, 0.05
_CONTROLS = bytes({*range(0x20), 0x7F} - set(b"\b\t\n\v\f\r\x1b"))
# First bytes of Parquet, Arrow, UTF-16, PDF, zip, xz, bzip2, gzip and zstd. Some lines of such a file are
# UTF-8 by chance, and would be kept as rows.
_NOT_TEXT = (
    *(b"PAR1\x15", b"ARROW1\0", b"\xff\xff\xff\xff", b"\xff\xfe", b"\xfe\xff"),
    *(b"%PDF-", b"PK\x03\x04", b"\xfd7zXZ\0", b"BZh91AY&SY", b"\x1f\x8b", b"\x28\xb5\x2f\xfd"),
)
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_DAMAGE = (OSError, EOFError, zlib.error, ValueError, NotImplementedError)
"""Errors of reading damaged data, those of pyarrow among them."""


@contextmanager
def raw_rows(source: Source, kind: str, wanted: Columns) -> Iterator[RawRows]:
    """Open ``source``, of the format ``kind``, and give its raw rows in order; read them inside the block.

    Raises:
        MissingInputError: the file or a column is missing.
        InputError: the data is damaged, cut off or of another format, no text column is obvious, or, at the
            end, too many rows are of another width than the header.
    """
    name = source_name(source)
    if wanted.delimiter is not None and kind not in ("csv", "tsv"):
        raise InputError(
            f"{name}: delimiter is for CSV and TSV, and this is read as {kind}; give --format=csv"
        )
    with ExitStack() as stack:
        try:
            yield _open(source, kind, name, wanted, stack)
        except EmbedCacheError:
            raise
        except _DAMAGE as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            missing = isinstance(error, FileNotFoundError)
            raise (MissingInputError if missing else InputError)(
                f"{name} cannot be read as {kind} ({reason}); copy, download or write it again, or pass "
                "the right format"
            ) from error


def _open(source: Source, kind: str, name: str, wanted: Columns, stack: ExitStack) -> RawRows:
    if isinstance(source, MemoryRows):
        data = source.read()
        if hasattr(data, "schema"):
            return batch_rows(data, data.schema, name, wanted)
        return _objects(map(_object, data), name, wanted)
    if kind in ("parquet", "arrow"):
        if source == STDIN:
            raise InputError(f"{kind} is not read from standard input: give a file")
        with source.open() if isinstance(source, UrlFile) else source.open("rb") as file:
            _refuse_pointer(file.read(len(_LFS_POINTER)), name)
        schema, read = open_table(source, kind, stack)
        wanted = wanted.within(field_names(schema), name)
        return batch_rows(read(sorted({column for _, column in wanted.asked})), schema, name, wanted)
    stream = stack.enter_context(open_bytes(source))
    _refuse_foreign(stream.peek(_HEAD_BYTES)[:_HEAD_BYTES], name, kind)
    lines = _lines(stream, name)
    if kind == "jsonl":
        return _objects(map(_parsed, lines), name, wanted)
    if kind in ("csv", "tsv"):
        return _delimited(lines, kind, name, wanted)
    for option, column in wanted.asked:
        raise MissingInputError(
            f"{name}: no column {column!r}: plain text has no columns; leave {option} out"
        )
    texts = (decoded.removesuffix("\n").removesuffix("\r") for decoded in lines)
    return RawRows((number, text, None, None) for number, text in enumerate(texts, 1))


def _refuse_foreign(head: bytes, name: str, kind: str) -> None:
    """Raise ``InputError`` where a file that begins with ``head`` is empty, or no text."""
    if not head:
        raise EmptySourceError(f"{name}: no rows to read as {kind}: the file is empty")
    _refuse_pointer(head, name)
    controls = len(head) - len(head.translate(None, _CONTROLS))
    is_binary = len(head) >= _LEAST_BYTES_TO_JUDGE and controls > _MOST_CONTROLS * len(head)
    if is_binary or head.startswith(_NOT_TEXT):
        raise InputError(
            f"{name} looks like binary data (it begins with {head[:6]!r}), expected {kind} in UTF-8; pass "
            "the right format, unpack or convert it"
        )


def _refuse_pointer(head: bytes, name: str) -> None:
    """Raise ``InputError`` where a file that begins with ``head`` stands for one that Git LFS keeps."""
    if head.startswith(_LFS_POINTER):
        raise InputError(f"{name} is a pointer of Git LFS, not the file itself: run 'git lfs pull'")


def _lines(stream: io.BufferedReader, name: str) -> Iterator[str]:
    """Yield the lines of ``stream`` with their endings, without a byte order mark before the first."""
    line = stream.readline(MAX_LINE_BYTES + 1).removeprefix(_BOM)
    number = 1
    while line:
        if len(line) > MAX_LINE_BYTES:
            raise InputError(
                f"{name}:{number}: a line of more than {MAX_LINE_BYTES >> 20} MiB; expected one row a line: "
                "give the right --format, or split the line"
            )
        yield line.decode("utf-8", "surrogateescape")
        line = stream.readline(MAX_LINE_BYTES + 1)
        number += 1


def _delimited(lines: Iterator[str], kind: str, name: str, wanted: Columns) -> RawRows:
    """Return the rows of ``lines``, read as ``csv`` (RFC 4180) or ``tsv`` (no quoting), under a header."""
    usual = "," if kind == "csv" else "\t"
    delimiter = usual if wanted.delimiter is None else DELIMITERS.get(wanted.delimiter, wanted.delimiter)
    if len(delimiter) != 1 or delimiter in '"\r\n':
        known = ", ".join(DELIMITERS)
        raise InputError(f"delimiter {wanted.delimiter!r}: expected one character, or one of {known}")
    escapes = 0

    def watched() -> Iterator[str]:
        nonlocal escapes
        for line in lines:
            escapes += '\\"' in line
            yield line

    records = _records(watched(), delimiter, csv.QUOTE_MINIMAL if kind == "csv" else csv.QUOTE_NONE, name)
    _, header = next(records)
    if isinstance(header, Problem) or not all(map(is_utf8, header)):
        raise InputError(f"{name}:1: the header line is not {kind.upper()} in UTF-8; give the right --format")
    wanted = wanted.within(header, name)
    # A column not asked for gives the text, which is not looked at: itemgetter is twice as fast as a closure.
    pick = itemgetter(*(header.index(str(column or wanted.text)) for column in wanted.names))
    may_be_quoted = kind == "tsv" and wanted.delimiter is None

    def rows() -> Iterator[RawRow]:
        nonlocal may_be_quoted
        wrong = _Malformed(name, wanted)
        for number, fields in records:
            wrong.rows += 1
            if isinstance(fields, Problem):
                wrong.add(number, "no CSV")
                yield wanted.lost(number, fields)
            elif len(fields) == len(header):
                found = pick(fields)
                if may_be_quoted and found[0].startswith('"'):
                    may_be_quoted = not _refuse_quoted(found[0], f"{name}:{number}")
                yield (number, *found)
            elif not fields:
                yield wanted.lost(number, Problem.EMPTY)
            else:
                wrong.add(number, f"{len(fields)} fields")
                yield wanted.lost(number, Problem.COLUMN_COUNT)
        remedy = (
            "Quote fields that hold the delimiter, or give the right --delimiter, or --format=text if every "
            "line is a text"
        )
        if escapes and kind == "csv":
            remedy = 'Quotes are escaped with a backslash: write a quote inside quotes as ""'
        wrong.check(f"the header has {len(header)} ({', '.join(header)[:80]})", remedy)

    return RawRows(rows(), wanted.text)


class _Malformed:
    """Count of malformed rows, which are an error if there are too many.

    Args:
        name: name of the source.
        wanted: says if they may be skipped.

    Attributes:
        rows: rows so far.
    """

    def __init__(self, name: str, wanted: Columns) -> None:
        self.rows, self._count, self._first = 0, 0, ""
        self._name, self._on_bad = name, wanted.on_bad

    def add(self, number: int, what: str) -> None:
        """Count the row at a position."""
        self._count += 1
        self._first = self._first or f"{self._name}:{number}: {what}"

    def check(self, expected: str, remedy: str) -> None:
        """Raise ``InputError`` if more than 1 % of the rows are malformed, unless they may be skipped."""
        least = _WRONG_LEAST if self._on_bad is None else 1
        if self._on_bad == "skip" or self._count < least or self._count <= self.rows * _WRONG_SHARE:
            return
        if self._on_bad is not None:
            remedy += "; --on-bad=skip leaves such rows out"
        raise InputError(
            f"{self._first}, and {expected}; so in {self._count:,} of {self.rows:,} rows. {remedy}"
        )


def _refuse_quoted(text: str, place: str) -> bool:
    """Refuse a TSV field that is quoted as in CSV; return whether it only begins with a quote."""
    inner = text[1:-1]
    if len(text) > 1 and text.endswith('"') and '""' in inner and '"' not in inner.replace('""', ""):
        raise InputError(
            f"{place}: fields are quoted as in CSV ({text[:60]}), expected TSV, which has no quotes: give "
            "--format=csv --delimiter=tab, or --delimiter=tab alone to keep the quotes"
        )
    return '"' in inner


def _records(
    lines: Iterator[str], delimiter: str, quoting: Literal[0, 3], name: str
) -> Iterator[tuple[int, list[str] | Problem]]:
    """Yield the first line and the fields of each record."""
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_BYTES))
    records = csv.reader(lines, delimiter=delimiter, quoting=quoting, strict=True)
    while True:
        number = records.line_num + 1
        try:
            fields = next(records)
        except StopIteration:
            return
        except csv.Error as error:
            # One bad line is one lost row. A quote left open swallows rows that cannot be counted.
            if records.line_num > number:
                raise InputError(
                    f"{name}:{number}: the record that begins here goes wrong by line {records.line_num}: a "
                    'quote was left open; close it, and write a quote inside quotes as ""'
                ) from error
            yield number, Problem.MALFORMED_CSV
        else:
            yield number, fields


def _parsed(line: str) -> object:
    """Return the JSON value of a line, or the problem with it."""
    if line.isspace():
        return Problem.EMPTY
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return Problem.MALFORMED_JSON


def _object(row: object) -> object:
    """Return a row in memory as an object: a text is one of a column alone."""
    cells = row if isinstance(row, Mapping) else {TEXT_COLUMNS[0]: row}
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in cells.items()}


def _objects(rows: Iterator[object], name: str, wanted: Columns) -> RawRows:
    """Return the rows of mappings, of which the first gives the columns."""
    before: list[object] = []
    for first in rows:
        before.append(first)
        if isinstance(first, Mapping):
            break
    else:
        raise InputError(
            f"{name}: no line is a JSON object. Write a JSON list one object a line "
            "(jq -c '.[]' FILE > FILE.jsonl), or give the right --format"
        )
    place, found = f"{name}:{len(before)}", dict.fromkeys(_keys_of(first))
    # An object may lack a key that others have.
    for row in islice(rows, _ROWS_OF_KEYS) if {column for _, column in wanted.asked} - found.keys() else ():
        before.append(row)
        found |= dict.fromkeys(_keys_of(row)) if isinstance(row, Mapping) else {}
    wanted = wanted.within([*found], place)

    def cells() -> Iterator[RawRow]:
        names, wrong = wanted.names, _Malformed(name, wanted)
        for number, row in enumerate(chain(before, rows), 1):
            wrong.rows += 1
            if isinstance(row, Mapping):
                yield (number, *(_cell(row, column) for column in names))
            else:
                problem = row if isinstance(row, Problem) else Problem.MALFORMED_JSON
                if problem is Problem.MALFORMED_JSON:
                    wrong.add(number, "no JSON object")
                yield wanted.lost(number, problem)
        wrong.check("every line should be one", "Write one JSON object a line, or give the right --format")

    return RawRows(cells(), wanted.text)


def _keys_of(row: Mapping[Any, Any], before: str = "") -> Iterator[str]:
    """Yield the keys of an object, and of objects inside it as ``outer.inner``."""
    for key, value in row.items():
        yield f"{before}{key}"
        if isinstance(value, Mapping):
            yield from _keys_of(value, f"{before}{key}.")


def _cell(row: Mapping[Any, Any], column: str | None) -> object:
    """Return the value of a column; ``outer.inner`` is one of an object inside, if no column has the name."""
    if column in row or column is None:
        return row.get(column)
    found: object = row
    for key in column.split("."):
        if not isinstance(found, Mapping) or key not in found:
            return None if found is None else Problem.MISSING_COLUMN
        found = found[key]
    return found
