"""``embedcache rm`` and ``gc``."""

from __future__ import annotations

import click

from embedcache.cli.options import cache_option, json_option


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
