"""Rows in memory as the source of a corpus.

Taken are iterables of strings (a list, a generator, a pandas Series), iterables of dictionaries (a Hugging
Face dataset), and tables or columns with the Arrow stream interface (pyarrow, polars, pandas). Libraries are
recognised by their interfaces; none of them is imported. The same rows give the same corpus as from a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

from embedcache.errors import InputError

_EXPECTED = "expected paths, strings, dictionaries, a data frame, an Arrow table or a datasets.Dataset"


@dataclass(frozen=True, eq=False)
class MemoryRows:
    """Rows in memory.

    Attributes:
        kind: ``strings``, ``objects`` (mappings of column to value) or ``arrow`` (record batches).
        read: gives the strings, the mappings, or a ``pyarrow.RecordBatchReader``.
        once: whether they can be read only once.
    """

    kind: Literal["strings", "objects", "arrow"]
    read: Callable[[], Any]
    once: bool = False

    def __str__(self) -> str:
        """Return their name in messages."""
        return "<memory>"


def memory_rows(data: object) -> MemoryRows:
    """Return ``data`` as a source.

    Raises:
        InputError: if it is no sequence of strings or dictionaries and no table, or empty.
    """
    kind = type(data).__name__
    if isinstance(data, Mapping):
        raise InputError(f"a {kind} is no list of rows: give one of its splits, or a list of dictionaries")
    if hasattr(data, "read"):
        raise InputError(f"a {kind} is an open file: give its path")
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        return MemoryRows("arrow", lambda: _reader(data), once=kind == "RecordBatchReader")
    if hasattr(data, "iloc") and hasattr(data, "columns"):  # a pandas frame without the stream interface
        import pyarrow as pa

        return MemoryRows("arrow", lambda: pa.Table.from_pandas(data, preserve_index=False).to_reader())
    if not isinstance(data, Iterable) or isinstance(data, (bytes, bytearray)):
        raise InputError(f"a {kind} cannot be a source: {_EXPECTED}")
    rows = iter(data)
    nothing = object()
    first = next(rows, nothing)
    if first is nothing:
        raise InputError(f"the {kind} is empty: {_EXPECTED}")
    if first is not None and not isinstance(first, (str, Mapping)) and first == first:
        raise InputError(f"a {kind} of {type(first).__name__} cannot be a source: {_EXPECTED}")
    whole: Iterator[object] = chain([first], rows)
    once = rows is data
    read = (lambda: whole) if once else (lambda: iter(data))
    return MemoryRows("objects" if isinstance(first, Mapping) else "strings", read, once)


def _reader(data: Any) -> Any:
    """Return the record batches of a table; a column alone becomes the column ``text``."""
    import pyarrow as pa

    if not hasattr(data, "__arrow_c_stream__"):
        return pa.table({"text": pa.array(data)}).to_reader()
    try:
        return pa.RecordBatchReader.from_stream(data)
    except pa.ArrowInvalid:  # a stream of one column
        return pa.table({"text": pa.chunked_array(data)}).to_reader()


def plain(value: Any) -> object:
    """Return a value of a row as Python's own type: no NumPy scalar or string, and None for NaN."""
    if isinstance(value, str):
        return value if type(value) is str else str(value)
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        value = value.item()
    return None if isinstance(value, float) and value != value else value
