"""``embedcache query`` and ``embedcache export``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TextIO

import click

from embedcache.cli.options import cache_option, flag, json_option, named, overwrite_option
from embedcache.cli.progress import show_progress
from embedcache.cli.tables import print_json, print_table, printable, shortened, size
from embedcache.sizes import counted

if TYPE_CHECKING:
    from pathlib import Path

    from embedcache.querying import QueryResult

_ENDINGS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet", ".pq": "parquet"}
_MOST_ROWS = 50
_LONGEST_CELL = 80
_MOST_COMPONENTS = 3


@click.command("query")
@click.argument("sql")
@cache_option
@click.option(
    "--format",
    "output_format",
    type=click.Choice(["table", "csv", "json", "parquet"]),
    help="json is one object a line.  [default: by the ending of --output, else table]",
)
@named("--output", "FILE", "Write the rows to FILE.")
@overwrite_option
def query_command(
    sql: str, cache: str, output_format: str | None, output: str | None, overwrite: bool
) -> None:
    """Query a cache with one SELECT over rows, views, vectors, shards, teachers and corpora.

    "DESCRIBE rows" lists the columns of a table. rows.key = vectors.key joins texts with their vectors.
    """
    from pathlib import Path

    from embedcache.querying import open_query

    if output is not None and output_format is None:
        output_format = _ENDINGS.get(Path(output).suffix.lower())
    if output is not None and output_format in (None, "table"):
        raise click.UsageError(f"{output}: expected --format, or a name that ends in {', '.join(_ENDINGS)}")
    if output is None and output_format == "parquet":
        raise click.UsageError("--format parquet needs --output FILE")
    with open_query(cache, sql) as result:
        if output is not None:
            rows = _write_file(result, Path(output).expanduser(), str(output_format), overwrite=overwrite)
            click.echo(f"{counted(rows, 'row')} in {output}", err=True)
        elif output_format in ("csv", "json"):
            _write_text(result, sys.stdout, output_format)
        else:
            _print_rows(result)


def _write_file(result: QueryResult, target: Path, output_format: str, *, overwrite: bool) -> int:
    import pyarrow.parquet as pq

    from embedcache.exporting import place
    from embedcache.fsio import temporary_sibling

    with temporary_sibling(target) as temporary:
        if output_format != "parquet":
            with temporary.open("w", encoding="utf-8", newline="") as file:
                rows = _write_text(result, file, output_format)
        else:
            rows = 0
            with pq.ParquetWriter(temporary, result.schema, compression="zstd") as writer:
                for batch in result.batches:
                    writer.write_batch(batch)
                    rows += batch.num_rows
        place(temporary, target, overwrite=overwrite)
    return rows


def _write_text(result: QueryResult, file: TextIO, output_format: str) -> int:
    """Write CSV, or a JSON object a line: bytes are hexadecimal, NaN and infinities null."""
    import csv
    import json

    rows, names = 0, result.schema.names
    writer = csv.writer(file)
    if output_format == "csv":
        writer.writerow(names)
    for values in _rows(result):
        plain = [_plain(value) for value in values]
        if output_format == "csv":
            nested = (list, dict, bool)
            writer.writerow([json.dumps(one) if isinstance(one, nested) else one for one in plain])
        else:
            file.write(json.dumps(dict(zip(names, plain, strict=True)), ensure_ascii=False) + "\n")
        rows += 1
    return rows


def _rows(result: QueryResult) -> Iterable[Sequence[Any]]:
    for batch in result.batches:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _plain(value: Any) -> Any:
    """Return a value as JSON knows it."""
    from decimal import Decimal
    from math import isfinite

    if isinstance(value, Decimal):
        # Sums of whole numbers are decimals.
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value if isinstance(value, (str, int, type(None))) else str(value)


def _print_rows(result: QueryResult) -> None:
    from itertools import islice

    found = list(islice(_rows(result), _MOST_ROWS + 1))
    rows = found[:_MOST_ROWS]
    if result.schema.names == ["explain_key", "explain_value"]:
        click.echo("\n".join(plan for _, plan in rows))
        return
    print_table(result.schema.names, [[_cell(value) for value in row] for row in rows])
    more = "; there are more: use --format csv or LIMIT" if len(found) > _MOST_ROWS else ""
    click.echo(f"{counted(len(rows), 'row')}{more}")


def _cell(value: Any) -> str:
    import json

    if isinstance(value, float):
        return f"{value:.9g}"
    plain = _plain(value)
    if isinstance(plain, list) and len(plain) > _MOST_COMPONENTS:
        return f"[{', '.join(map(_cell, plain[:_MOST_COMPONENTS]))}, … {len(plain)}]"
    if isinstance(plain, (list, dict, bool)):
        plain = json.dumps(plain, ensure_ascii=False)
    return shortened("" if plain is None else printable(str(plain)), _LONGEST_CELL)


@click.command("export")
@cache_option
@click.option(
    "--output", required=True, metavar="PATH", help="NAME.parquet, or a folder for vectors.npy and texts."
)
@named("--corpus", "NAME", "Corpus to export.  [default: the only one]")
@named("--view", "NAME", "View of it, with the vectors of its texts.")
@named("--teacher", "NAME", "Teacher of the vectors.  [default: the only one]")
@named("--where", "SQL", "Export rows for which this holds, such as \"label = 'news'\".")
@flag("--skip-missing", "Leave out rows without a vector.")
@overwrite_option
@json_option
def export_command(cache: str, output: str, as_json: bool, **options: Any) -> None:
    """Export rows of a corpus with their vectors to Parquet or npy.

    --where is a condition over row, text, characters, key, id, label, tokens and truncated.
    """
    from embedcache.exporting import export

    with show_progress() as progress:
        done = export(cache, output, **options, progress=progress)
    if as_json:
        print_json(done)
        return
    left_out = f", {done.missing:,} left out without a vector" if done.missing else ""
    click.echo(
        f"{counted(done.rows, 'row')} of {done.corpus} with vectors of {done.teacher} in {done.path} "
        f"({size(done.bytes)}){left_out}"
    )
