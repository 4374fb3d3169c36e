"""``distill sweep``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from distill.config.sweep import Sweep
    from distill.sweep import SweepRun
    from distill.training.tracking import TrainProgress

_SETTINGS = {
    "cache": "cache",
    "corpus": "corpus",
    "teacher": "teacher",
    "epochs": "training.epochs",
    "lr": "optimizer.lr",
    "dev": "evaluation.data",
    "device": "training.device",
    "threads": "training.threads",
}


@click.command("sweep")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option(
    "--vary", multiple=True, metavar="KEY=V,V", help="Key and its values; with FILE they replace its values."
)
@click.option("--cache", metavar="DIR", help="Folder of the cache.")
@click.option("--corpus", metavar="NAME", help="Corpus in the cache.  [default: the only one]")
@click.option("--teacher", metavar="NAME", help="Teacher in the cache.  [default: the only one]")
@click.option("--student", "students", metavar="SPEC", multiple=True, help="Student; repeat it to vary it.")
@click.option("--dev", metavar="FILE", help="Development pairs that rank the runs.")
@click.option("--epochs", type=int, metavar="N", help="Epochs of all runs.  [default: by the corpus's size]")
@click.option("--lr", type=float, metavar="X", help="Peak learning rate of all runs.  [default: the loss's]")
@click.option("--recipe", metavar="NAME", help="Start from the settings of a published experiment.")
@click.option(
    "--set", "assignments", multiple=True, metavar="A.B=V", help="Set a key for all runs; repeatable."
)
@click.option("--device", help="Device: auto, cpu, cuda ...  [default: auto]")
@click.option("--threads", type=int, help="CPU threads.  [default: all cores]")
@click.option(
    "--best-of",
    multiple=True,
    metavar="KEY",
    help="Show only the value of KEY with the best development score.",
)
@click.option("--more-seeds", metavar="N,N", help="Extra seeds for the settings chosen by --best-of.")
@click.option("--suite", help="Suite to evaluate finished students by ('distill list suites').")
@click.option("--data", type=click.Path(path_type=Path), metavar="PATH", help="Data of the suite.")
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, metavar="DIR", help="Folder of the sweep."
)
@click.option("--dry-run", is_flag=True, help="Print the runs.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def sweep_command(
    file: Path | None,
    vary: tuple[str, ...],
    students: tuple[str, ...],
    recipe: str | None,
    assignments: tuple[str, ...],
    best_of: tuple[str, ...],
    more_seeds: str | None,
    suite: str | None,
    data: Path | None,
    out: Path,
    dry_run: bool,
    as_json: bool,
    **settings: Any,
) -> None:
    """Train many students on one cache and rank them.

    FILE or --vary says what differs. The same command again skips finished runs and resumes interrupted ones;
    failed runs are listed at the end. Rows are ranked by the development score, over seeds by its mean.
    'distill report DIR' shows more.
    """
    from distill.config.sources import gather
    from distill.config.sweep import read_sweep
    from distill.errors import TrainingError
    from distill.sweep import LEADERBOARD, RUNS_TABLE, leaderboard, plan_runs

    options = {_SETTINGS[name]: value for name, value in settings.items()}
    given = gather(assignments=assignments, options=options)
    seeds = [seed for seed in (more_seeds or "").split(",") if seed]
    sweep = read_sweep(file, vary, given, recipe=recipe, students=students, best_of=best_of, more_seeds=seeds)
    if dry_run:
        planned = plan_runs(sweep, out)
        lines = [
            {**run.varied, "seed": run.config.seed, "steps": run.steps, "status": run.status, "run": run.name}
            for run in planned
        ]
        steps = sum(run.steps for run in planned if run.status != "finished")
        if as_json:
            click.echo(json.dumps(lines, indent=2))
        else:
            _print(lines, _agreed(lines, sweep.keys), f"{len(lines)} runs, {steps:,} steps to do")
        return
    runs = _run(sweep, out, suite, data)
    board = leaderboard(runs)
    failed = {run.name: run.error for run in runs if run.error is not None}
    if as_json:
        click.echo(json.dumps({"leaderboard": board, "failed": failed}, indent=2))
    else:
        if not any(run.trained for run in runs):
            click.echo(f"{len(runs)} runs, none to train", err=True)
        best = [line for line in board if line["chosen"]] or board
        _print(best, _agreed(board, sweep.keys), "best development score first", suite)
        for name, error in failed.items():
            click.echo(f"failed: {name}: {error}")
        click.echo(f"written: {out / LEADERBOARD}, {out / RUNS_TABLE}")
    if failed:
        raise TrainingError(f"{len(failed)} of {len(runs)} runs failed; the same command tries them again")


def _run(sweep: Sweep, out: Path, suite: str | None, data: Path | None) -> list[SweepRun]:
    """Run the sweep, with a line for the current step and one that stays for every run."""
    import time
    from datetime import timedelta

    from distill.sweep import run_sweep
    from distill.training.tracking import train_lines
    from embedcache.progress import show_lines

    began, trained = time.perf_counter(), 0
    lines: dict[str, Callable[[TrainProgress], None]] = {}

    with show_lines() as show:

        def on_progress(run: SweepRun, train: TrainProgress | None) -> None:
            if train is None:
                show(f"{run.name}: evaluate")
            else:
                lines.setdefault(run.name, train_lines(show, f"{run.name}: "))(train)

        def on_run(run: SweepRun, number: int, total: int) -> None:
            nonlocal trained
            trained += run.trained
            names = {"dev": "dev", "suite": suite}
            scores = [f"{names[key]} {run.scores[key]:.2f}" for key in names if key in run.scores]
            seconds = (time.perf_counter() - began) / max(trained, 1) * (total - number)
            left = f"; about {timedelta(seconds=round(seconds))} left" if number < total else ""
            facts = ", ".join([run.error or run.status, *scores])
            click.echo(f"{number}/{total} {run.name}: {facts}{left}", err=True)

        def on_plan(number: int) -> None:
            show(f"check run {number}")

        return run_sweep(
            sweep, out, suite=suite, data=data, on_plan=on_plan, on_progress=on_progress, on_run=on_run
        )


def _print(
    lines: Sequence[Mapping[str, Any]], hidden: set[str], title: str, suite: str | None = None
) -> None:
    from distill.cli.evaluate import table_console
    from distill.report.tables import Table
    from distill.report.writers import terminal_tables

    names = {"student.spec": "student", "loss.name": "loss", "suite": suite or "suite"}
    shown = [
        {
            names.get(key, key.rpartition(".")[2]): _cell(value, line.get(f"{key}_std"))
            for key, value in line.items()
            if key not in hidden and not key.endswith("_std")
        }
        for line in lines
    ]
    table_console().print(terminal_tables([Table.of(title, shown)]))


def _agreed(lines: Sequence[Mapping[str, Any]], varied: Sequence[str]) -> set[str]:
    """Return the keys that a table leaves out: those in which all lines agree, unless that is all of them."""
    same = {key for key in varied if len({line[key] for line in lines}) == 1}
    return {"planned", "chosen", *(same if len(same) < len(varied) else ())}


def _cell(value: object, std: float | None) -> str | None:
    if isinstance(value, float):
        return f"{value:.2f}" if std is None else f"{value:.2f} ± {std:.2f}"
    return None if value is None else f"{value:,}" if isinstance(value, int) else str(value)
