"""``embedcache copy``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from embedcache.cli.options import (
    CODEC_NAMES,
    STORE_KINDS,
    choice,
    count,
    dry_run_option,
    json_option,
    many,
    named,
)
from embedcache.cli.tables import print_json, print_table
from embedcache.progress import show_progress

if TYPE_CHECKING:
    from embedcache.copying import CopyResult


@click.command("copy")
@click.argument("sources", nargs=-1, required=True, metavar="SRC...")
@click.argument("target", metavar="DST")
@many("--teacher", "teachers", "NAME[=NEW]", "Copy this teacher.")
@many("--corpus", "corpora", "NAME[=NEW]", "Copy this corpus, and vectors of its texts only.")
@named("--where", "SQL", "Copy rows for which this holds, and vectors of their texts.")
@choice("--codec", CODEC_NAMES, "Codec of the copy.  [default: unchanged]")
@choice("--store", STORE_KINDS, "Store of the copy.  [default: as DST, else arrow]")
@count("--shard-rows", "Write full shards of N rows.")
@click.option(
    "--prefer",
    type=click.Choice(["FIRST", "LAST"], case_sensitive=False),
    metavar="FIRST|LAST",
    help="Source whose vectors are kept in a conflict.",
)
@dry_run_option
@json_option
def copy_command(sources: tuple[str, ...], target: str, dry_run: bool, as_json: bool, **options: Any) -> None:
    """Copy the caches SRC..., or a part of them, into the new or existing cache DST.

    Merges, splits, converts and compacts. Whole shards are copied as files. Interrupted, the same command
    finishes. --dry-run exits with 1 where a conflict needs --prefer.
    """
    from embedcache.copying import CopyOptions, copy

    with show_progress() as progress:
        done = copy(sources, target, CopyOptions(**options), dry_run=dry_run, progress=progress)
    if as_json:
        print_json(done)
    else:
        _print(done)
    sys.exit(1 if any(not conflict.decided_by for conflict in done.conflicts) else 0)


def _print(done: CopyResult) -> None:
    for conflict in done.conflicts:
        click.echo(f"{conflict.describe()}: {conflict.decided_by or 'undecided, see --prefer'}")
    print_table(("corpus", "rows"), done.corpora.items())
    teachers = [(", ".join(one.names), one.rows, one.copied, one.written) for one in done.teachers]
    columns = ("teacher", "vectors", "shards copied", "shards written")
    print_table(columns, teachers)
    outcome = "dry run: nothing written" if done.is_dry_run else "copied"
    click.echo(f"{outcome} to {done.target}")
