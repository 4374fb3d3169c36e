"""``embedcache query`` and ``embedcache export``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from embedcache.cli.options import (
    EXPORT_FORMATS,
    cache_option,
    choice,
    flag,
    json_option,
    named,
    overwrite_option,
)
from embedcache.cli.tables import print_json, print_table, printable, shortened
from embedcache.progress import show_progress
from embedcache.sizes import counted, size

if TYPE_CHECKING:
    from embedcache.querying import QueryResult

_ENDINGS = (".csv", ".jsonl", ".parquet")
_MOST_ROWS = 50
_LONGEST_CELL = 80
_MOST_COMPONENTS = 3


@click.command("query")
@click.argument("sql")
@cache_option
@named("--out", "FILE", f"Write the rows to FILE, by its ending: {', '.join(_ENDINGS)}.")
@overwrite_option
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object a line.")
def query_command(sql: str, cache: str, out: str | None, overwrite: bool, as_json: bool) -> None:
    """Query a cache with one SELECT over rows, views, vectors, shards, teachers and corpora.

    "DESCRIBE rows" lists the columns of a table. rows.key = vectors.key joins texts with their vectors.
    """
    from embedcache.querying import open_query

    target = None if out is None else Path(out).expanduser()
    if target is not None and target.suffix.lower() not in _ENDINGS:
        raise click.UsageError(f"{out}: expected a name that ends in {', '.join(_ENDINGS)}")
    with open_query(cache, sql) as result:
        if target is not None:
            rows = _write_file(result, target, overwrite=overwrite)
            click.echo(f"{counted(rows, 'row')} in {out}", err=True)
        elif as_json:
            _write_text(result, sys.stdout, as_csv=False)
        else:
            _print_rows(result)


def _write_file(result: QueryResult, target: Path, *, overwrite: bool) -> int:
    """Write the rows of a query to a file that appears when it is complete, and return their number."""
    import pyarrow.parquet as pq

    from embedcache.exporting.export import place
    from embedcache.fsio import temporary_sibling

    ending, rows = target.suffix.lower(), 0
    with temporary_sibling(target) as temporary:
        if ending == ".parquet":
            with pq.ParquetWriter(temporary, result.schema, compression="zstd") as writer:
                for batch in result.batches:
                    writer.write_batch(batch)
                    rows += batch.num_rows
        else:
            with temporary.open("w", encoding="utf-8", newline="") as file:
                rows = _write_text(result, file, as_csv=ending == ".csv")
        place(temporary, target, overwrite=overwrite)
    return rows


def _write_text(result: QueryResult, file: TextIO, *, as_csv: bool) -> int:
    """Write CSV, or a JSON object a line, and return the number of rows."""
    import csv

    rows, names, writer = 0, result.schema.names, csv.writer(file)
    if as_csv:
        writer.writerow(names)
    for values in _rows(result):
        if as_csv:
            writer.writerow(
                [json.dumps(one) if isinstance(one, (list, dict, bool)) else one for one in values]
            )
        else:
            file.write(json.dumps(dict(zip(names, values, strict=True)), ensure_ascii=False) + "\n")
        rows += 1
    return rows


def _rows(result: QueryResult) -> Iterator[list[Any]]:
    """Yield rows of values that JSON knows: bytes are hexadecimal, NaN and infinities null."""
    for batch in result.batches:
        for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            yield [_plain(value) for value in values]


def _plain(value: Any) -> Any:
    from decimal import Decimal

    from pydantic_core import to_jsonable_python

    if isinstance(value, Decimal):
        # Sums of whole numbers are decimals.
        return int(value) if value == value.to_integral_value() else float(value)
    return to_jsonable_python(value, bytes_mode="hex", inf_nan_mode="null", fallback=str)


def _print_rows(result: QueryResult) -> None:
    from itertools import islice

    found = list(islice(_rows(result), _MOST_ROWS + 1))
    rows = found[:_MOST_ROWS]
    if result.schema.names == ["explain_key", "explain_value"]:
        click.echo("\n".join(plan for _, plan in rows))
        return
    print_table(result.schema.names, [[_cell(value) for value in row] for row in rows])
    more = "; there are more: use --out, --json or LIMIT" if len(found) > _MOST_ROWS else ""
    click.echo(f"{counted(len(rows), 'row')}{more}")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.9g}"
    if isinstance(value, list) and len(value) > _MOST_COMPONENTS:
        return f"[{', '.join(map(_cell, value[:_MOST_COMPONENTS]))}, … {len(value)}]"
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, (list, dict, bool)) else str(value)
    return shortened(printable(text), _LONGEST_CELL)


@click.command("export")
@cache_option
@click.option("--out", required=True, metavar="PATH", help="File or folder to write.")
@choice("--to", EXPORT_FORMATS, "Format.  [default: by the ending of PATH; npy without one]")
@named("--corpus", "NAME", "Corpus to export.  [default: the only one]")
@named("--view", "NAME", "View of it, with the vectors of its texts.")
@named("--teacher", "NAME", "Teacher of the vectors.  [default: the only one]")
@named("--queries", "NAME", "Corpus of automodel's queries.  [default: the exported rows]")
@named("--query-teacher", "NAME", "Teacher of the queries, if they have another prompt.")
@named("--where", "SQL", "Export rows for which this holds, such as \"label = 'news'\".")
@flag("--skip-missing", "Leave out rows without a vector.")
@overwrite_option
@json_option
def export_command(cache: str, out: str, as_json: bool, **options: Any) -> None:
    """Export rows of a corpus with their vectors for other programs.

    npy is a folder of vectors.npy and rows.parquet; automodel the folder that NVIDIA NeMo Automodel reads.
    --where is a condition over row, text, characters, key, id, label, tokens and truncated.
    """
    from embedcache.exporting.export import export

    with show_progress() as progress:
        done = export(cache, out, **options, progress=progress)
    if as_json:
        print_json(done)
        return
    left_out = f", {done.missing:,} left out without a vector" if done.missing else ""
    click.echo(
        f"{counted(done.rows, 'row')} of {done.corpus} with vectors of {done.teacher} in {done.path} "
        f"({size(done.bytes)}){left_out}"
    )
