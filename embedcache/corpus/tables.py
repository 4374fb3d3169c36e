"""Rows of tables: Parquet files, Arrow files and streams, and record batches in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import count, islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedcache.corpus.columns import Columns, RawRow, RawRows
from embedcache.corpus.url_files import RangeFile, UrlFile
from embedcache.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

SLICE_ROWS = 8192
"""Rows that are Python objects at a time."""


def field_names(schema: pa.Schema) -> list[str]:
    """Return the columns of a table, and the fields inside them as ``outer.inner``."""
    import pyarrow as pa

    def names(fields: Iterable[pa.Field], before: str) -> Iterator[str]:
        for field in fields:
            yield before + field.name
            if pa.types.is_struct(field.type):
                yield from names(field.type, f"{before}{field.name}.")

    top = list(schema.names)
    return [*top, *(name for name in names(schema, "") if name not in top)]


def open_table(
    path: Path | UrlFile, kind: str, stack: ExitStack
) -> tuple[pa.Schema, Callable[[Sequence[str]], Iterable[pa.RecordBatch]]]:
    """Open a Parquet file, or an Arrow IPC file or stream.

    Args:
        path: the file.
        kind: ``parquet`` or ``arrow``.
        stack: closes it.

    Returns:
        Its schema, and a function that gives batches of at least the columns named.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if kind == "parquet":
        stream = path.open() if isinstance(path, UrlFile) else None
        if stream is not None and not stream.seekable():
            raise InputError(
                f"{path}: its server does not support range requests, which Parquet needs; download the "
                "file, and give that"
            )
        file: Any = path if stream is None else stack.enter_context(pa.PythonFile(stream, "r"))
        table = stack.enter_context(
            pq.ParquetFile(file, memory_map=stream is None, page_checksum_verification=True)
        )
        return table.schema_arrow, partial(_row_groups, table, stream)
    if isinstance(path, UrlFile):
        file = stack.enter_context(pa.PythonFile(path.open(), "r"))
    else:
        file = stack.enter_context(pa.memory_map(str(path)))
    is_file = file.read(6) == b"ARROW1"
    file.seek(0)
    reader = stack.enter_context((pa.ipc.open_file if is_file else pa.ipc.open_stream)(file))
    batches = map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader
    return reader.schema, lambda names: batches


def _row_groups(table: pq.ParquetFile, stream: object, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet file, a group of them in memory at a time, and of a URL one ahead."""
    for group in range(table.num_row_groups):
        if isinstance(stream, RangeFile):
            more = [one for one in (group, group + 1) if one < table.num_row_groups]
            stream.fetch_ahead([place for one in more for place in _places(table, one, names)])
        yield from table.iter_batches(SLICE_ROWS, row_groups=[group], columns=list(names))


def _places(table: pq.ParquetFile, group: int, names: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield where the columns of a group of rows begin and end in the file."""
    rows = table.metadata.row_group(group)
    for number in range(rows.num_columns):
        column = rows.column(number)
        path = column.path_in_schema
        if any(path == name or path.startswith(f"{name}.") for name in names):
            first = min(filter(None, (column.dictionary_page_offset, column.data_page_offset)))
            yield first, first + column.total_compressed_size


def batch_rows(batches: Iterable[Any], schema: Any, name: str, wanted: Columns) -> RawRows:
    """Return the rows of record batches."""
    wanted = wanted.within(field_names(schema), name)

    def rows() -> Iterator[RawRow]:
        number = count(1)
        for batch in batches:
            # One batch may be the whole file: only a slice of it becomes Python objects at a time.
            for start in range(0, batch.num_rows, SLICE_ROWS):
                part = batch.slice(start, SLICE_ROWS)
                values = [
                    repeat(None) if column is None else _values(_column_of(part, column))
                    for column in wanted.names
                ]
                yield from zip(islice(number, part.num_rows), *values)  # noqa: B905 - repeat

    return RawRows(rows(), wanted.text)


def _column_of(batch: Any, name: str) -> Any:
    """Return a column of a batch, or a field inside one."""
    import pyarrow.compute as pc

    if name in batch.schema.names:
        return batch.column(name)
    outer, *inner = name.split(".")
    return pc.struct_field(batch.column(outer), inner)


def _values(column: Any) -> list[object]:
    """Return the values of an Arrow array as Python objects, its offsets and indices checked first."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        words = _bytes(column.dictionary)
        if words.type == pa.binary_view():  # as polars gives them; pyarrow cannot look them up
            words = words.cast(pa.large_binary())
        column = pa.DictionaryArray.from_arrays(column.indices, words).dictionary_decode()
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
