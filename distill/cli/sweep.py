"""``distill sweep``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from distill.sweep.run import Outcome, SweepProgress, SweepResult
    from distill.sweep.spec import Sweep

_SETTINGS = {
    "cache": "cache",
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
@click.option("--student", "students", metavar="SPEC", multiple=True, help="Student; repeat it to vary it.")
@click.option("--dev", metavar="FILE", help="Development pairs (TSV), by which runs are ranked.")
@click.option("--recipe", metavar="NAME", help="Start from the settings of a published experiment.")
@click.option(
    "--config", "config_file", type=click.Path(path_type=Path), metavar="FILE", help="Configuration (YAML)."
)
@click.option(
    "--set", "assignments", multiple=True, metavar="A.B=V", help="Set a key for all runs; repeatable."
)
@click.option("--device", help="Device: auto, cpu, cuda ...  [default: auto]")
@click.option("--threads", type=int, help="CPU threads.  [default: all cores]")
@click.option(
    "--best-of", metavar="KEY,...", help="Show only the value of these keys with the best development score."
)
@click.option(
    "--more-seeds", metavar="N,...", help="Seeds that only the settings so chosen are run with as well."
)
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
    config_file: Path | None,
    assignments: tuple[str, ...],
    best_of: str | None,
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
    from distill.config.sources import Sources
    from distill.errors import TrainingError
    from distill.sweep.run import run_sweep
    from distill.sweep.spec import read_sweep

    if data is not None and suite is None:
        raise click.UsageError("--data is data of a suite: give --suite too")
    options = {_SETTINGS[name]: value for name, value in settings.items()}
    sweep = read_sweep(
        file,
        vary,
        Sources.gather(config_file, assignments, options).values,
        recipe=recipe,
        students=students,
        best_of=_words(best_of),
        more_seeds=_numbers(more_seeds),
    )
    if dry_run:
        _print_plan(sweep, out, as_json)
        return
    from embedcache.cli.progress import show_lines

    with show_lines() as show:
        result = run_sweep(
            sweep,
            out,
            suite=suite,
            data=data,
            on_plan=lambda done, total: show(f"check run {done}/{total}"),
            on_progress=_show_progress(show),
            on_outcome=lambda outcome: click.echo(_line(outcome, suite), err=True),
        )
    if not result.trained:
        click.echo(f"{len(result.outcomes)} runs, all finished before; nothing to do", err=True)
    _print_result(result, sweep, out, suite, as_json)
    if result.failed:
        raise TrainingError(
            f"{len(result.failed)} of {len(result.outcomes)} runs failed; the same command tries them again"
        )


def _words(text: str | None) -> list[str]:
    return [word.strip() for word in (text or "").split(",") if word.strip()]


def _numbers(text: str | None) -> list[int]:
    try:
        return [int(word) for word in _words(text)]
    except ValueError:
        raise click.BadParameter(
            f"{text!r}: expected numbers, as in 1,2", param_hint="--more-seeds"
        ) from None


def _show_progress(show: Callable[[str], None]) -> Callable[[SweepProgress], None]:
    import time
    from datetime import timedelta

    from distill.cli.progress import describe

    began: dict[str, float] = {}

    def on_progress(progress: SweepProgress) -> None:
        now = time.perf_counter()
        phase = "" if progress.train is None else progress.train.phase
        seconds = now - began.setdefault(f"{progress.name} {phase}", now)
        doing = "evaluate" if progress.train is None else describe(progress.train, seconds)
        left = "" if progress.left is None else f"; sweep {timedelta(seconds=round(progress.left))} left"
        show(f"run {progress.number}/{progress.total} {progress.name}: {doing}{left}")

    return on_progress


def _line(outcome: Outcome, suite: str | None) -> str:
    facts: list[str] = [outcome.status]
    facts += [] if outcome.dev is None else [f"dev {outcome.dev:.2f}"]
    facts += [] if outcome.suite is None else [f"{suite} {outcome.suite:.2f}"]
    return ": ".join([outcome.run.name, ", ".join(facts), *filter(None, (outcome.error, outcome.note))])


def _print_plan(sweep: Sweep, out: Path, as_json: bool) -> None:
    from distill.sweep.plan import plan_runs
    from distill.sweep.run import look

    outcomes = [look(run) for run in plan_runs(sweep, out)]
    shown = _telling([one.run.varied for one in outcomes])
    facts = [
        {
            **{key: one.run.varied[key] for key in shown},
            "seed": one.run.config.seed,
            "steps": one.run.steps,
            "status": one.status,
            "run": one.run.name,
        }
        for one in outcomes
    ]
    to_do = sum(one.run.steps for one in outcomes if one.status != "finished")
    _print(facts, as_json, f"{len(outcomes)} runs, {to_do:,} steps to do")
    if sweep.more_seeds and not as_json:
        seeds = ", ".join(map(str, sweep.more_seeds))
        click.echo(f"then the best by {', '.join(sweep.best_of)} with seeds {seeds}")


def _print_result(result: SweepResult, sweep: Sweep, out: Path, suite: str | None, as_json: bool) -> None:
    from dataclasses import asdict

    from distill.sweep.run import LEADERBOARD, RUNS_TABLE

    shown = _telling([row.varied for row in result.rows])
    rows: list[dict[str, Any]] = []
    for row in result.rows:
        scores = {"dev": row.dev, **({suite: row.suite, "retention %": row.retention} if suite else {})}
        runs = str(row.finished) if row.finished == row.planned else f"{row.finished}/{row.planned}"
        rows.append(
            {
                **{key: row.varied[key] for key in shown},
                "runs": runs,
                **{name: asdict(score) if score and as_json else score for name, score in scores.items()},
                "parameters": row.parameters,
                "chosen": row.chosen,
            }
        )
    failed = {one.run.name: one.error for one in result.failed}
    if as_json:
        import json

        click.echo(json.dumps({"leaderboard": rows, "failed": failed}, indent=2))
        return
    best = [{key: value for key, value in row.items() if key != "chosen"} for row in rows if row["chosen"]]
    _print(best, False, "best development score first")
    for name, error in failed.items():
        click.echo(f"failed: {name}: {error}")
    click.echo(f"written: {out / LEADERBOARD}, {out / RUNS_TABLE}")


def _telling(varied: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the keys that differ between settings; all of them where none does."""
    keys = list(varied[0]) if varied else []
    return [key for key in keys if len({one[key] for one in varied}) > 1] or keys


def _print(rows: Sequence[Mapping[str, object]], as_json: bool, title: str) -> None:
    if as_json:
        import json

        click.echo(json.dumps(rows, indent=2))
        return
    from rich.table import Table

    from distill.cli.evaluate import table_console

    table = Table(title=title, title_justify="left")
    for name in rows[0] if rows else ():
        table.add_column(_heading(name), overflow="fold", justify="left" if "." in name else "right")
    for row in rows:
        table.add_row(*_cells(row.values()))
    table_console().print(table)


def _cells(values: Iterable[object]) -> list[str]:
    return [
        "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value) for value in values
    ]


def _heading(key: str) -> str:
    return {"student.spec": "student", "loss.name": "loss"}.get(key, key.rpartition(".")[2])
