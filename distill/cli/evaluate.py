"""``distill eval``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embedcache.progress import show_progress

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

# Where no terminal says how wide it is, columns must not be cut: a file or a pipe has room.
_WIDTH_WITHOUT_TERMINAL = 160


def evaluation_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that ``eval`` and ``compare`` share."""
    options = [
        click.option(
            "--suite",
            "suites",
            metavar="NAME",
            multiple=True,
            help="What to measure; repeatable. 'distill list suites' names them; all: every suite whose "
            "files are in --data; MODULE:FUNCTION or FILE.py:FUNCTION: a suite of yours [default: sts, or "
            "--pairs alone]",
        ),
        click.option(
            "--pairs",
            metavar="FILE",
            multiple=True,
            help="Pairs of texts with scores or labels, or triplets, of your own; repeatable. TSV, CSV, "
            "JSONL or Parquet",
        ),
        click.option(
            "--columns",
            metavar="A,B,SCORE",
            callback=_split,
            help="Columns of --pairs: two texts and a score or label, or anchor, positive and negative "
            "[default: by their usual names]",
        ),
        click.option(
            "--data",
            type=click.Path(path_type=Path),
            help="Folder of test files; of fidelity alone: a file of sentences "
            "[default: those the run held out]",
        ),
        click.option("--again", is_flag=True, help="Use no evaluation that is kept"),
        click.option("--device", metavar="NAME", help="auto, cpu, cuda, cuda:1, mps [default: auto]"),
        click.option(
            "--compute-dtype",
            type=click.Choice(["float32", "bfloat16", "float16", "auto"]),
            help="Number format of the forward pass [default: float32]",
        ),
        click.option(
            "--out", type=click.Path(dir_okay=False, path_type=Path), help="Also write the result as JSON"
        ),
        click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the table"),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _split(context: click.Context, parameter: click.Parameter, value: str | None) -> list[str] | None:
    return None if value is None else value.split(",")


def _numbers(context: click.Context, parameter: click.Parameter, value: str | None) -> list[int] | None:
    try:
        return None if value is None else [int(word) for word in value.split(",")]
    except ValueError:
        raise click.BadParameter(f"{value!r}: expected whole numbers, as in 32,64,128") from None


def chosen_suites(suites: Sequence[str], pairs: Sequence[str]) -> list[str]:
    """Return the suites to run besides ``--pairs``: without either, the usual one."""
    from distill.evaluation.task import DEFAULT

    return list(suites) or ([] if pairs else [DEFAULT])


def show(facts: dict[str, Any], out: Path | None, as_json: bool, table: Callable[[], RenderableType]) -> None:
    """Print a result as JSON or as a table; write it to ``out``, too."""
    if out is not None:
        from embedcache.fsio import write_json

        write_json(out, facts)
    if as_json:
        click.echo(json.dumps(facts, indent=2, ensure_ascii=False))
    else:
        table_console().print(table())


def table_console() -> Console:
    """Return a console as wide as the terminal, or wide enough for seven sets without one."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL)


@click.command("eval")
@click.argument("models", metavar="MODEL...", nargs=-1, required=True)
@evaluation_options
@click.option(
    "--dims",
    metavar="N,N",
    callback=_numbers,
    help="Score each MODEL at its N leading dimensions as well, and all in float, int8 and binary",
)
@click.option("--teacher", metavar="SPEC", help="Teacher to compare with [default: the one the run names]")
@click.option(
    "--cache",
    type=click.Path(path_type=Path),
    help="Cache to look for the teacher's vectors in; it is not written [default: the run's]",
)
@click.option(
    "--pooling",
    metavar="NAME",
    help="MODEL's pooling of token vectors, if it is no run: mean, cls, cls-before-pooler, pooler, last "
    "[default: the model's]",
)
@click.option("--text-column", metavar="NAME", help="fidelity: column of --data that holds the sentences")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="fidelity: read at most N sentences")
@click.option(
    "--snli-pairs",
    type=click.IntRange(min=0),
    metavar="N",
    help="nli: pairs that SNLI's classifier learns from; 0: all [default: 15000]",
)
@click.option(
    "--bootstrap",
    type=click.IntRange(min=0),
    metavar="N",
    help="Draws for the 95 % intervals; 0 for none [default: 1000]",
)
@click.option("--contamination", is_flag=True, help="Search the training texts of runs for test sentences")
def evaluate_command(
    models: tuple[str, ...], suites: Sequence[str], out: Path | None, as_json: bool, **options: Any
) -> None:
    """Evaluate each MODEL, beside its teacher where that is known.

    MODEL is a run folder, a folder with runs below it, a sentence-transformers folder, an ONNX export (folder
    or .onnx file), a hub id, a teacher alias, or cache:FOLDER#TEACHER: a teacher whose vectors are taken from
    a cache, and stored there where it lacks them. Evaluations of runs are kept in their folders, others in
    the user's cache folder, and used the next time.
    """
    from distill.evaluation.runner import evaluate_suites, to_json

    given = {name: value for name, value in options.items() if value not in (None, ())}
    suites = chosen_suites(suites, options["pairs"])
    with show_progress() as progress:
        found = evaluate_suites(models, suites, keep=True, progress=progress, **given)

    def table() -> RenderableType:
        from distill.report.evaluation import render

        return render(found)

    show(to_json(found, suites), out, as_json, table)
