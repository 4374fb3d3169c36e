"""``distill compare``: two models on the same items."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from distill.cli.evaluate import chosen_suites, evaluation_options, show
from embedcache.progress import show_progress


@click.command("compare")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@evaluation_options
@click.option(
    "--bootstrap",
    "draws",
    type=click.IntRange(min=1),
    metavar="N",
    help="Draws for intervals and p-values [default: 2000]",
)
@click.option("--seed", type=click.IntRange(min=0), metavar="N", help="Choice of the draws [default: 0]")
def compare_command(
    a: str, b: str, suites: Sequence[str], out: Path | None, as_json: bool, **options: Any
) -> None:
    """Compare A with B on the same items: difference, 95 % interval, p-value and verdict for each set.

    Models are named as for 'distill eval'. Evaluations that are kept are used.
    """
    from distill.report.compare import compare, comparison_tables
    from distill.report.writers import terminal_tables

    given = {name: value for name, value in options.items() if value not in (None, ())}
    suites = chosen_suites(suites, options["pairs"])
    with show_progress() as progress:
        found = compare(a, b, suites, progress=progress, **given)
    show(found.to_json(), out, as_json, lambda: terminal_tables(comparison_tables(found), found.notes))
