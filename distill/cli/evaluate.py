"""``distill eval``: score models beside their teacher."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from distill.evaluation.encoding import Progress, silent
from distill.evaluation.runner import evaluate
from distill.evaluation.suites import SUITES

if TYPE_CHECKING:
    from rich.console import Console

_SUITE_HELP = "; ".join(f"{name}: {suite.summary}" for name, suite in SUITES.items())
# Where no terminal says how wide it is, columns must not be cut: a file or a pipe has room.
_WIDTH_WITHOUT_TERMINAL = 160


@click.command("eval")
@click.argument("models", metavar="MODEL...", nargs=-1, required=True)
@click.option("--suite", type=click.Choice(list(SUITES)), default="sts", show_default=True, help=_SUITE_HELP)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="sts: the folder of test files. fidelity: a file of sentences [default: those the run held out]",
)
@click.option("--teacher", metavar="SPEC", help="Teacher to compare with [default: the one the run names]")
@click.option(
    "--cache",
    type=click.Path(path_type=Path),
    help="fidelity: cache with the teacher's vectors [default: the one the run names]",
)
@click.option("--text-column", metavar="NAME", help="fidelity: column of --data that holds the sentences")
@click.option("--limit", type=click.IntRange(min=1), help="fidelity: read at most so many sentences")
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
def evaluate_command(
    models: tuple[str, ...],
    suite: str,
    data: Path | None,
    teacher: str | None,
    cache: Path | None,
    text_column: str | None,
    limit: int | None,
    device: str,
    compute_dtype: str,
    out: Path | None,
    as_json: bool,
) -> None:
    """Evaluate each MODEL, beside its teacher where that is known.

    MODEL is a run folder, a sentence-transformers folder, an ONNX export (folder or .onnx file), a hub id or
    a teacher alias.
    """
    with _progress_on_terminal() as progress:
        result = evaluate(
            models,
            suite=suite,
            data=data,
            teacher=teacher,
            cache=cache,
            device=device,
            compute_dtype=compute_dtype,
            text_column=text_column,
            limit=limit,
            progress=progress,
        )
    if out is not None:
        from embedcache.fsio import write_json

        write_json(out, result.to_json())
    if as_json:
        click.echo(json.dumps(result.to_json(), indent=2, ensure_ascii=False))
        return
    table_console().print(result.table())


def table_console() -> Console:
    """Return a console for results: as wide as the terminal, or wide enough for seven sets without one."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL)


@contextmanager
def _progress_on_terminal() -> Iterator[Progress]:
    """Yield what shows progress on standard error, or nothing where that is no terminal."""
    if not sys.stderr.isatty():
        yield silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as ProgressBar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with ProgressBar(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks = {}

        def show(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total)
            bars.update(tasks[name], completed=done, total=total)

        yield show
