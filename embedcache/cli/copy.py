"""``embedcache copy``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from embedcache.cli.options import CODEC_NAMES, STORE_KINDS, json_option

if TYPE_CHECKING:
    from embedcache.copying import CopyResult


@click.command("copy")
@click.argument("sources", nargs=-1, required=True, metavar="SRC...")
@click.argument("target", metavar="DST")
@click.option(
    "--teacher", "teachers", multiple=True, metavar="NAME[=NEW]", help="Copy this teacher; repeatable."
)
@click.option(
    "--corpus",
    "corpora",
    multiple=True,
    metavar="NAME[@DIGEST][=NEW]",
    help="Copy this corpus, and vectors of its texts only; repeatable.",
)
@click.option("--where", metavar="SQL", help="Copy rows for which this holds, and vectors of their texts.")
@click.option("--codec", type=click.Choice(CODEC_NAMES), help="Codec of the copy.  [default: unchanged]")
@click.option("--store", type=click.Choice(STORE_KINDS), help="Store of the copy.  [default: unchanged]")
@click.option("--shard-rows", type=click.IntRange(1), metavar="N", help="Write full shards of N rows.")
@click.option(
    "--prefer",
    type=click.Choice(["FIRST", "LAST"], case_sensitive=False),
    metavar="FIRST|LAST",
    help="Source whose vectors are kept in a conflict.",
)
@click.option("--overwrite", is_flag=True, help="Replace other corpora and views of the same name in DST.")
@click.option("--dry-run", is_flag=True, help="List what DST lacks, and conflicts.")
@json_option
def copy_command(
    sources: tuple[str, ...],
    target: str,
    teachers: tuple[str, ...],
    corpora: tuple[str, ...],
    where: str | None,
    codec: str | None,
    store: str | None,
    shard_rows: int | None,
    prefer: str | None,
    overwrite: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Copy the caches SRC..., or a part of them, into the new or existing cache DST.

    Merges, splits, converts and compacts. Whole shards are copied as files. Interrupted, the same command
    finishes. --dry-run exits with 1 where a conflict needs --prefer.
    """
    import json

    from embedcache.cli.progress_bar import show_progress
    from embedcache.copying import CopyOptions, copy

    options = CopyOptions(teachers, corpora, where, codec, store, shard_rows, prefer, overwrite)
    with show_progress() as progress:
        done = copy(sources, target, options, dry_run=dry_run, progress=progress)
    if as_json:
        click.echo(json.dumps(done.to_json(), indent=2))
    else:
        _print(done)
    sys.exit(1 if any(not conflict.decided_by for conflict in done.conflicts) else 0)


def _print(done: CopyResult) -> None:
    from embedcache.cli.tables import print_table, size

    for conflict in done.conflicts:
        click.echo(f"{conflict.describe()}: {conflict.decided_by or 'undecided, see --prefer'}")
    corpora = [
        (one.name, f"{one.rows:,}", ", ".join(one.views), "no" if one.is_missing else "yes")
        for one in done.corpora
    ]
    if corpora:
        print_table(("corpus", "rows", "views", "in DST before"), corpora)
    print_table(
        ("teacher", "vectors", "not in DST before", "shards copied", "shards written", "size"),
        [
            (
                ", ".join(one.names),
                f"{one.rows:,}",
                f"{one.missing:,}",
                f"{one.shards.unchanged:,}" if one.shards else "",
                f"{one.shards.written:,}" if one.shards else "",
                size(one.shards.bytes) if one.shards else "",
            )
            for one in done.teachers
        ],
    )
    for one in done.teachers:
        if one.shards and one.shards.worst_cosine < 1:
            click.echo(f"{one.names[0]}: worst cosine to the source {one.shards.worst_cosine:.6f}")
    click.echo(
        f"dry run: nothing written to {done.target}" if done.is_dry_run else f"copied to {done.target}"
    )
