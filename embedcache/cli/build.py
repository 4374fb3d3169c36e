"""``embedcache build``."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from embedcache.cli.options import (
    cache_option,
    contract_options,
    encode_options,
    json_option,
    limit_options,
    overwrite_option,
    reader_options,
    view_options,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from embedcache.building.result import BuildResult, Estimate, OutputResult


@click.command("build")
@click.argument("sources", nargs=-1, required=True)
@contract_options
@click.option("--teacher-name", help="Name of the teacher in the cache.  [default: from SPEC]")
@cache_option
@click.option("--name", help="Name of the corpus in the cache.  [default: from the first file's name]")
@overwrite_option
@reader_options
@encode_options
@view_options
@click.option("--remote", metavar="REMOTE", help="Fetch vectors that this remote has, by name or URL.")
@limit_options
@click.option("--dry-run", is_flag=True, help="Print what a build would encode and cost.")
@json_option
def build_command(sources: tuple[str, ...], as_json: bool, dry_run: bool, **settings: Any) -> None:
    """Encode the texts of SOURCES that the cache lacks and store their vectors.

    SOURCES are files or globs of plain text, JSONL, CSV, TSV, Parquet or Arrow, any of them gzip or zstd, or
    '-' for standard input. Killed or repeated, a build goes on where it stopped.
    """
    from embedcache.building.build import build, grouped
    from embedcache.cli.progress_bar import show_progress
    from embedcache.corpus.sources import expand_sources

    files = expand_sources(sources)
    with show_progress() as progress:
        arguments = grouped({**settings, "progress": progress})
        result = build(files, **arguments, dry_run=True) if dry_run else build(files, **arguments).result
    if as_json:
        click.echo(json.dumps(result.to_json(), indent=2))
    else:
        print_result(result)


def print_result(result: BuildResult) -> None:
    """Print what a build did, or what a dry run says it would do."""
    from embedcache.cli.tables import print_table

    rows = [*_rows(result), *(_estimate(result.estimate) if result.estimate is not None else ())]
    print_table(("dry run" if result.dry_run else "build", f"{result.corpus} with {result.teacher}"), rows)


def _rows(result: BuildResult) -> Iterator[tuple[str, str]]:
    """Yield names and values; what is zero is left out."""
    from embedcache.cli.tables import size

    texts = result.rows * (1 + len(result.embedded_views))
    yield "rows", f"{result.rows:,}"
    column = "" if result.column is None else f"column {result.column}: "
    yield "text", column + _shortened(result.example)
    for reason, count in sorted(result.skipped.items()):
        first = result.first_skipped.get(reason)
        yield "skipped", f"{count:,} {reason}{f' (first at {first})' if first else ''}"
    if result.not_asked:
        yield "not read", f"{result.not_asked:,}, by --rows"
    repeated = texts - result.distinct
    yield "distinct", f"{result.distinct:,}{f' ({repeated:,} duplicates)' if repeated else ''}"
    if result.cached:
        yield "cached", f"{result.cached:,} were in the cache"
    if result.reused:
        yield "reused", f"{result.reused:,} from the same teacher at another max_length"
    if coarser := result.outputs[0].coarser:
        yield "not reused", f"{coarser:,} from another max_length: their codec keeps less"
    if result.remote is not None:
        yield "fetched", f"{result.fetched:,} from {result.remote} ({size(result.remote_bytes)})"
    for verdict in result.verdicts:
        yield "sample", verdict
    rate = f" ({result.encoded / result.encode_seconds:,.0f} rows/s)" if result.encode_seconds else ""
    yield "to encode" if result.dry_run else "encoded", f"{result.encoded:,}{rate}"
    if result.truncated:
        yield "truncated", f"{result.truncated:,} of the encoded were longer than the teacher reads"
    if result.batches_halved:
        yield "halved", f"{result.batches_halved:,} batches did not fit into memory. Lower --batch-tokens"
    for view in result.views:
        counts = [f"{count:,} {reason}" for reason, count in sorted(view.counts.items())]
        encoded = ["encoded as well"] if view.name in result.embedded_views else []
        yield f"view {view.name}", ", ".join([view.outcome, *counts, *encoded])
    if result.token_embeddings is not None:
        yield "token embeddings", " x ".join(f"{count:,}" for count in result.token_embeddings)
    for output in result.outputs if len(result.outputs) > 1 else ():
        yield output.output, _output(output, result.dry_run)
    if result.bytes_written:
        yield "written", f"{size(result.bytes_written)} as {result.outputs[0].codec}"
    if result.seconds:
        yield "time", f"{result.seconds:.1f} s"
    for note in result.notes:
        yield "note", note


def _output(output: OutputResult, dry_run: bool) -> str:
    counts = {
        "to encode" if dry_run else "encoded": output.encoded,
        "cached": output.cached,
        "reused": output.reused,
        "fetched": output.fetched,
    }
    shown = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    return f"teacher {output.teacher}, {output.codec}: {shown}"


def _estimate(found: Estimate) -> Iterator[tuple[str, str]]:
    from embedcache.cli.tables import size

    if found.tokens is not None:
        error = f" ± {found.tokens_error:,.0f}" if found.tokens_error else ""
        yield "tokens", f"{found.tokens:,.0f}{error}"
        if found.truncated_share:
            yield "truncated", f"{found.truncated_share:.2%} would be"
    yield "size", ", ".join(f"{size(count)} as {codec}" for codec, count in found.bytes.items())
    yield "build", f"{_duration(found.build_seconds)}"
    yield "epoch with the teacher", f"{_duration(found.live_epoch_seconds)}"
    yield "epoch from the cache", f"{_duration(found.cached_epoch_seconds)}"
    epochs = found.epochs_to_pay
    yield "pays for itself", "never" if epochs is None else f"after {epochs:.2f} student epochs"


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))
