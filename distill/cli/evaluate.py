"""``distill eval``: score models beside their teacher."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from distill.cli.ticker import watched
from distill.evaluation.options import BOOTSTRAP, EvaluationOptions
from distill.evaluation.suites import SUITES
from distill.evaluation.tasks import SNLI_PAIRS

if TYPE_CHECKING:
    from rich.console import Console

ALL = "all"
"""Stands for every suite that finds its files."""

# Where no terminal says how wide it is, columns must not be cut: a file or a pipe has room.
_WIDTH_WITHOUT_TERMINAL = 160


@click.command("eval")
@click.argument("models", metavar="MODEL...", nargs=-1, required=True)
@click.option(
    "--suite",
    "suites",
    type=click.Choice([*SUITES, ALL]),
    multiple=True,
    default=["sts"],
    show_default=True,
    help="What to measure; repeatable. 'distill list suites' names what each reads; all: every suite whose "
    "files are in --data",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="Folder of test files; of fidelity alone: a file of sentences [default: those the run held out]",
)
@click.option("--teacher", metavar="SPEC", help="Teacher to compare with [default: the one the run names]")
@click.option(
    "--cache",
    type=click.Path(path_type=Path),
    help="Cache to look for the teacher's vectors in; it is not written [default: the one the run names]",
)
@click.option("--text-column", metavar="NAME", help="fidelity: column of --data that holds the sentences")
@click.option("--limit", type=click.IntRange(min=1), help="fidelity: read at most so many sentences")
@click.option(
    "--sst2-sentences",
    is_flag=True,
    help="transfer: learn SST2 from whole sentences, a tenth as many as the phrases",
)
@click.option(
    "--snli-pairs",
    type=click.IntRange(min=0),
    default=SNLI_PAIRS,
    show_default=True,
    metavar="N",
    help="nli: pairs that SNLI's classifier learns from; 0: all",
)
@click.option(
    "--bootstrap",
    type=click.IntRange(min=0),
    default=BOOTSTRAP,
    show_default=True,
    metavar="N",
    help="Draws for the 95 % intervals; 0 for none",
)
@click.option(
    "--no-contamination",
    is_flag=True,
    help="Do not look for the test sets among the texts that runs were trained on",
)
@click.option(
    "--corpus",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Training texts of the models that are no runs, to look for the test sets in: a file or folder",
)
@click.option(
    "--again", is_flag=True, help="Evaluate anew what the run's folder keeps of an earlier evaluation"
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
@click.pass_context
def evaluate_command(
    context: click.Context,
    models: tuple[str, ...],
    suites: tuple[str, ...],
    data: Path | None,
    teacher: str | None,
    cache: Path | None,
    text_column: str | None,
    limit: int | None,
    sst2_sentences: bool,
    snli_pairs: int,
    bootstrap: int,
    no_contamination: bool,
    corpus: Path | None,
    again: bool,
    device: str,
    compute_dtype: str,
    out: Path | None,
    as_json: bool,
) -> None:
    """Evaluate each MODEL, beside its teacher where that is known.

    MODEL is a run folder, a sentence-transformers folder, an ONNX export (folder or .onnx file), a hub id, a
    teacher alias, or cache:FOLDER#TEACHER: a teacher whose vectors are taken from a cache, and stored there
    where it lacks them. What is found out about a run is kept in its folder and used the next time.
    """
    from distill.evaluation.result import results_json
    from distill.evaluation.runner import evaluate_suites

    if ALL in suites and len(suites) > 1:
        raise click.UsageError(f"--suite {ALL} means every suite: give it alone")
    options: EvaluationOptions = {
        "data": data,
        "teacher": teacher,
        "cache": cache,
        "device": device,
        "compute_dtype": compute_dtype,
        "text_column": text_column,
        "limit": limit,
        "sst2_sentences": sst2_sentences,
        "bootstrap": bootstrap,
        "contamination": not no_contamination,
        "corpus": corpus,
        "keep": True,
        "again": again,
    }
    if context.get_parameter_source("snli_pairs") is not ParameterSource.DEFAULT:
        # What was given for a suite that is not evaluated is refused; the default is there for all.
        options["snli_pairs"] = snli_pairs
    with watched("") as progress:
        options["progress"] = progress
        results = evaluate_suites(models, suites=None if ALL in suites else suites, **options)
    several = ALL in suites or len(results) > 1
    facts = results_json(results) if several else results[0].to_json()
    if out is not None:
        from embedcache.fsio import write_json

        write_json(out, facts)
    if as_json:
        click.echo(json.dumps(facts, indent=2, ensure_ascii=False))
        return
    from distill.evaluation.table import render

    table_console().print(render(results))


def table_console() -> Console:
    """Return a console for results: as wide as the terminal, or wide enough for seven sets without one."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL)
