"""Sources with named columns: CSV and TSV, Parquet and Arrow."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from enum import Enum
from itertools import chain, count, islice, repeat
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeAlias

from embedcache.errors import InputError, MissingInputError

_USUAL_NAMES = ("text", "sentence", "content")
_NEVER_TEXT = ("split", "label", "id", "idx", "score")
_SECOND = "text2"

DELIMITERS = {"comma": ",", "tab": "\t", "semicolon": ";", "pipe": "|", "\\t": "\t"}
"""Word -> the delimiter that it means, beside the character itself."""

# Share and least number of rows of another width that mean that the file is read wrongly.
_WRONG_SHARE, _WRONG_LEAST = 0.01, 3
_LONGEST_HEADER_CELL, _MOST_HEADER_WORDS = 60, 3
_LONGEST_FIELD = 1 << 26
# Python 3.10's csv refuses NUL; decoding UTF-8 never gives this surrogate, so it can stand in on the way.
_NUL_STAND_IN = "\udc00" if sys.version_info < (3, 11) else ""

_SLICE_ROWS = 8192


class Problem(Enum):
    """Reason for skipping a row; the values are reported."""

    EMPTY = "empty"
    NULL = "null"
    NOT_A_STRING = "not a string"
    INVALID_UTF8 = "invalid utf-8"
    NUL_BYTE = "nul byte"
    MALFORMED_JSON = "malformed json"
    MALFORMED_CSV = "malformed csv"
    COLUMN_COUNT = "wrong number of columns"
    MISSING_COLUMN = "missing column"
    NULL_ID = "null id"
    NULL_LABEL = "null label"
    BAD_LABEL = "unusable label"
    PAIR_SEPARATOR = "pair separator"


RawRow: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True)
class Columns:
    """Columns to read; ``text`` None means the one that :func:`raw_rows` finds fitting.

    ``text_option`` and ``label_option`` are the options that name these columns, for messages. ``more`` are
    further columns, each with its option. ``delimiter`` stands between the fields of CSV and TSV.
    """

    text: str | None = None
    id: str | None = None
    label: str | None = None
    text_option: str = "--text-column"
    label_option: str = "--label-column"
    more: tuple[tuple[str, str], ...] = ()
    delimiter: str | None = None

    @property
    def others(self) -> list[str | None]:
        """Columns after the text's, in the order of a raw row."""
        return [self.id, self.label, *(column for _, column in self.more)]


@dataclass
class RawRows(Iterator[RawRow]):
    """Raw rows in order.

    Attributes:
        rows: the rows.
        column: column of the text; None for plain text.
        check: called when reading ends; raises :class:`InputError` where too many rows are malformed.
    """

    rows: Iterator[RawRow]
    column: str | None = None
    check: Callable[[], None] = lambda: None

    def __iter__(self) -> Iterator[RawRow]:
        """Return the rows that are left."""
        return self.rows

    def __next__(self) -> RawRow:
        """Return the next row."""
        return next(self.rows)


def is_utf8(text: str) -> bool:
    """Return whether ``text`` can be encoded: no stray bytes, no half of a surrogate pair."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def find_text_column(wanted: Columns, found: Sequence[str], textual: Sequence[str], name: str) -> str:
    """Return the text column, once every wanted column is known to be among ``found``, and only once."""
    shown = ", ".join(found[:20]) + (f", and {len(found) - 20} more" if len(found) > 20 else "")
    text = wanted.text
    if text is None:
        left = [column for column in textual if column not in wanted.others]
        candidates = [column for column in left if column not in _NEVER_TEXT]
        if len(candidates) > 1:
            candidates = [column for column in candidates if column in _USUAL_NAMES]
        # Half of a pair is not to be taken for the whole of a text.
        if len(candidates) != 1 or _SECOND in left:
            raise InputError(
                f"{name}: cannot tell which column holds the text; found: {shown}; "
                f"pass {wanted.text_option} with one of them, or add a header line where there is none"
            )
        text = candidates[0]
    for option, column in asked(replace(wanted, text=text)):
        if column not in found:
            raise MissingInputError(
                f"{name}: no column {column!r}; found: {shown}; pass {option} with one of them"
            )
        if found.count(column) > 1:
            raise InputError(
                f"{name}: {found.count(column)} columns are called {column!r}; rename all but one"
            )
    return text


def asked(wanted: Columns) -> list[tuple[str, str]]:
    """Return the option and the name of each column that is asked for."""
    own = (
        (wanted.text_option, wanted.text),
        ("--id-column", wanted.id),
        (wanted.label_option, wanted.label),
    )
    return [(option, column) for option, column in own if column is not None] + list(wanted.more)


def refuse_columns(wanted: Columns, name: str, what: str) -> None:
    """Raise :class:`MissingInputError` where a column is asked for of ``what``, which has none."""
    for option, column in asked(wanted):
        raise MissingInputError(f"{name}: no column {column!r}: {what} has no columns; leave {option} out")


_Record: TypeAlias = tuple[int, list[str] | Problem]


class _Table:
    """Rows of CSV or TSV under a header.

    Args:
        records: line number and fields of each row after the header.
        header: names of the columns.
        pick: gives the wanted fields of a row.
        name: name of the source.
    """

    def __init__(
        self,
        records: Iterator[_Record],
        header: list[str],
        pick: Callable[[list[str]], tuple[str, ...]],
        name: str,
    ) -> None:
        self._records, self._header, self._pick, self._name = records, header, pick, name
        self._rows = self._wrong = 0
        self._first = ""

    def __iter__(self) -> Iterator[RawRow]:
        """Yield the raw rows."""
        width = len(self._header)
        for number, fields in self._records:
            self._rows += 1
            if isinstance(fields, Problem):
                yield number, fields, None, None
            elif len(fields) == width:
                yield (number, *self._pick(fields))
            elif fields in ([], [""]):
                yield number, Problem.EMPTY, None, None
            else:
                self._wrong += 1
                self._first = self._first or f"{self._name}:{number}: {len(fields)} fields"
                yield number, Problem.COLUMN_COUNT, None, None

    def check(self) -> None:
        """Raise :class:`InputError` where too many of the rows read have another width than the header."""
        if self._wrong >= _WRONG_LEAST and self._wrong > self._rows * _WRONG_SHARE:
            header = ", ".join(self._header)[:80]
            raise InputError(
                f"{self._first}, and the header has {len(self._header)} ({header}); so in {self._wrong:,} of "
                f"{self._rows:,} rows. Quote fields that hold the delimiter, or pass the right --delimiter, "
                "or --format text if every line is a text"
            )


def open_delimited(lines: Iterator[bytes], kind: str, name: str, wanted: Columns) -> RawRows:
    """Return the rows of ``lines``, read as ``csv`` (RFC 4180) or ``tsv`` (no quoting).

    Raises:
        MissingInputError: if a column is missing.
        InputError: if the header has another delimiter or looks like data, or no text column is obvious.
    """
    delimiter = DELIMITERS.get(wanted.delimiter or "", wanted.delimiter) or ("," if kind == "csv" else "\t")
    if len(delimiter) != 1 or delimiter in '"\r\n':
        known = ", ".join(DELIMITERS)
        raise InputError(f"--delimiter {wanted.delimiter!r}: expected one character, or one of {known}")
    first = next(lines)
    records = (_csv_records if kind == "csv" else _tsv_records)(chain([first], lines), delimiter, name)
    _, header = next(records)
    if isinstance(header, Problem) or not all(map(is_utf8, header)):
        raise InputError(f"{name}:1: the header line is not {kind.upper()} in UTF-8; pass the right --format")
    if wanted.delimiter is None:
        _refuse_other_delimiter(decoded_line(first), header, delimiter, name)
    text = find_text_column(wanted, header, header, name)
    if wanted.text is None and text not in _USUAL_NAMES and _is_sentence(text):
        raise InputError(
            f"{name}:1: the first line looks like data, expected a header: {text[:60]!r}. Add a header line, "
            "pass --format text if every line is a text, or name the column with --text-column"
        )
    # A column not asked for gives the text, which is not looked at: itemgetter is twice as fast as a closure.
    pick = itemgetter(*(header.index(column or text) for column in (text, *wanted.others)))
    table = _Table(records, header, pick, name)
    return RawRows(iter(table), text, table.check)


def _refuse_other_delimiter(line: str, header: Sequence[str], delimiter: str, name: str) -> None:
    word, other = max(DELIMITERS.items(), key=lambda item: line.count(item[1]))
    cells = line.split(other)
    if other != delimiter and len(cells) > len(header) and not any(map(_is_sentence, cells)):
        raise InputError(
            f"{name}:1: the header has {len(cells)} columns by {word} and {len(header)} by {delimiter!r}: "
            f"{line[:60]!r}. Pass --delimiter {word}"
        )


def _is_sentence(cell: str) -> bool:
    words = cell.split()
    return (
        len(words) > _MOST_HEADER_WORDS
        or len(cell) > _LONGEST_HEADER_CELL
        or cell.rstrip().endswith((".", "!"))
    )


def _tsv_records(lines: Iterator[bytes], delimiter: str, name: str) -> Iterator[_Record]:
    return ((number, decoded_line(line).split(delimiter)) for number, line in enumerate(lines, 1))


def _csv_records(lines: Iterator[bytes], delimiter: str, name: str) -> Iterator[_Record]:
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_FIELD))
    decoded = (line.decode("utf-8", "surrogateescape") for line in lines)
    if _NUL_STAND_IN:
        decoded = (line.replace("\0", _NUL_STAND_IN) for line in decoded)
    records = csv.reader(decoded, delimiter=delimiter, strict=True)
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
            continue
        if _NUL_STAND_IN:
            fields = [field.replace(_NUL_STAND_IN, "\0") for field in fields]
        yield number, fields


def decoded_line(line: bytes) -> str:
    """Return ``line`` without its line ending, LF or CRLF; every other character stays."""
    return line.decode("utf-8", "surrogateescape").removesuffix("\n").removesuffix("\r")


def open_parquet(path: Path, name: str, wanted: Columns, stack: ExitStack) -> RawRows:
    """Open a Parquet file, of which only the columns asked for are read."""
    import pyarrow.parquet as pq

    file = stack.enter_context(pq.ParquetFile(path, page_checksum_verification=True))
    columns = _schema_columns(file.schema_arrow, name, wanted)
    names = {column for column in (columns.text, *columns.others) if column is not None}
    return _sliced(file.iter_batches(batch_size=_SLICE_ROWS, columns=sorted(names)), columns)


def open_arrow(path: Path, name: str, wanted: Columns, stack: ExitStack) -> RawRows:
    """Open an Arrow IPC file or stream."""
    import pyarrow as pa

    file = stack.enter_context(pa.memory_map(str(path)))
    if file.read(6) != b"ARROW1":
        file.seek(0)
        return open_reader(stack.enter_context(pa.ipc.open_stream(file)), name, wanted)
    reader = pa.ipc.open_file(file)
    columns = _schema_columns(reader.schema, name, wanted)
    return _sliced(map(reader.get_batch, range(reader.num_record_batches)), columns)


def open_reader(reader: Any, name: str, wanted: Columns) -> RawRows:
    """Return the rows of a ``pyarrow.RecordBatchReader``."""
    return _sliced(reader, _schema_columns(reader.schema, name, wanted))


def _sliced(batches: Iterable[Any], columns: Columns) -> RawRows:
    def rows() -> Iterator[RawRow]:
        number = count(1)
        for batch in batches:
            # One batch may be the whole file: only a slice of it becomes Python objects at a time.
            for start in range(0, batch.num_rows, _SLICE_ROWS):
                part = batch.slice(start, _SLICE_ROWS)
                values = (
                    repeat(None) if column is None else _values(part.column(column))
                    for column in (columns.text, *columns.others)
                )
                yield from zip(islice(number, part.num_rows), *values)  # noqa: B905 - repeat

    return RawRows(rows(), columns.text)


def _schema_columns(schema: Any, name: str, wanted: Columns) -> Columns:
    """Return ``wanted`` with the text column filled in, of a type that holds text."""
    textual = [field.name for field in schema if _holds(field.type, "string")]
    text = find_text_column(wanted, schema.names, textual, name)
    kind = schema.field(text).type
    # Old writers of Parquet leave text as bare bytes: taken where the column is named outright.
    if text not in textual and not _holds(kind, "binary"):
        raise InputError(
            f"{name}: column {text!r} holds {kind}, expected text; pass {wanted.text_option} with another"
        )
    return replace(wanted, text=text)


def _holds(kind: Any, what: str) -> bool:
    import pyarrow as pa

    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    return str(value) in (what, f"large_{what}", f"{what}_view")


def _values(column: Any) -> list[object]:
    """Return the values of an Arrow array as Python objects, its offsets and indices checked first."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = pa.DictionaryArray.from_arrays(column.indices, _bytes(column.dictionary)).dictionary_decode()
    values: list[object] = _bytes(column).to_pylist()
    return [value.decode("utf-8", "surrogateescape") if type(value) is bytes else value for value in values]


def _bytes(column: Any) -> Any:
    """Check a column and view strings as bytes: one value that is not UTF-8 must not fail the batch."""
    import pyarrow as pa

    views = {
        pa.string(): pa.binary(),
        pa.large_string(): pa.large_binary(),
        pa.string_view(): pa.binary_view(),
    }
    column = column.view(views.get(column.type, column.type))
    column.validate(full=True)
    return column
