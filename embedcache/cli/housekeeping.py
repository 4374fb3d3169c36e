"""``embedcache rm``, ``gc``, ``compact`` and ``convert``."""

from __future__ import annotations

import click

from embedcache.cli.options import CODEC_NAMES, STORE_KINDS, cache_option, json_option


@click.group("rm")
def rm_command() -> None:
    """Remove a corpus, a view or a teacher from a cache."""


@rm_command.command("corpus")
@click.argument("name")
@cache_option
@click.option("--yes", is_flag=True, help="Do not ask.")
def rm_corpus_command(name: str, cache: str, yes: bool) -> None:
    """Remove the corpus NAME with its views; vectors are kept."""
    from embedcache.cache import Cache
    from embedcache.cli.tables import size
    from embedcache.housekeeping import remove_corpus
    from embedcache.housekeeping.remove import require_corpus

    opened = Cache(cache)
    require_corpus(opened, name)
    _confirm(f"remove corpus {name!r} from {opened.folder}?", yes=yes)
    click.echo(f"removed corpus {name!r}: {size(remove_corpus(opened, name))} freed")


@rm_command.command("view")
@click.argument("name")
@cache_option
@click.option("--corpus", metavar="NAME", help="Whose view.  [default: of the only corpus]")
@click.option("--yes", is_flag=True, help="Do not ask.")
def rm_view_command(name: str, cache: str, corpus: str | None, yes: bool) -> None:
    """Remove the view NAME of a corpus; vectors are kept."""
    from embedcache.cache import Cache
    from embedcache.cli.tables import size
    from embedcache.housekeeping import remove_view
    from embedcache.housekeeping.remove import require_view

    opened = Cache(cache)
    of = require_view(opened, name, corpus).name
    _confirm(f"remove view {name!r} of corpus {of!r} from {opened.folder}?", yes=yes)
    click.echo(f"removed view {name!r} of corpus {of!r}: {size(remove_view(opened, name, of))} freed")


@rm_command.command("teacher")
@click.argument("name")
@cache_option
@click.option("--yes", is_flag=True, help="Do not ask.")
def rm_teacher_command(name: str, cache: str, yes: bool) -> None:
    """Remove the teacher NAME with its vectors; only the name, where it has another."""
    from embedcache.cache import Cache
    from embedcache.cli.tables import size
    from embedcache.housekeeping import remove_teacher
    from embedcache.housekeeping.remove import folder_bytes

    opened = Cache(cache)
    taken = size(folder_bytes(opened.teacher_folder(opened.teacher(name).contract)))
    _confirm(f"remove teacher {name!r} ({taken} with its vectors) from {opened.folder}?", yes=yes)
    click.echo(f"removed teacher {name!r}: {size(remove_teacher(opened, name))} freed")


def _confirm(question: str, *, yes: bool) -> None:
    try:
        sure = yes or click.confirm(question)
    except click.Abort:
        sure = False
    if not sure:
        raise click.ClickException("nothing was removed; --yes removes without asking")


@click.command("gc")
@cache_option
@click.option(
    "--older",
    type=click.FloatRange(0),
    default=24.0,
    show_default=True,
    metavar="HOURS",
    help="Leave alone what was touched within so many hours; a build may be writing it.",
)
@click.option(
    "--unused-vectors",
    is_flag=True,
    help="Also delete vectors that nothing finds: of no corpus's or view's texts, or of a teacher without a "
    "name.",
)
@click.option("--quarantine", is_flag=True, help="Also delete what repair moved aside.")
@click.option("--dry-run", is_flag=True, help="Only list what would be deleted.")
@json_option
def gc_command(
    cache: str, older: float, unused_vectors: bool, quarantine: bool, dry_run: bool, as_json: bool
) -> None:
    """Delete what crashes, replaced corpora and old indexes left behind."""
    import json
    from dataclasses import asdict

    from embedcache.cache import Cache
    from embedcache.cli.tables import print_table, size
    from embedcache.housekeeping import sweep

    done = sweep(
        Cache(cache), hours=older, unused_vectors=unused_vectors, quarantine=quarantine, dry_run=dry_run
    )
    found = done.found
    if as_json:
        click.echo(json.dumps([asdict(one) for one in found], indent=2))
        return
    if found:
        print_table(("what", "why", "size"), [(one.path, one.reason, size(one.bytes)) for one in found])
    verb = "would be freed" if dry_run else "freed"
    kept = (
        f"; {done.young:,} more touched within {older:g} hours left alone, see --older" if done.young else ""
    )
    click.echo(f"{len(found)} found, {size(sum(one.bytes for one in found))} {verb}{kept}")


@click.command("compact")
@cache_option
@click.option("--teacher", help="This teacher only.  [default: all]")
@click.option(
    "--shard-rows", type=click.IntRange(1), default=16384, show_default=True, help="Vectors a full shard."
)
@json_option
def compact_command(cache: str, teacher: str | None, shard_rows: int, as_json: bool) -> None:
    """Merge small shards into full ones, and drop rows of them that stand elsewhere too."""
    import json

    from embedcache.cache import Cache
    from embedcache.cli.progress import watched
    from embedcache.cli.tables import print_table, size
    from embedcache.housekeeping import compact

    with watched() as on_rows:
        done = compact(Cache(cache), teacher, shard_rows=shard_rows, on_rows=on_rows)
    if as_json:
        rows = [
            {
                "contract": one.contract.id,
                "shards_before": one.shards_before,
                "shards_after": one.shards_after,
                "duplicates": one.duplicates,
                "bytes_before": one.bytes_before,
                "bytes_after": one.bytes_after,
            }
            for one in done
        ]
        click.echo(json.dumps(rows, indent=2))
        return
    print_table(
        ("contract", "shards", "now", "duplicates dropped", "size", "now"),
        [
            (
                one.contract.id[:12],
                f"{one.shards_before:,}",
                f"{one.shards_after:,}",
                f"{one.duplicates:,}",
                size(one.bytes_before),
                size(one.bytes_after),
            )
            for one in done
        ],
    )


@click.command("convert")
@cache_option
@click.option("--out", required=True, metavar="DIR", help="The new cache; the old one stays as it is.")
@click.option("--teacher", help="This teacher only.  [default: all]")
@click.option("--store", type=click.Choice(STORE_KINDS), help="Where vectors are stored.  [default: as now]")
@click.option("--codec", type=click.Choice(CODEC_NAMES), help="How vectors are stored.  [default: as now]")
@json_option
def convert_command(
    cache: str, out: str, teacher: str | None, store: str | None, codec: str | None, as_json: bool
) -> None:
    """Copy a cache with its vectors in another store or codec.

    Between the stores nothing changes but the place: there and back gives the same files. Another codec
    re-encodes what is stored, without the teacher.
    """
    import json
    from dataclasses import asdict

    from embedcache.cache import Cache
    from embedcache.cli.progress import watched
    from embedcache.cli.tables import print_table, size
    from embedcache.convert import convert

    with watched("shards") as on_step:
        done = convert(
            Cache(cache),
            out,
            teacher=teacher,
            store=store,
            codec=codec,
            on_shard=lambda done, total: on_step("convert", done, total),
        )
    if as_json:
        click.echo(json.dumps([asdict(one) for one in done], indent=2))
        return
    print_table(
        ("teacher", "vectors", "store", "codec", "size", "now", "worst cosine to before"),
        [
            (
                one.teacher,
                f"{one.rows:,}",
                one.store,
                one.codec,
                size(one.bytes_before),
                size(one.bytes_after),
                f"{one.worst_cosine:.6f}",
            )
            for one in done
        ],
    )
