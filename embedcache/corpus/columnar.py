"""Columnar formats: Parquet, Arrow IPC files and streams, Arrow tables in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any

from embedcache.corpus.source_columns import Columns, RawRow, RawRows, find_text_column
from embedcache.errors import InputError

_SLICE_ROWS = 8192


def open_parquet(path: Path, name: str, wanted: Columns, stack: ExitStack) -> RawRows:
    """Open a Parquet file, of which only the columns asked for are read."""
    import pyarrow.parquet as pq

    file = stack.enter_context(pq.ParquetFile(path, page_checksum_verification=True))
    columns = _schema_columns(file.schema_arrow, name, wanted)
    names = {column for column in (columns.text, *columns.others) if column is not None}
    return _batches(file.iter_batches(batch_size=_SLICE_ROWS, columns=sorted(names)), columns)


def open_arrow(path: Path, name: str, wanted: Columns, stack: ExitStack) -> RawRows:
    """Open an Arrow IPC file or stream."""
    import pyarrow as pa

    file = stack.enter_context(pa.memory_map(str(path)))
    if file.read(6) != b"ARROW1":
        file.seek(0)
        return open_reader(stack.enter_context(pa.ipc.open_stream(file)), name, wanted)
    reader = pa.ipc.open_file(file)
    columns = _schema_columns(reader.schema, name, wanted)
    return _batches(map(reader.get_batch, range(reader.num_record_batches)), columns)


def open_reader(reader: Any, name: str, wanted: Columns) -> RawRows:
    """Return the rows of a ``pyarrow.RecordBatchReader``."""
    return _batches(reader, _schema_columns(reader.schema, name, wanted))


def _batches(batches: Iterable[Any], columns: Columns) -> RawRows:
    return RawRows(_batch_rows(batches, columns), columns.text)


def _batch_rows(batches: Iterable[Any], columns: Columns) -> Iterator[RawRow]:
    number = 1
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
