"""``distill compare``: two models on the same items."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from distill.cli.evaluate import ALL, table_console
from distill.cli.ticker import watched


@click.command("compare")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option(
    "--suite",
    "suites",
    metavar="NAME",
    multiple=True,
    default=["sts"],
    show_default=True,
    help="Suite of sets to compare on; repeatable. all: every one whose files are in --data",
)
@click.option("--data", type=click.Path(path_type=Path), metavar="DIR", help="Folder of test files")
@click.option(
    "--bootstrap",
    "draws",
    type=click.IntRange(min=1),
    metavar="N",
    help="Draws for intervals and p-values [default: 2000]",
)
@click.option("--seed", type=click.IntRange(min=0), metavar="N", help="Choice of the draws [default: 0]")
@click.option("--again", is_flag=True, help="Use no evaluation that is kept")
@click.option("--device", metavar="NAME", help="auto, cpu, cuda, cuda:1, mps [default: auto]")
@click.option(
    "--compute-dtype",
    type=click.Choice(["float32", "bfloat16", "float16", "auto"]),
    help="Number format of the forward pass [default: float32]",
)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Also write the result as JSON")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the table")
def compare_command(
    a: str, b: str, suites: tuple[str, ...], out: Path | None, as_json: bool, **options: Any
) -> None:
    """Compare A with B on the same items: difference, 95 % interval, p-value and verdict for each set.

    Models are named as for 'distill eval'. Evaluations that are kept are used.
    """
    from distill.report.compare import compare, comparison_tables
    from distill.report.writers import terminal_tables

    if ALL in suites and len(suites) > 1:
        raise click.UsageError(f"--suite {ALL} means every suite: give it alone")
    given = {name: value for name, value in options.items() if value is not None}
    with watched("") as progress:
        found = compare(a, b, None if ALL in suites else suites, progress=progress, **given)
    facts = found.to_json()
    if out is not None:
        from embedcache.fsio import write_json

        write_json(out, facts)
    if as_json:
        click.echo(json.dumps(facts, indent=2, ensure_ascii=False))
    else:
        table_console().print(terminal_tables(comparison_tables(found), found.notes))
