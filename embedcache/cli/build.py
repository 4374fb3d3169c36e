"""``embedcache build`` and ``embedcache import``."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from embedcache.cli.options import (
    CODEC_NAMES,
    IMPORT_FORMATS,
    HeadedCommand,
    cache_option,
    choice,
    dry_run_option,
    flag,
    json_option,
    limit_options,
    machine_options,
    named,
    overwrite_option,
    reader_options,
    speed_options,
    stored_options,
    teacher_option,
    teacher_settings,
    under,
    view_options,
)
from embedcache.cli.tables import print_result, shortened
from embedcache.progress import show_progress
from embedcache.sizes import size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from embedcache.building.result import BuildResult, Estimate
    from embedcache.importing import ImportResult


@click.command("build", cls=HeadedCommand)
@click.argument("sources", nargs=-1, required=True)
@teacher_option
@cache_option
@click.option("--name", help="Name of the corpus in the cache.  [default: from the first file's name]")
@flag("--append", "Add the rows to the corpus --name and to its views, except those that it has.")
@overwrite_option
@dry_run_option
@json_option
@under("Input", reader_options)
@under(
    "Teacher",
    named("--teacher-name", "NAME", "Name of the teacher in the cache.  [default: from SPEC]"),
    teacher_settings,
    stored_options,
)
@under("Speed", speed_options)
@under("View", view_options)
@under(
    "Remote",
    named("--remote", "REMOTE", "Fetch vectors that this remote has, by name or URL."),
    limit_options,
)
@under("Many machines", machine_options)
@click.option(
    "--price-per-million", metavar="USD", type=click.FloatRange(0), help="Price of tokens, for --dry-run."
)
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

    # As strings they might be texts.
    files = [source if "://" in source else Path(source) for source in sources]
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
    added = "" if result.added is None else f" ({result.added:,} added)"
    yield "rows", f"{result.rows:,}{' (a new corpus)' if result.added == result.rows else added}"
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
    yield "route", result.route
    yield "loaded with", result.loading
    if result.prompt or result.prompt_names:
        names = ", ".join(result.prompt_names)
        yield "prompt", repr(result.prompt) if result.prompt else f"none; --prompt-name takes {names}"
    yield "cached", _some(result.cached, "were in the cache")
    yield "fetched", _some(result.fetched, f"from {result.remote}")
    yield "resumed", _some(result.resumed, "a stopped build had encoded")
    yield "to encode" if result.dry_run else "encoded", result.encoded or "0"
    yield "computed", result.computed
    yield "written", f"{size(result.bytes_written)} as {result.codec}" if result.bytes_written else ""
    yield "beside", f"another build: {result.beside}" if result.beside else ""
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
        yield "time to encode", "" if found.seconds is None else _time(found.seconds)


def _time(seconds: float) -> str:
    return str(timedelta(seconds=max(1, round(seconds))))


def _some(count: int, words: str) -> str:
    return f"{count:,} {words}" if count else ""


@click.command("import")
@click.argument("path")
@cache_option
@choice("--from", IMPORT_FORMATS, "Format of PATH.", required=True)
@named("--teacher", "SPEC", "Model that computed the vectors: its contract is taken, nothing is encoded.")
@named("--contract", "FILE", "JSON file with the contract of the vectors, instead of --teacher.")
@named("--teacher-name", "NAME", "Name of the teacher in the cache.  [default: from SPEC]")
@named("--texts", "FILE", "File of texts: in the order of npy, in any order for automodel.")
@named("--corpus", "NAME", "Name of the corpus in the cache.  [default: from the file's name]")
@flag("--queries", "Import the queries of automodel, not the documents.")
@named("--text-column", "NAME", "Column of the text.  [default: text, sentence or content]")
@named("--vector-column", "NAME", "Column of the vectors.  [default: vector or embedding]")
@named("--id-column", "NAME", "Column of unique row ids to keep.")
@named("--label-column", "NAME", "Column of labels to keep.")
@choice("--codec", CODEC_NAMES, "Codec of the vectors.  [default: float16 if it loses nothing, else float32]")
@overwrite_option
@teacher_settings
@json_option
def import_command(
    path: str, teacher: str | None, teacher_name: str | None, as_json: bool, **settings: Any
) -> None:
    """Store vectors that others computed, and their texts.

    PATH is a Parquet file or a folder of parts; FILE.npy, or a folder of 'embedcache export'; a folder of
    NeMo Automodel's teacher embeddings, whose texts are --texts or a corpus of the cache; or a folder that
    tokenlearn wrote. The vectors are stated to be of the contract: 'doctor --deep' checks them.
    """
    from embedcache.importing import import_vectors
    from embedcache.teacher.options import TeacherOptions

    names = [one.name for one in fields(TeacherOptions) if one.name in settings]
    options = TeacherOptions(teacher or "", name=teacher_name, **{name: settings.pop(name) for name in names})
    if teacher is None and options != TeacherOptions("", name=teacher_name):
        raise click.UsageError(
            "settings of a teacher are part of its contract: give them with --teacher alone"
        )
    with show_progress() as progress:
        result = import_vectors(
            path,
            kind=settings.pop("from"),
            teacher=None if teacher is None else options,
            teacher_name=teacher_name,
            progress=progress,
            **settings,
        )
    title = ("import", f"{result.corpus} with {result.teacher}")
    print_result(result, as_json, title, _imported(result))


def _imported(result: ImportResult) -> Iterator[tuple[str, object]]:
    yield "rows", result.rows
    yield from (("skipped", f"{count:,} {reason}") for reason, count in sorted(result.skipped.items()))
    yield "distinct", result.distinct
    yield "already there", _some(result.already_there, "keep their vectors")
    yield "imported", result.imported or "0"
    yield "without a vector", _some(result.without_vector, "texts: 'embedcache build' encodes them")
    yield "without a text", _some(result.without_text, "vectors, left out")
    yield "written", f"{size(result.bytes_written)} as {result.codec}" if result.bytes_written else ""
    if result.imported:
        yield "vectors", "stated, not checked: 'embedcache doctor --deep' compares them with the model"
