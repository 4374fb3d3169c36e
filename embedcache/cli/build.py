"""``embedcache build``."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from embedcache.cli.options import (
    cache_option,
    contract_options,
    dry_run_option,
    encode_options,
    json_option,
    limit_options,
    overwrite_option,
    reader_options,
    view_options,
)
from embedcache.cli.progress import show_progress
from embedcache.cli.tables import print_result, shortened, size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from embedcache.building.result import BuildResult, Estimate


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
@dry_run_option
@click.option(
    "--price-per-million", metavar="USD", type=click.FloatRange(0), help="Price of tokens, for --dry-run."
)
@json_option
def build_command(
    sources: tuple[str, ...],
    as_json: bool,
    dry_run: bool,
    price_per_million: float | None,
    **settings: Any,
) -> None:
    """Encode the texts of SOURCES that the cache lacks and store their vectors.

    SOURCES are files or globs of plain text, JSONL, CSV, TSV, Parquet or Arrow, any of them gzip or zstd, or
    '-' for standard input. Killed or repeated, a build goes on where it stopped.
    """
    from pathlib import Path

    from embedcache.building.build import build, grouped

    files = [Path(source) for source in sources]  # as strings they might be texts
    with show_progress() as progress:
        arguments = grouped({**settings, "progress": progress})
        result = build(files, **arguments, dry_run=True) if dry_run else build(files, **arguments).result
    if price_per_million is not None and (found := result.estimate) and found.tokens is not None:
        cost = found.tokens * price_per_million / 1e6
        result = replace(result, estimate=replace(found, cost=cost))
    print_build(result, as_json)


def print_build(result: BuildResult, as_json: bool = False) -> None:
    """Print what a build did, or what a dry run says it would do."""
    title = ("dry run" if result.dry_run else "build", f"{result.corpus} with {result.teacher}")
    print_result(result, as_json, title, [*_texts(result), *_vectors(result), *_estimate(result.estimate)])


def _texts(result: BuildResult) -> Iterator[tuple[str, object]]:
    yield "rows", result.rows
    column = "" if result.column is None else f"column {result.column}: "
    yield "text", column + repr(shortened(result.example, 60))
    for reason, count in sorted(result.skipped.items()):
        first = result.first_skipped.get(reason)
        yield "skipped", f"{count:,} {reason}{f' (first at {first})' if first else ''}"
    yield "not read", _some(result.not_asked, "by --rows")
    for view in result.views:
        counts = (f"{count:,} {reason}" for reason, count in sorted(view.counts.items()))
        yield f"view {view.name}", ", ".join([view.outcome, *counts])
    repeated = result.texts - result.distinct
    yield "distinct", f"{result.distinct:,}{f' ({repeated:,} duplicates)' if repeated else ''}"
    yield "part", f"{result.part}: {result.wanted:,} distinct texts" if result.part else ""


def _vectors(result: BuildResult) -> Iterator[tuple[str, object]]:
    encoded = "to encode" if result.dry_run else "encoded"
    for one in result.outputs:
        of = "" if len(result.outputs) == 1 else f" {one.output} as {one.teacher}"
        yield f"cached{of}", _some(one.cached, "were in the cache")
        yield f"reused{of}", _some(one.reused, "from the same teacher at another max_length")
        yield f"fetched{of}", _some(one.fetched, f"from {result.remote}")
        yield f"{encoded}{of}", one.encoded or "0"
        yield f"written{of}", f"{size(one.bytes_written)} as {one.codec}" if one.bytes_written else ""
    yield "from the remote", size(result.remote_bytes) if result.remote_bytes else ""
    yield from (("sample", verdict) for verdict in result.verdicts)
    yield "truncated", _some(result.truncated, "of the encoded were longer than the teacher reads")
    if result.quantized is not None:
        yield "quantized", "cosine to float32 {:.4f} on average, {:.4f} at worst".format(*result.quantized)
    rate = f" ({result.encoded / result.encode_seconds:,.0f} rows/s)" if result.encode_seconds else ""
    yield "time", f"{result.seconds:.1f} s{rate}" if result.seconds else ""


def _estimate(found: Estimate | None) -> Iterator[tuple[str, object]]:
    if found is not None:
        about = "" if found.requests is None else "about "
        yield "tokens", "" if found.tokens is None else f"{about}{found.tokens:,.0f}"
        yield "requests", "" if found.requests is None else f"about {found.requests:,}"
        yield "cost", "" if found.cost is None else f"{about}{found.cost:,.2f} USD"
        yield "truncated", f"{found.truncated_share:.2%} would be" if found.truncated_share else ""
        yield "size", ", ".join(f"{size(count)} as {codec}" for codec, count in found.bytes.items())
        if found.seconds is not None and found.epoch_seconds is not None:
            yield "time to encode", _time(found.seconds)
            added = f"which adds {_time(found.epoch_seconds)} to each"
            yield "pays off after", f"{found.epochs_to_pay:.1f} epochs with a live teacher, {added}"


def _time(seconds: float) -> str:
    return str(timedelta(seconds=max(1, round(seconds))))


def _some(count: int, words: str) -> str:
    return f"{count:,} {words}" if count else ""
