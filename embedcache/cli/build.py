"""``embedcache build``."""

from __future__ import annotations

from typing import Any

import click

DTYPES = ("auto", "float32", "bfloat16", "float16")


@click.command("build")
@click.argument("sources", nargs=-1, required=True)
@click.option(
    "--teacher", required=True, metavar="SPEC", help="Alias, hub id with @revision, or local folder."
)
@click.option(
    "--cache", required=True, metavar="DIR", help="The cache's folder; created where there is none."
)
@click.option("--name", help="The corpus's name in the cache.  [default: from the first file's name]")
@click.option(
    "--text-column", help="Column of the text.  [default: the only text column, or text, sentence, content]"
)
@click.option("--id-column", help="Column of unique row ids to keep.")
@click.option("--label-column", help="Column of labels to keep.")
@click.option(
    "--format",
    type=click.Choice(["text", "jsonl", "csv", "tsv", "parquet", "arrow"]),
    help="Format of the sources.  [default: by the file's ending]",
)
@click.option("--limit", type=click.IntRange(1), help="Read the first so many rows only.")
@click.option("--replace", is_flag=True, help="Replace a corpus of the same name that has other rows.")
@click.option("--pooling", help="How token vectors become one: mean, cls, cls-before-pooler, pooler or last.")
@click.option("--prompt", help="Text put before every sentence.  [default: the teacher's own]")
@click.option(
    "--max-length",
    type=click.IntRange(1),
    help="Tokens after which a text is cut.  [default: the teacher's own]",
)
@click.option("--truncate-dim", type=click.IntRange(1), help="Keep so many leading dimensions.")
@click.option(
    "--normalize/--no-normalize", default=None, help="Scale vectors to length one.  [default: as the teacher]"
)
@click.option("--teacher-name", help="The teacher's name in the cache.  [default: alias, folder or hub name]")
@click.option("--trust-remote-code", is_flag=True, help="Run code that comes with the model.")
@click.option(
    "--codec", type=click.Choice(["float32", "float16"]), help="How vectors are stored.  [default: float16]"
)
@click.option(
    "--compute-dtype",
    type=click.Choice(DTYPES),
    default="auto",
    show_default=True,
    help="What the teacher computes in.",
)
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, cuda:1, mps ...")
@click.option("--batch-tokens", type=click.IntRange(1), help="Tokens a forward batch.  [default: by device]")
@click.option("--threads", type=click.IntRange(1), help="CPU threads.  [default: all cores]")
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
