"""``embedcache merge`` and ``split``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from embedcache.cli.options import json_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from embedcache.merge import Conflict, MergedTeacher, MergeResult
    from embedcache.split import SplitResult

_link = click.option(
    "--link",
    is_flag=True,
    help="Give files a second name on the same disk instead of copying them; vectors in LMDB are copied.",
)


@click.command("merge")
@click.argument("caches", nargs=-1, required=True, metavar="CACHE...")
@click.option(
    "--into", required=True, metavar="DIR", help="The merged cache; what is there already takes part first."
)
@click.option(
    "--prefer",
    metavar="WHO",
    help="Whose word counts where the caches do not agree: first, last, or one of them.  [default: refuse]",
)
@click.option(
    "--keep-both",
    is_flag=True,
    help="Where names stand for different corpora, views or teachers, keep both, the loser as NAME-DIGEST.",
)
@click.option(
    "--noise",
    type=click.FloatRange(0, 2),
    metavar="X",
    help="How much 1 - cosine of two vectors of a text may be.  [default: what their shards explain]",
)
@_link
@click.option("--dry-run", is_flag=True, help="Only list what would be done, and every conflict.")
@json_option
def merge_command(
    caches: tuple[str, ...],
    into: str,
    prefer: str | None,
    keep_both: bool,
    noise: float | None,
    link: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Make the union of CACHE... in the cache --into; they stay as they are.

    Nothing is written before every conflict has an answer. Killed, the same command goes on. --dry-run exits
    with 1 if there are conflicts that nobody has decided.
    """
    import json

    from embedcache.cli.progress import watched
    from embedcache.merge import merge_caches

    with watched("") as on_step:
        done = merge_caches(
            caches,
            into,
            prefer=prefer,
            keep_both=keep_both,
            noise=noise,
            link=link,
            dry_run=dry_run,
            on_step=on_step,
        )
    if as_json:
        click.echo(json.dumps(done.to_json(), indent=2))
    else:
        _print_merge(done)
    sys.exit(1 if done.undecided else 0)


def _print_merge(done: MergeResult) -> None:
    from embedcache.cli.tables import print_table, size
    from embedcache.sizes import counted

    _print_conflicts(done.conflicts)
    print_table(
        ("corpus", "rows", "views", "from"),
        [(one.name, f"{one.rows:,}", ", ".join(one.views), one.cache) for one in done.corpora],
        "corpora",
    )
    print_table(
        ("teacher", "rows", "shards", "in several caches", "left behind", "from"),
        [
            (
                ", ".join(one.names),
                f"{one.rows:,}",
                _shards(one),
                _shared(one),
                _left_behind(one),
                ", ".join(one.caches),
            )
            for one in done.teachers
        ],
        "teachers",
    )
    for line in done.told:
        click.echo(line)
    if not done.written:
        left = f", {len(done.undecided)} of the conflicts without an answer" if done.undecided else ""
        click.echo(f"dry run: nothing was written to {done.into}{left}")
        return
    files = f"{counted(done.files, 'file')} of {size(done.bytes)}"
    click.echo(
        f"{counted(len(done.caches), 'cache')} in {done.into}: {files} written, "
        f"with the digest of each taken, {done.seconds:.1f} s"
    )


def _print_conflicts(conflicts: Sequence[Conflict]) -> None:
    from embedcache.cli.tables import print_table

    if conflicts:
        print_table(
            ("conflict", "what", "between", "answer"),
            [
                (
                    one.kind,
                    _what(one),
                    "\n".join(f"{side.cache}: {side.holds}" for side in one.sides),
                    one.answer or "none: --prefer" + (", --keep-both" if one.can_keep_both else ""),
                )
                for one in conflicts
            ],
            "conflicts",
        )


def _what(one: Conflict) -> str:
    from embedcache.sizes import counted

    if one.worst_cosine is None:
        return one.what
    return (
        f"{one.what}: {counted(one.keys, 'text')}, worst cosine {one.worst_cosine:.6f} (noise: "
        f"{one.expected_cosine:.6f}), such as {', '.join(repr(text[:40]) for text in one.examples)}"
    )


def _shards(one: MergedTeacher) -> str:
    if one.shards is None:
        return ""
    words = [f"{one.shards.whole:,} whole"]
    words += [f"{one.shards.cut:,} cut"] if one.shards.cut else []
    words += [f"{one.shards.left:,} left out"] if one.shards.left else []
    words += [f"{one.shards.there:,} there already"] if one.shards.there else []
    return ", ".join(words)


def _shared(one: MergedTeacher) -> str:
    words = [f"{one.same:,} the same"] if one.same else []
    words += [f"{one.near:,} but for noise (1 - cosine to {1 - one.worst_near:.0e})"] if one.near else []
    return ", ".join(words) or "none"


def _left_behind(one: MergedTeacher) -> str:
    words = [f"{one.lost:,} lost"] if one.lost else []
    words += [f"{one.coarser:,} in a coarser codec"] if one.coarser else []
    words += [f"{one.unread:,} never read"] if one.unread else []
    return ", ".join(words) or "none"


@click.command("split")
@click.argument("cache")
@click.option("--out", required=True, metavar="DIR", help="The new cache; the old one stays as it is.")
@click.option(
    "--teacher", "teachers", multiple=True, metavar="NAME", help="Take this teacher. May be repeated."
)
@click.option(
    "--corpus",
    "corpora",
    multiple=True,
    metavar="NAME",
    help="Take this corpus and its views, and the vectors of their texts. May be repeated.",
)
@click.option(
    "--rows",
    type=click.IntRange(1),
    metavar="N",
    help="Of every corpus, take so many rows; counted after --where.",
)
@click.option("--where", metavar="SQL", help="Of every corpus, take the rows for which this holds.")
@click.option(
    "--as",
    "name",
    metavar="NAME",
    help="Call the corpus so, where one is taken.  [default: its name there, with --rows and --where in it]",
)
@click.option("--all-vectors", is_flag=True, help="Take vectors whatever their texts.")
@_link
@json_option
def split_command(
    cache: str,
    out: str,
    teachers: tuple[str, ...],
    corpora: tuple[str, ...],
    rows: int | None,
    where: str | None,
    name: str | None,
    all_vectors: bool,
    link: bool,
    as_json: bool,
) -> None:
    """Write a part of CACHE as a cache of its own: some teachers, corpora or rows.

    Without --corpus, --rows and --where all vectors are taken. Shards all of whose rows are wanted are taken
    as they are. 'embedcache merge' puts parts together again.
    """
    import json

    from embedcache.cli.progress import watched
    from embedcache.split import split_cache

    with watched("") as on_step:
        done = split_cache(
            cache,
            out,
            teachers=teachers,
            corpora=corpora,
            first=rows,
            where=where,
            name=name,
            all_vectors=all_vectors,
            link=link,
            on_step=on_step,
        )
    if as_json:
        click.echo(json.dumps(done.to_json(), indent=2))
    else:
        _print_split(done)


def _print_split(done: SplitResult) -> None:
    from embedcache.cli.tables import print_table, size
    from embedcache.sizes import counted

    print_table(
        ("corpus", "rows", "of", "views"),
        [(one.name, f"{one.rows:,}", f"{one.rows_before:,}", ", ".join(one.views)) for one in done.corpora],
        "corpora",
    )
    print_table(
        ("teacher", "vectors", "of", "shards taken whole", "cut", "left out"),
        [
            (
                ", ".join(one.names),
                f"{one.rows:,}",
                f"{one.rows_before:,}",
                f"{one.shards.whole:,}",
                f"{one.shards.cut:,}",
                f"{one.shards.left:,}",
            )
            for one in done.teachers
        ],
        "teachers",
    )
    for line in done.told:
        click.echo(line)
    files = f"{counted(done.files, 'file')} of {size(done.bytes)}"
    click.echo(f"{done.out}: {files} written, {done.seconds:.1f} s")
