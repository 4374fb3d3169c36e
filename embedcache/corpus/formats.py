"""The formats: the bytes of one source -> raw rows, nothing judged yet but what only the format can tell.

A raw row is ``(position, text, id, label)``: the position counts lines from 1 (a CSV record: its first line),
or rows from 1 for Parquet and Arrow; ``text`` is whatever stands in the column, or the :class:`Problem` that
kept it from being read; ``id`` and ``label`` mean nothing where they were not asked for. What stands in
further columns comes behind, but not behind a problem.

Bytes that are not UTF-8 become lone surrogates (``surrogateescape``), as a JSON escape of half a pair does:
neither can be encoded again, and that is how the reader finds them, value by value.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from itertools import repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from embedcache.corpus.refusals import columnar_trouble, csv_trouble, json_trouble
from embedcache.corpus.sources import Source, open_bytes, open_file, refuse_foreign, source_name
from embedcache.errors import EmbedCacheError, InputError, MissingInputError

if TYPE_CHECKING:
    import io
    from pathlib import Path

__all__ = ["MAX_LINE_BYTES", "Columns", "Problem", "RawRow", "is_utf8", "raw_rows"]

#: A longer line is refused: it would have to be held in memory, and is no sentence.
MAX_LINE_BYTES = 1 << 26

_BOM = b"\xef\xbb\xbf"
_COLUMN_NAMES = ("text", "sentence", "content")
_NEVER_TEXT = ("split", "label", "id", "idx", "score")
_SECOND = "text2"
_SLICE_ROWS = 8192
# Python 3.10's csv refuses NUL; decoding UTF-8 never gives this surrogate, so it can stand in on the way.
_NUL_STAND_IN = "\udc00"


class Problem(Enum):
    """Why a row is skipped; the values are the reasons that are reported."""

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
    """The columns to read; ``text`` None means the one that :func:`raw_rows` finds fitting.

    ``text_option`` and ``label_option`` are what the user asks for these columns with; messages name them.
    ``more`` are further columns, each with its option.
    """

    text: str | None = None
    id: str | None = None
    label: str | None = None
    text_option: str = "--text-column"
    label_option: str = "--label-column"
    more: tuple[tuple[str, str], ...] = ()

    @property
    def others(self) -> list[str | None]:
        """The columns after the text's, in the order of a raw row."""
        return [self.id, self.label, *(column for _, column in self.more)]


@contextmanager
def raw_rows(source: Source, kind: str, wanted: Columns) -> Iterator[Iterator[RawRow]]:
    """Open ``source``, of the format ``kind``, and give its raw rows in order.

    Raises:
        MissingInputError: the file or a column is not there.
        InputError: the data is damaged, cut off or of another format, or the text column cannot be told.

    """
    name = source_name(source)
    with ExitStack() as stack:
        if kind in _LINE_FORMATS:
            stream = stack.enter_context(open_bytes(source))
            refuse_foreign(stream, name, kind)
            if not stream.peek(1):
                raise InputError(
                    f"{name}: no rows to read as {kind}: the file is empty; write or download it again"
                )
            yield _LINE_FORMATS[kind](_lines(stream, name), name, wanted)
        else:
            path = stack.enter_context(open_file(source))
            yield _columnar_rows(path, kind, name, wanted)


def is_utf8(text: str) -> bool:
    """Return whether ``text`` can be encoded: no stray bytes, no half of a surrogate pair."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _text_column(wanted: Columns, found: Sequence[str], textual: Sequence[str], name: str) -> str:
    """Return the text column, once every wanted column is known to be among ``found``, and only once."""
    shown = ", ".join(found[:20]) + (f", and {len(found) - 20} more" if len(found) > 20 else "")
    text = wanted.text
    if text is None:
        left = [column for column in textual if column not in wanted.others]
        candidates = [column for column in left if column not in _NEVER_TEXT]
        if len(candidates) > 1:
            candidates = [column for column in candidates if column in _COLUMN_NAMES]
        # Half of a pair is not to be taken for the whole of a text.
        if len(candidates) != 1 or _SECOND in left:
            raise InputError(
                f"{name}: cannot tell which column holds the text; found: {shown}; "
                f"pass {wanted.text_option} with one of them"
            )
        text = candidates[0]
    for option, column in _asked(replace(wanted, text=text)):
        if column not in found:
            raise MissingInputError(
                f"{name}: no column {column!r}; found: {shown}; pass {option} with one of them"
            )
        if found.count(column) > 1:
            raise InputError(
                f"{name}: column {column!r} is there {found.count(column)} times; rename all but one"
            )
    return text


def _asked(wanted: Columns) -> Iterator[tuple[str, str]]:
    """Yield the option and the name of each column that is asked for."""
    asked = (
        (wanted.text_option, wanted.text),
        ("--id-column", wanted.id),
        (wanted.label_option, wanted.label),
    )
    yield from ((option, column) for option, column in asked if column is not None)
    yield from wanted.more


def _lines(stream: io.BufferedReader, name: str) -> Iterator[bytes]:
    """Yield the lines of ``stream`` with their endings, less a byte order mark before the first."""
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


def _decoded(line: bytes) -> str:
    """Return ``line`` without its line ending, LF or CRLF; every other character stays."""
    return line.decode("utf-8", "surrogateescape").removesuffix("\n").removesuffix("\r")


def _text_rows(lines: Iterator[bytes], name: str, wanted: Columns) -> Iterator[RawRow]:
    for option, column in _asked(wanted):
        raise MissingInputError(
            f"{name}: no column {column!r}: plain text has no columns; leave {option} out, "
            "or pass the right --format"
        )
    for number, line in enumerate(lines, 1):
        yield number, _decoded(line), None, None


def _jsonl_rows(lines: Iterator[bytes], name: str, wanted: Columns) -> Iterator[RawRow]:
    text: str | None = None
    first: tuple[int, bytes] | None = None
    for number, line in enumerate(lines, 1):
        if line.isspace():
            yield number, Problem.EMPTY, None, None
            continue
        try:
            row = json.loads(line.decode("utf-8", "surrogateescape"))
        except (ValueError, RecursionError):
            row = None
        first = first or (number, line)
        if not isinstance(row, dict):
            yield number, Problem.MALFORMED_JSON, None, None
            continue
        if text is None:
            textual = [key for key, value in row.items() if isinstance(value, str)]
            text = _text_column(wanted, list(row), textual, f"{name}:{number}")
        try:
            yield (number, row[text], *(None if name is None else row[name] for name in wanted.others))
        except KeyError:
            yield number, Problem.MISSING_COLUMN, None, None
    if text is None and first is not None:
        number, line = first
        raise InputError(
            f'{name}: no line is a JSON object, such as {{"text": "..."}}; line {number} {json_trouble(line)}'
        )


def _tsv_rows(lines: Iterator[bytes], name: str, wanted: Columns) -> Iterator[RawRow]:
    header = next(lines, None)
    if header is None:
        return
    found = _header(_decoded(header).split("\t"), name)
    pick = _picker(wanted, found, name)
    for number, line in enumerate(lines, 2):
        fields = _decoded(line).split("\t")
        if len(fields) == len(found):
            yield (number, *pick(fields))
        else:
            yield number, Problem.EMPTY if fields == [""] else Problem.COLUMN_COUNT, None, None


def _csv_rows(lines: Iterator[bytes], name: str, wanted: Columns) -> Iterator[RawRow]:
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_BYTES))
    decoded = (line.decode("utf-8", "surrogateescape").replace("\0", _NUL_STAND_IN) for line in lines)
    records = csv.reader(decoded, strict=True)
    try:
        header = next(records, None)
    except csv.Error as error:
        raise InputError(
            f"{name}:1: the header line is not CSV: {csv_trouble(error)}, or pass the right --format"
        ) from error
    if header is None:
        return
    found = _header(header, name)
    pick = _picker(wanted, found, name)
    while True:
        number = records.line_num + 1
        try:
            fields = next(records)
        except StopIteration:
            return
        except csv.Error as error:
            # One bad line is one lost row. A quote left open swallows rows that nobody could count.
            if records.line_num > number:
                raise InputError(
                    f"{name}:{number}: the record that begins here goes wrong by line {records.line_num}: a "
                    'quote was left open; close it, and write a quote inside quotes as ""'
                ) from error
            yield number, Problem.MALFORMED_CSV, None, None
            continue
        if len(fields) == len(found):
            yield (number, *(field.replace(_NUL_STAND_IN, "\0") for field in pick(fields)))
        else:
            yield number, Problem.COLUMN_COUNT if fields else Problem.EMPTY, None, None


def _header(fields: list[str], name: str) -> list[str]:
    if not all(map(is_utf8, fields)):
        raise InputError(f"{name}:1: the header line is not UTF-8; convert the file, with iconv say")
    return fields


def _picker(wanted: Columns, found: list[str], name: str) -> Callable[[list[str]], tuple[str, ...]]:
    """Return the function that takes (text, id, label), and more, from the fields of a row."""
    text = _text_column(wanted, found, found, name)
    # A column not asked for gives the text, which nobody looks at: itemgetter twice as fast as a closure.
    return itemgetter(*(found.index(column or text) for column in (text, *wanted.others)))


_LINE_FORMATS: dict[str, Callable[[Iterator[bytes], str, Columns], Iterator[RawRow]]] = {
    "text": _text_rows,
    "jsonl": _jsonl_rows,
    "csv": _csv_rows,
    "tsv": _tsv_rows,
}


def _columnar_rows(path: Path, kind: str, name: str, wanted: Columns) -> Iterator[RawRow]:
    number = 1
    with _readable(path, name, kind), ExitStack() as stack:
        columns, batches = (_open_parquet if kind == "parquet" else _open_arrow)(path, name, wanted, stack)
        for batch in batches:
            # One batch may be the whole file: only a slice of it becomes Python objects at a time.
            for start in range(0, batch.num_rows, _SLICE_ROWS):
                part = batch.slice(start, _SLICE_ROWS)
                values = (
                    repeat(None) if column is None else _values(part.column(column))
                    for column in (columns.text, *columns.others)
                )
                yield from zip(range(number, number + part.num_rows), *values)  # noqa: B905 - repeat
                number += part.num_rows


def _open_parquet(path: Path, name: str, wanted: Columns, stack: ExitStack) -> tuple[Columns, Iterator[Any]]:
    import pyarrow.parquet as pq

    file = stack.enter_context(pq.ParquetFile(path, page_checksum_verification=True))
    columns = _schema_columns(file.schema_arrow, name, wanted)
    return columns, file.iter_batches(batch_size=_SLICE_ROWS, columns=_names(columns))


def _open_arrow(path: Path, name: str, wanted: Columns, stack: ExitStack) -> tuple[Columns, Iterator[Any]]:
    import pyarrow as pa

    file = stack.enter_context(pa.memory_map(str(path)))
    seekable = file.read(6) == b"ARROW1"
    opened = pa.ipc.open_file if seekable else pa.ipc.open_stream
    file.seek(0)
    schema = opened(file).schema
    columns = _schema_columns(schema, name, wanted)
    file.seek(0)
    options = pa.ipc.IpcReadOptions(
        included_fields=[schema.get_field_index(column) for column in _names(columns)]
    )
    reader = stack.enter_context(opened(file, options=options))
    return columns, map(reader.get_batch, range(reader.num_record_batches)) if seekable else iter(reader)


def _names(columns: Columns) -> list[str]:
    return sorted({column for column in (columns.text, *columns.others) if column is not None})


def _schema_columns(schema: Any, name: str, wanted: Columns) -> Columns:
    """Return ``wanted`` with the text column filled in, of a type that holds text."""
    textual = [
        field.name for field in schema if _holds(field.type, ("string", "large_string", "string_view"))
    ]
    text = _text_column(wanted, schema.names, textual, name)
    kind = schema.field(text).type
    # Old writers of Parquet leave text as bare bytes: taken where the column is named outright.
    if text not in textual and not _holds(kind, ("binary", "large_binary", "binary_view")):
        raise InputError(
            f"{name}: column {text!r} holds {kind}, expected text; pass {wanted.text_option} with another"
        )
    return replace(wanted, text=text)


def _holds(kind: Any, names: tuple[str, ...]) -> bool:
    import pyarrow as pa

    return str(kind.value_type if pa.types.is_dictionary(kind) else kind) in names


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


@contextmanager
def _readable(path: Path, name: str, kind: str) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except EmbedCacheError:
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # the last: a damaged column name
        raise InputError(f"{name} cannot be read as {kind}: {columnar_trouble(path, kind, error)}") from error
