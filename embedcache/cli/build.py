"""``embedcache build``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from embedcache.cli.options import (
    STORE_KINDS,
    cache_option,
    codec_option,
    output_option,
    pop_remote,
    pop_views,
    reader_options,
    remote_options,
    shard_rows_option,
    teacher_options,
    view_options,
)

if TYPE_CHECKING:
    from embedcache.build_report import BuildProgress, BuildSummary, OutputSummary, ViewSummary


@click.command("build")
@click.argument("sources", nargs=-1, required=True)
@teacher_options
@cache_option
@click.option("--name", help="The corpus's name in the cache.  [default: from the first file's name]")
@reader_options
@click.option("--replace", is_flag=True, help="Replace a corpus of the same name that has other rows.")
@output_option
@codec_option
@click.option(
    "--store",
    type=click.Choice(STORE_KINDS),
    help="Where they are stored: a file a shard, or one LMDB file.  [default: arrow]",
)
@shard_rows_option
@view_options
@click.option(
    "--token-embeddings",
    is_flag=True,
    help="Also keep the teacher's table of token embeddings, once; SimTDE's students learn from it.",
)
@remote_options
@click.option("--dry-run", is_flag=True, help="Only say what would be encoded and fetched.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def build_command(sources: tuple[str, ...], as_json: bool, dry_run: bool, **settings: Any) -> None:
    """Encode the texts of SOURCES that the cache lacks and store their vectors.

    SOURCES are files or globs of plain text, JSONL, CSV, TSV, Parquet or Arrow, any of them gzip or zstd, or
    '-' for standard input. Killed or repeated, a build goes on where it stopped.
    """
    import json

    from embedcache.builder import build

    settings["remote"] = pop_remote(settings)
    if dry_run:
        from embedcache.cli.plan import print_plan

        print_plan(sources, as_json=as_json, **settings)
        return
    views = pop_views(settings)
    with build_progress() as on_progress:
        cache = build(list(sources), views=views, on_progress=on_progress, **settings)
    summary = cache.last_build
    if summary is None:
        return
    if as_json:
        click.echo(json.dumps(summary.to_json(), indent=2))
    else:
        print_build_summary(summary)


@contextmanager
def build_progress() -> Iterator[Callable[[BuildProgress], None]]:
    """Yield a callback that shows how far a build is."""
    from embedcache.cli.progress import build_line, ticker

    with ticker() as show:
        yield lambda progress: show(build_line(progress))


def print_build_summary(summary: BuildSummary) -> None:
    """Print what a build did."""
    from rich.console import Console
    from rich.table import Table

    from embedcache.cli.tables import size
    from embedcache.sizes import counted

    table = Table(title=f"{summary.corpus} with {summary.teacher}", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    rate = f" ({summary.encoded / summary.encode_seconds:,.0f} rows/s)" if summary.encoded else ""
    kept = f"; {summary.coarser_rows:,} not, their codec keeps less" if summary.coarser_rows else ""
    texts = summary.rows * (1 + len(summary.embedded_views))
    rows = [
        ("rows", f"{summary.rows:,}"),
        ("distinct", f"{summary.distinct:,} ({texts - summary.distinct:,} duplicates)"),
        ("encoded", f"{summary.encoded:,}{rate}"),
        ("reused", f"{summary.reused:,} already in the cache"),
        ("carried", f"{summary.carried:,} taken over from the same teacher at another max_length{kept}"),
        ("skipped", ", ".join(f"{n:,} {why}" for why, n in sorted(summary.skipped.items())) or "none"),
        ("truncated", f"{summary.truncated:,} of the encoded were longer than the teacher reads"),
        ("written", size(summary.bytes_written)),
        ("time", f"{summary.seconds:.1f} s ({summary.encode_seconds:.1f} s encoding)"),
        ("contract", summary.contract_id[:12]),
    ]
    if (remote := summary.remote) is not None:
        rows.insert(5, ("fetched", f"{remote.rows:,} from {remote.remote} ({size(remote.bytes)})"))
        rows[6:6] = [("sample", verdict) for verdict in remote.verdicts]
    if summary.not_asked:
        rows.insert(6, ("not asked for", f"{counted(summary.not_asked, 'row')}, by --rows"))
    if summary.batches_halved:
        halved = counted(summary.batches_halved, "batch", "es")
        rows.insert(6, ("halved", f"{halved} did not fit into memory; lower --batch-tokens"))
    rows += [(f"view {view.name}", _view_line(view)) for view in summary.views]
    if summary.embedded_views:
        rows.append(("embedded", f"original, {', '.join(summary.embedded_views)}"))
    if (table_kept := summary.token_embeddings) is not None:
        shape = f"{table_kept.tokens:,} x {table_kept.width:,}"
        rows.append(("token embeddings", f"{shape}, {size(table_kept.bytes)} ({table_kept.outcome})"))
    if len(summary.outputs) > 1:
        rows += [(one.output, _output_line(one)) for one in summary.outputs]
    for name, value in rows:
        table.add_row(name, value)
    Console().print(table)


def _output_line(one: OutputSummary) -> str:
    carried = f", {one.carried:,} taken over" if one.carried else ""
    return f"as teacher {one.teacher}: {one.stored:,} stored, {one.reused:,} already in the cache{carried}"


def _view_line(view: ViewSummary) -> str:
    if view.outcome == "removed":
        return "removed: it was made of rows that the corpus has no longer"
    changed = view.counts.get("changed", 0)
    others = [f"{count:,} {reason}" for reason, count in sorted(view.counts.items()) if reason != "changed"]
    rate = f", {sum(view.counts.values()) / max(view.seconds, 1e-9):,.0f} rows/s"
    return (
        f"{view.outcome}; {', '.join([f'{changed:,} changed', *others])}"
        f"{rate if view.outcome != 'reused' else ''}"
    )
