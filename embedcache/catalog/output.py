"""Rows of a query as text or as a file, written while they come.

JSON is one object a line, CSV is RFC 4180 with a header line. Where a format has no such type: bytes, so
keys, are hexadecimal, times ISO 8601, NaN and the infinities null in JSON; in CSV lists are JSON inside a
field, and NULL is an empty one.
"""

from __future__ import annotations

import csv
import datetime
import decimal
import io
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from embedcache.errors import InputError
from embedcache.fsio import commit, commit_new, temporary_sibling

if TYPE_CHECKING:
    from embedcache.catalog.query import QueryResult

FILE_FORMATS = {
    "json": (".json", ".jsonl", ".ndjson"),
    "csv": (".csv",),
    "parquet": (".parquet", ".pq"),
}
"""Format -> the endings of file names that mean it."""


def write_file(
    result: QueryResult, path: str | Path, output_format: str | None = None, *, overwrite: bool = False
) -> int:
    """Write the rows of ``result`` to a file and return how many there are.

    The file appears when it is whole.

    Args:
        result: the rows.
        path: the file.
        output_format: ``json``, ``csv`` or ``parquet``; default: by the file's ending.
        overwrite: whether a file that is there may be replaced.

    Raises:
        InputError: if the format is not known, the file is there, or the statement fails on a row.
        StorageError: if the file cannot be written.
    """
    target = Path(path).expanduser()
    chosen = output_format or format_of(target)
    check_target(target, overwrite=overwrite)
    with temporary_sibling(target) as temporary:
        if chosen == "parquet":
            rows = _write_parquet(result, temporary)
        else:
            with temporary.open("w", encoding="utf-8", newline="") as handle:
                rows = write_text(result, handle, chosen)
        place(temporary, target, overwrite=overwrite)
    return rows


def write_text(result: QueryResult, handle: TextIO, output_format: str) -> int:
    """Write the rows of ``result`` as ``json`` or ``csv`` and return how many there are.

    Raises:
        InputError: if the statement fails on a row.
    """
    names = result.schema.names
    if output_format == "csv":
        handle.write(_csv_line(names))
    rows = 0
    for batch in result:
        rows += batch.num_rows
        columns = [column.to_pylist() for column in batch.columns]
        for values in zip(*columns, strict=True):
            if output_format == "csv":
                handle.write(_csv_line([_csv_field(value) for value in values]))
            else:
                plain_row = {name: plain(value) for name, value in zip(names, values, strict=True)}
                handle.write(json.dumps(plain_row, ensure_ascii=False, allow_nan=False) + "\n")
    return rows


def format_of(path: Path) -> str:
    """Return the format that a file's ending means.

    Raises:
        InputError: if it means none.
    """
    for name, endings in FILE_FORMATS.items():
        if path.suffix.lower() in endings:
            return name
    known = ", ".join(ending for endings in FILE_FORMATS.values() for ending in endings)
    raise InputError(f"{path.name!r} does not say its format: end it with one of {known}, or give --format")


def check_target(target: Path, *, overwrite: bool) -> None:
    """Raise :class:`InputError` where ``target`` is there and may not be replaced."""
    if target.exists() and not overwrite:
        raise InputError(f"{target} is there already: choose another name, or replace it with --overwrite")


def place(temporary: Path, target: Path, *, overwrite: bool) -> None:
    """Make the finished file ``temporary`` appear as ``target``.

    Raises:
        InputError: if something is there that came meanwhile, and ``overwrite`` is off.
    """
    if overwrite:
        commit(temporary, target)
    elif not commit_new(temporary, target):
        check_target(target, overwrite=False)


def plain(value: Any) -> Any:
    """Return a value of a result as JSON knows it."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, decimal.Decimal):
        # Sums of whole numbers are wider than 64 bits, so they come as decimals.
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, dict):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value if isinstance(value, (str, int, type(None))) else str(value)


def _csv_field(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value)
    simple = plain(value)
    return json.dumps(simple, ensure_ascii=False) if isinstance(simple, (list, dict)) else str(simple)


def _csv_line(fields: Iterable[str]) -> str:
    line = io.StringIO()
    csv.writer(line).writerow(fields)
    return line.getvalue()


def _write_parquet(result: QueryResult, path: Path) -> int:
    import pyarrow.parquet as pq

    rows = 0
    with path.open("wb") as handle, pq.ParquetWriter(handle, result.schema, compression="zstd") as writer:
        for batch in result:
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows
