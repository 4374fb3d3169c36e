"""``embedcache build``."""

from __future__ import annotations

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
@json_option
def build_command(sources: tuple[str, ...], as_json: bool, dry_run: bool, **settings: Any) -> None:
    """Encode the texts of SOURCES that the cache lacks and store their vectors.

    SOURCES are files or globs of plain text, JSONL, CSV, TSV, Parquet or Arrow, any of them gzip or zstd, or
    '-' for standard input. Killed or repeated, a build goes on where it stopped.
    """
    from embedcache.building.build import build, grouped
    from embedcache.corpus.sources import expand_sources

    files = expand_sources(sources)
    with show_progress() as progress:
        arguments = grouped({**settings, "progress": progress})
        result = build(files, **arguments, dry_run=True) if dry_run else build(files, **arguments).result
    print_build(result, as_json)


def print_build(result: BuildResult, as_json: bool = False) -> None:
    """Print what a build did, or what a dry run says it would do."""
    title = ("dry run" if result.dry_run else "build", f"{result.corpus} with {result.teacher}")
    print_result(result, as_json, title, [*_rows(result), *_estimate(result.estimate)])


def _rows(result: BuildResult) -> Iterator[tuple[str, object]]:
    texts = result.rows * (1 + len(result.embedded_views))
    encoded = "to encode" if result.dry_run else "encoded"
    yield "rows", result.rows
    column = "" if result.column is None else f"column {result.column}: "
    yield "text", column + repr(shortened(result.example, 60))
    for reason, count in sorted(result.skipped.items()):
        first = result.first_skipped.get(reason)
        yield "skipped", f"{count:,} {reason}{f' (first at {first})' if first else ''}"
    yield "not read", _some(result.not_asked, "by --rows")
    repeated = texts - result.distinct
    yield "distinct", f"{result.distinct:,}{f' ({repeated:,} duplicates)' if repeated else ''}"
    yield "cached", _some(result.cached, "were in the cache")
    yield "reused", _some(result.reused, "from the same teacher at another max_length")
    yield "not reused", _some(result.outputs[0].coarser, "at another max_length: their codec keeps less")
    if result.remote is not None:
        yield "fetched", f"{result.fetched:,} from {result.remote} ({size(result.remote_bytes)})"
    yield from (("sample", verdict) for verdict in result.verdicts)
    rate = f" ({result.encoded / result.encode_seconds:,.0f} rows/s)" if result.encode_seconds else ""
    yield encoded, f"{result.encoded:,}{rate}"
    yield "truncated", _some(result.truncated, "of the encoded were longer than the teacher reads")
    yield "halved", _some(result.batches_halved, "batches did not fit into memory. Lower --batch-tokens")
    for view in result.views:
        counts = [f"{count:,} {reason}" for reason, count in sorted(view.counts.items())]
        also = ["encoded as well"] if view.name in result.embedded_views else []
        yield f"view {view.name}", ", ".join([view.outcome, *counts, *also])
    if result.token_embeddings is not None:
        yield "token embeddings", " x ".join(f"{count:,}" for count in result.token_embeddings)
    for one in result.outputs if len(result.outputs) > 1 else ():
        counts = [_some(one.encoded, encoded), _some(one.cached, "cached")]
        counts += [_some(one.reused, "reused"), _some(one.fetched, "fetched")]
        yield one.output, f"teacher {one.teacher}, {one.codec}: {', '.join(filter(None, counts))}"
    if result.bytes_written:
        yield "written", f"{size(result.bytes_written)} as {result.outputs[0].codec}"
    yield "time", f"{result.seconds:.1f} s" if result.seconds else ""
    yield from (("note", note) for note in result.notes)


def _estimate(found: Estimate | None) -> Iterator[tuple[str, object]]:
    if found is None:
        return
    if found.tokens is not None:
        error = f" ± {found.tokens_error:,.0f}" if found.tokens_error else ""
        yield "tokens", f"{found.tokens:,.0f}{error}"
        yield "truncated", f"{found.truncated_share:.2%} would be" if found.truncated_share else ""
    yield "size", ", ".join(f"{size(count)} as {codec}" for codec, count in found.bytes.items())
    yield "build", _duration(found.build_seconds)
    yield "epoch with the teacher", _duration(found.live_epoch_seconds)
    yield "epoch from the cache", _duration(found.cached_epoch_seconds)
    epochs = found.epochs_to_pay
    yield "pays for itself", "never" if epochs is None else f"after {epochs:.2f} student epochs"


def _some(count: int, words: str) -> str:
    return f"{count:,} {words}" if count else ""


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))
