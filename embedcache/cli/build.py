"""``embedcache build``."""

from __future__ import annotations

from typing import Any

import click

from embedcache.cli.options import CODEC_NAMES, STORE_KINDS, reader_options, teacher_options


@click.command("build")
@click.argument("sources", nargs=-1, required=True)
@teacher_options
@click.option(
    "--cache", required=True, metavar="DIR", help="The cache's folder; created where there is none."
)
@click.option("--name", help="The corpus's name in the cache.  [default: from the first file's name]")
@reader_options
@click.option("--replace", is_flag=True, help="Replace a corpus of the same name that has other rows.")
@click.option("--codec", type=click.Choice(CODEC_NAMES), help="How vectors are stored.  [default: float16]")
@click.option(
    "--store",
    type=click.Choice(STORE_KINDS),
    help="Where they are stored: a file a shard, or one LMDB file.  [default: arrow]",
)
@click.option(
    "--shard-rows", type=click.IntRange(1), default=16384, show_default=True, help="Vectors a shard."
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def build_command(sources: tuple[str, ...], as_json: bool, **settings: Any) -> None:
    """Encode the texts of SOURCES that the cache lacks and store their vectors.

    SOURCES are files or globs of plain text, JSONL, CSV, TSV, Parquet or Arrow, any of them gzip or zstd, or
    '-' for standard input. Killed or repeated, a build goes on where it stopped.
    """
    import json

    from embedcache.builder import build
    from embedcache.cli.progress import build_progress, print_build_summary

    with build_progress() as on_progress:
        cache = build(list(sources), on_progress=on_progress, **settings)
    summary = cache.last_build
    if summary is None:
        return
    if as_json:
        click.echo(json.dumps(summary.to_json(), indent=2))
    else:
        print_build_summary(summary)
