"""``embedcache query`` and ``embedcache stats``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from embedcache.cli.options import cache_option, json_option
from embedcache.pairs import SEPARATOR

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from embedcache.catalog import QueryResult
    from embedcache.catalog.stats import CacheStats, Spread

_LONGEST_CELL = 80
_SHOWN_COMPONENTS = 3
_SHOWN_SEPARATOR = " \N{SYMBOL FOR UNIT SEPARATOR} "
"""What a terminal shows between the texts of a pair."""
_EXPLAINED = ["explain_key", "explain_value"]
_SPREAD = ("least", "median", "mean", "95 %", "most")


@click.command("query")
@click.argument("sql")
@cache_option
@click.option(
    "--format",
    "output_format",
    type=click.Choice(["table", "json", "csv", "parquet"]),
    help="json is one object a line; parquet needs --out.  [default: by the ending of --out, else table]",
)
@click.option("--out", metavar="FILE", help="Write the rows to this file.")
@click.option("--overwrite", is_flag=True, help="Replace the file of --out if it is there.")
@click.option(
    "--limit-rows",
    type=click.IntRange(1),
    default=50,
    show_default=True,
    help="Rows shown of a table; the other formats give all.",
)
@click.option(
    "--memory",
    metavar="SIZE",
    default="1GB",
    show_default=True,
    help="What the query may take; beyond, it uses a temporary folder.",
)
@click.option("--threads", type=click.IntRange(1), help="CPU threads.  [default: all cores]")
def query_command(
    sql: str,
    cache: str,
    output_format: str | None,
    out: str | None,
    overwrite: bool,
    limit_rows: int,
    memory: str,
    threads: int | None,
) -> None:
    """Ask a cache in SQL: one SELECT over rows, views, vectors, shards, teachers and corpora.

    Corpora and shards are read where they lie, and nothing can be changed. rows.key = vectors.key says which
    vectors a text has; "DESCRIBE rows" lists the columns of a view, and "EXPLAIN SELECT ..." tells the plan.
    """
    import time

    from embedcache.catalog import query
    from embedcache.catalog.output import write_file, write_text
    from embedcache.sizes import counted

    if out is None and output_format == "parquet":
        raise click.UsageError("--format parquet needs --out FILE")
    if out is not None and output_format == "table":
        raise click.UsageError("a table is for the terminal: leave --out out, or choose another --format")
    started = time.perf_counter()
    with query(cache, sql, memory=memory, threads=threads) as result:
        if out is not None:
            count = write_file(result, out, output_format, overwrite=overwrite)
            click.echo(f"{counted(count, 'row')} to {out}, {time.perf_counter() - started:.2f} s", err=True)
        elif output_format in ("json", "csv"):
            write_text(result, sys.stdout, output_format)
        else:
            rows, more = _first(result, limit_rows)
            if result.schema.names == _EXPLAINED:
                # A drawing of many lines, which a table would fold.
                click.echo("\n".join(drawing for _, drawing in rows))
            else:
                _print(_rows_table(result.schema.names, rows))
            shown = counted(len(rows), "row")
            shown = f"the first {shown}, there are more: --limit-rows" if more else shown
            click.echo(f"{shown}, {time.perf_counter() - started:.2f} s")


@click.command("stats")
@cache_option
@click.option("--corpus", metavar="NAME", help="Figures of this corpus alone.  [default: all]")
@click.option("--teacher", metavar="NAME", help="Figures of this teacher alone.  [default: all]")
@json_option
def stats_command(cache: str, corpus: str | None, teacher: str | None, as_json: bool) -> None:
    """Count what a cache holds: lengths, duplicates and labels, coverage, tokens and truncation."""
    import json

    from embedcache.catalog.stats import compute_stats
    from embedcache.cli.progress import watched

    with watched() as on_step:
        stats = compute_stats(cache, corpus=corpus, teacher=teacher, on_step=on_step)
    if as_json:
        click.echo(json.dumps(stats.to_json(), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        _print(*_stats_tables(stats))


def _first(result: QueryResult, limit: int) -> tuple[list[Sequence[Any]], bool]:
    """Return the first rows, and whether there are more."""
    rows: list[Sequence[Any]] = []
    for batch in result:
        rows.extend(zip(*(column.to_pylist() for column in batch.slice(0, limit + 1).columns), strict=True))
        if len(rows) > limit:
            break
    return rows[:limit], len(rows) > limit


def _rows_table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    from decimal import Decimal

    from rich.table import Table
    from rich.text import Text

    table = Table()
    for name, values in zip(names, zip(*rows, strict=True) if rows else ((),) * len(names), strict=True):
        numeric = any(
            isinstance(value, (int, float, Decimal)) and not isinstance(value, bool) for value in values
        )
        table.add_column(Text(_printable(name)), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row))
    return table


def _cell(value: Any) -> str:
    import json

    from embedcache.catalog.output import plain

    if isinstance(value, float):
        # Enough digits to tell the cosine of a fine codec from 1.
        return f"{value:.9g}"
    simple = plain(value)
    if isinstance(simple, list) and len(simple) > _SHOWN_COMPONENTS:
        shown = ", ".join(
            f"{one:.6g}" if isinstance(one, float) else _cell(one) for one in simple[:_SHOWN_COMPONENTS]
        )
        return f"[{shown}, … {len(simple)}]"
    if isinstance(simple, (list, dict, bool)):
        simple = json.dumps(simple, ensure_ascii=False)
    text = "" if simple is None else _printable(str(simple))
    return text if len(text) <= _LONGEST_CELL else text[: _LONGEST_CELL - 1] + "…"


def _printable(text: str) -> str:
    text = text.replace(SEPARATOR, _SHOWN_SEPARATOR)
    # A text may hold anything; control characters could rewrite the terminal.
    return "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text
    )


def _stats_tables(stats: CacheStats) -> list[RenderableType]:
    from rich.text import Text

    from embedcache.cli.tables import size

    parts: list[RenderableType] = []
    corpora = _figures(
        "corpora, characters a text", ("corpus",), ("rows", "distinct", "duplicates", *_SPREAD)
    )
    for one in stats.corpora:
        counts = (f"{one.rows:,}", f"{one.distinct:,}", f"{one.duplicates:,}")
        corpora.add_row(Text(one.name), *counts, *_spread(one.characters))
    teachers = _figures("teachers, tokens a text", ("teacher",), ("vectors", "truncated", *_SPREAD))
    kept = _figures("vectors as stored", ("teacher", "codec", "store"), ("width", "shards", "size"))
    covered = _figures("coverage", ("teacher", "corpus"), ("rows with a vector", "share"))
    rows = {one.name: one.rows for one in stats.corpora}
    for teacher in stats.teachers:
        cut = f"{teacher.truncated:,} ({teacher.truncated / max(teacher.vectors, 1):.2%})"
        teachers.add_row(Text(teacher.name), f"{teacher.vectors:,}", cut, *_spread(teacher.tokens))
        figures = (f"{teacher.dimension:,}", f"{teacher.shards:,}", size(teacher.bytes))
        kept.add_row(Text(teacher.name), ", ".join(teacher.codecs), teacher.store, *figures)
        for corpus, count in teacher.covered.items():
            share = f"{count / rows[corpus]:.2%}"
            covered.add_row(Text(teacher.name), Text(corpus), f"{count:,} of {rows[corpus]:,}", share)
    parts.extend(table for table in (corpora, teachers, kept, covered) if table.row_count)
    views = _figures("views", ("corpus", "view", "recipe"), ("rows changed", "share"))
    for one in stats.corpora:
        for view in one.views:
            share = f"{view.changed / one.rows:.2%}"
            views.add_row(Text(one.name), Text(view.name), Text(view.recipe), f"{view.changed:,}", share)
    if views.row_count:
        parts.append(views)
    for one in stats.corpora:
        parts.append(_bars(f"texts of {one.name} by characters", one.characters))
        if one.labels is not None:
            labels = _figures(f"labels of {one.name}", ("label",), ("rows", "share"))
            for label, count in one.labels:
                labels.add_row(Text(_cell(label)), f"{count:,}", f"{count / one.rows:.2%}")
            if one.distinct_labels > len(one.labels):
                labels.caption = f"the commonest of {one.distinct_labels:,}"
            parts.append(labels)
    parts.extend(
        _bars(f"texts of {teacher.name} by tokens", teacher.tokens)
        for teacher in stats.teachers
        if teacher.tokens is not None
    )
    return parts


def _figures(title: str, names: Sequence[str], figures: Sequence[str]) -> Table:
    """Return an empty table of columns of text, then of columns of figures."""
    from rich.table import Table

    table = Table(*names, title=title, title_justify="left")
    for figure in figures:
        table.add_column(figure, justify="right")
    return table


def _spread(spread: Spread | None) -> tuple[str, ...]:
    if spread is None:
        return ("-",) * len(_SPREAD)
    return (
        *(f"{spread.least:,}", f"{spread.median:,}", f"{spread.mean:,.1f}"),
        *(f"{spread.p95:,}", f"{spread.most:,}"),
    )


def _bars(title: str, spread: Spread) -> Table:
    from embedcache.cli.tables import bars

    return bars(
        title,
        [(f"{low:,}" if low == high else f"{low:,} to {high:,}", count) for low, high, count in spread.bins],
    )


def _print(*parts: RenderableType) -> None:
    from rich.console import Console

    from embedcache.cli.tables import WIDTH_WITHOUT_TERMINAL

    Console(width=None if sys.stdout.isatty() else WIDTH_WITHOUT_TERMINAL).print(*parts, sep="\n")
