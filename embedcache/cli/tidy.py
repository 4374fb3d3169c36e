"""``embedcache gc`` and ``embedcache rm``."""

from __future__ import annotations

import click

from embedcache.cli.options import cache_option, json_option


@click.command("gc")
@cache_option
@click.option(
    "--older",
    type=click.FloatRange(0),
    metavar="HOURS",
    help="Keep what was touched within HOURS.  [default: 1, with --unused 24]",
)
@click.option("--unused", is_flag=True, help="Also delete vectors of no corpus and no view.")
@click.option("--quarantine", is_flag=True, help="Also delete what repair quarantined.")
@click.option("--dry-run", is_flag=True, help="List what would be deleted.")
@json_option
def gc_command(
    cache: str, older: float | None, unused: bool, quarantine: bool, dry_run: bool, as_json: bool
) -> None:
    """Delete what killed processes, replaced corpora and old indexes left behind."""
    import json
    from dataclasses import asdict

    from embedcache.cache import Cache
    from embedcache.cli.tables import print_table, size
    from embedcache.gc import collect_garbage

    found = collect_garbage(Cache(cache), hours=older, unused=unused, quarantine=quarantine, dry_run=dry_run)
    if as_json:
        click.echo(json.dumps([asdict(one) for one in found], indent=2))
        return
    if found:
        print_table(("path", "reason", "size"), [(one.path, one.reason, size(one.bytes)) for one in found])
    freed = size(sum(one.bytes for one in found))
    click.echo(f"{len(found)} found, {freed} {'would be freed' if dry_run else 'freed'}")


@click.command("rm")
@click.argument("kind", type=click.Choice(["corpus", "view", "teacher"]))
@click.argument("name", metavar="NAME")
@cache_option
@click.option("--yes", is_flag=True, help="Do not ask.")
def rm_command(kind: str, name: str, cache: str, yes: bool) -> None:
    """Remove a corpus, a view (CORPUS/VIEW) or a teacher.

    A corpus goes with its views, and vectors are kept. A teacher goes with its vectors; if it has another
    name, only the name goes.
    """
    from embedcache import gc
    from embedcache.cache import Cache
    from embedcache.cli.tables import size

    opened = Cache(cache)
    corpus, slash, view = name.partition("/")
    if kind == "view" and not slash:
        raise click.UsageError(f"{name!r}: expected CORPUS/VIEW")
    try:
        if not yes:
            click.confirm(f"remove {kind} {name!r} from {opened.folder}?", abort=True)
    except click.Abort:
        raise click.ClickException("nothing was removed; --yes removes without asking") from None
    if kind == "view":
        freed = gc.remove_view(opened, corpus, view)
    else:
        freed = (gc.remove_corpus if kind == "corpus" else gc.remove_teacher)(opened, name)
    click.echo(f"removed {kind} {name!r}: {size(freed)} freed")
