"""``embedcache show`` and ``embedcache views``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from embedcache.cli.options import cache_option, json_option

if TYPE_CHECKING:
    from embedcache.show import ShownRow

_MOST_ROWS = 10_000
_SHOWN = 2000


@click.command("show")
@cache_option
@click.option("--corpus", help="The corpus.  [default: the only one]")
@click.option("--row", "numbers", type=click.IntRange(0), multiple=True, help="A row, counted from 0.")
@click.option("--rows", "ranges", metavar="A:B", multiple=True, help="The rows from A to just before B.")
@json_option
def show_command(
    cache: str, corpus: str | None, numbers: tuple[int, ...], ranges: tuple[str, ...], as_json: bool
) -> None:
    """Show rows of a corpus with all their views and how those were made."""
    import json
    from dataclasses import asdict

    from embedcache.cache import Cache
    from embedcache.show import show_rows

    rows = [*numbers, *(row for one in ranges for row in _range(one))]
    if not rows:
        raise click.UsageError("no rows: name some with --row N or --rows A:B")
    if len(rows) > _MOST_ROWS:
        raise click.UsageError(f"{len(rows):,} rows; at most {_MOST_ROWS:,} are shown at once")
    opened = Cache(cache)
    shown = show_rows(opened, opened.corpus(corpus), rows)
    if as_json:
        click.echo(json.dumps([asdict(row) for row in shown], indent=2, ensure_ascii=False))
        return
    for row in shown:
        _print_row(row)


@click.command("views")
@json_option
def views_command(as_json: bool) -> None:
    """List the views that 'build --view' can make, with their arguments."""
    import json
    from dataclasses import asdict

    from embedcache.views.recipe import KINDS

    if as_json:
        click.echo(json.dumps({name: asdict(kind) for name, kind in KINDS.items()}, indent=2))
        return
    for name, kind in KINDS.items():
        arguments = (
            f"{argument}={'...' if default is None else default}"
            for argument, default in kind.arguments.items()
        )
        click.echo(f"{name}: {kind.summary}")
        click.echo(f"    --view {kind.example:<22} {', '.join(arguments) or 'no arguments'}")
    click.echo("\n'crop*4' makes four samples of what is random; 'NAME=crop' gives a view a name.")


def _range(text: str) -> range:
    first, colon, last = text.partition(":")
    # Digits alone: int() would take blanks, signs and underscores as well.
    if not colon or not all(one.isascii() and one.isdigit() for one in (first or "0", last)):
        raise click.BadParameter(f"{text!r}: expected two row numbers, such as 0:10", param_hint="--rows")
    return range(int(first or 0), int(last))


def _print_row(row: ShownRow) -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    console = Console(highlight=False)
    facts = [f"row {row.row}", *(f"{name} {value}" for name, value in row.facts().items())]
    console.print(Text(" · ".join(facts), style="bold"))
    for name, shown in row.views.items():
        tokens = [f"{count} tokens ({teacher})" for teacher, count in shown.tokens.items()]
        notes = [shown.recipe, *tokens] if shown.recipe else []
        console.print(Text(f"  {name}", style="cyan"), Text("; ".join(notes), style="dim"))
        # A few thousand characters tell what a row is; --json gives all.
        text = shown.text if len(shown.text) <= _SHOWN else f"{shown.text[:_SHOWN]}…"
        console.print(Padding(Text(text), (0, 0, 0, 4)))
    console.print()
