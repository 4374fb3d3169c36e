"""``distill compare``: two models on the same items."""

from __future__ import annotations

import json
from pathlib import Path

import click

from distill.cli.evaluate import ALL, table_console
from distill.cli.ticker import watched

_DRAWS = 2000  # as distill.evaluation.stats.DRAWS_OF_COMPARISON, which loads numpy


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
    type=click.IntRange(min=100),
    default=_DRAWS,
    show_default=True,
    metavar="N",
    help="Draws for intervals and p-values",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Chooses the draws")
@click.option(
    "--no-contamination",
    is_flag=True,
    help="Do not look for the test sets among the texts that runs were trained and chosen on",
)
@click.option(
    "--again", is_flag=True, help="Evaluate anew what a run's folder keeps of an earlier evaluation"
)
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, cuda:1, mps")
@click.option(
    "--compute-dtype",
    type=click.Choice(["float32", "bfloat16", "float16", "auto"]),
    default="float32",
    show_default=True,
    help="Number format of the forward pass",
)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Also write the result as JSON")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the table")
def compare_command(
    a: str,
    b: str,
    suites: tuple[str, ...],
    data: Path | None,
    bootstrap: int,
    seed: int,
    no_contamination: bool,
    again: bool,
    device: str,
    compute_dtype: str,
    out: Path | None,
    as_json: bool,
) -> None:
    """Compare A with B on the same items: difference, 95 % interval, p-value and verdict for each set.

    Models are named as for 'distill eval'. What a run's folder keeps of an evaluation is not encoded again.
    """
    from dataclasses import asdict

    from distill.errors import DataError
    from distill.evaluation.runner import evaluate_suites
    from distill.evaluation.stats import compare

    if ALL in suites and len(suites) > 1:
        raise click.UsageError(f"--suite {ALL} means every suite: give it alone")
    with watched("") as progress:
        found = evaluate_suites(
            [a, b],
            None if ALL in suites else suites,
            data=data,
            beside_teacher=False,
            contamination=not no_contamination,
            device=device,
            compute_dtype=compute_dtype,
            keep=True,
            again=again,
            progress=progress,
        )
    if len(found[0].models) != 2:
        raise DataError(f"{a} would be compared with itself, or a folder of runs is given: name two models")
    compared = {
        one.suite: compare(one.models[0][1], one.models[1][1], bootstrap, seed)
        for one in found
        if ALL not in suites or one.models[0][1].headline == "average"
    }
    names = [facts.name for facts, _ in found[0].models]
    notes = list(dict.fromkeys(note for one in found for note in one.notes))
    facts = {
        "a": names[0],
        "b": names[1],
        "draws": bootstrap,
        "correction": "holm, over the sets of a suite",
        "suites": [
            {"suite": suite, "sets": [{**asdict(row), "verdict": row.verdict} for row in rows]}
            for suite, rows in compared.items()
        ],
        "notes": notes,
    }
    if out is not None:
        from embedcache.fsio import write_json

        write_json(out, facts)
    if as_json:
        click.echo(json.dumps(facts, indent=2, ensure_ascii=False))
        return
    from distill.report.compare import comparison_tables
    from distill.report.writers import terminal_tables

    table_console().print(terminal_tables(comparison_tables(names[0], names[1], compared, bootstrap), notes))
