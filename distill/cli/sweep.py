"""``distill sweep``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

    from distill.evaluation.spread import Score
    from distill.sweep.leaderboard import Row
    from distill.sweep.plan import PlannedRun
    from distill.sweep.runner import Outcome, SweepProgress, SweepResult
    from distill.sweep.spec import SweepSpec


@click.command("sweep")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option(
    "--vary",
    "vary",
    metavar="KEY=V,V",
    multiple=True,
    help="Key of the configuration and its values; repeatable. With FILE: in place of the file's values.",
)
@click.option("--cache", metavar="DIR", help="The cache's folder.")
@click.option(
    "--student",
    "students",
    metavar="SPEC",
    multiple=True,
    help="Student of all runs, as for 'distill run'; repeat it to vary it.",
)
@click.option("--dev", metavar="FILE", help="Development pairs (TSV), which the leaderboard is ordered by.")
@click.option("--recipe", metavar="NAME", help="Settings of a published experiment, which others win over.")
@click.option(
    "--config", "config_file", type=click.Path(path_type=Path), metavar="FILE", help="A YAML configuration."
)
@click.option(
    "--set", "assignments", multiple=True, metavar="A.B=V", help="Set a key for all runs; repeatable."
)
@click.option("--device", help="auto, cpu, cuda ...  [default: auto]")
@click.option("--threads", type=int, help="CPU threads.  [default: all cores]")
@click.option(
    "--best-of",
    metavar="KEY,...",
    help="Show the value of these keys that is best by development score, for each setting of the others.",
)
@click.option(
    "--more-seeds", metavar="N,...", help="Seeds that only the settings so chosen are run with as well."
)
@click.option(
    "--suite", help="Evaluate finished students, and their teacher, by this suite of 'distill list suites'."
)
@click.option("--data", type=click.Path(path_type=Path), metavar="PATH", help="What the suite reads.")
@click.option(
    "--speed",
    is_flag=True,
    help="When all is trained, time students and teachers on a CPU, whatever was timed before.",
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.svg",
    help="Draw what students keep of their teacher, over parameters and over speed.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, metavar="DIR", help="The sweep's folder."
)
@click.option("--dry-run", is_flag=True, help="Print the runs, and train none.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def sweep_command(
    file: Path | None,
    vary: tuple[str, ...],
    students: tuple[str, ...],
    best_of: str | None,
    more_seeds: str | None,
    suite: str | None,
    data: Path | None,
    speed: bool,
    plot: Path | None,
    out: Path,
    dry_run: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Train many students on one cache and rank them, as FILE or --vary says.

    Training does not run the teacher. The same command again skips what is finished and goes on with what is
    not; failed runs are listed at the end. Rows are ordered by the development score, seeds make mean and
    deviation. 'distill report' on the folder says more, without the cache.
    """
    from distill.errors import TrainingError
    from distill.sweep.runner import run_sweep
    from distill.sweep.scores import SuiteChoice

    spec = _spec(file, vary, students, best_of, more_seeds, given)
    if data is not None and suite is None and not speed:
        raise click.UsageError("--data is what a suite reads: give --suite too")
    if speed and data is None:
        raise click.UsageError(
            "--speed is measured on the sentences of STS-B test: give their folder by --data"
        )
    if plot is not None:
        _check_plot(plot, suite)
    choice = None if suite is None else SuiteChoice(suite, data)
    if choice is not None:
        choice.check()
    if dry_run:
        _print_plan(spec, out, as_json)
        return
    with _progress() as (on_progress, on_plan, on_compare, say):
        result = run_sweep(
            spec,
            out,
            suite=choice,
            time_on=data if speed else None,
            on_progress=on_progress,
            on_outcome=lambda outcome: say(_line(outcome)),
            on_plan=on_plan,
            on_compare=on_compare,
        )
    if not result.worked_on:
        click.echo(f"{len(result.outcomes)} runs, all finished before; nothing to do", err=True)
    for note in result.notes:
        click.echo(note, err=True)
    _print_result(result, spec, out, suite, as_json)
    if plot is not None and suite is not None:
        _draw(out, suite, plot)
    if result.failed:
        raise TrainingError(
            f"{len(result.failed)} of {len(result.outcomes)} runs failed; the same command tries them again"
        )


def _spec(
    file: Path | None,
    vary: Sequence[str],
    students: Sequence[str],
    best_of: str | None,
    more_seeds: str | None,
    given: dict[str, Any],
) -> SweepSpec:
    from distill.config.models import RunConfig
    from distill.config.sources import Sources, short_names
    from distill.sweep.spec import make_spec

    recipe, config_file, assignments = (given.pop(name) for name in ("recipe", "config_file", "assignments"))
    short = short_names(RunConfig)
    options = {short.get(key, key): value for key, value in given.items()}
    settings = Sources.gather(config_file, assignments, options).values
    return make_spec(
        file,
        vary,
        settings,
        recipe=recipe,
        students=students,
        best_of=_words(best_of),
        more_seeds=_numbers(more_seeds),
    )


def _words(text: str | None) -> list[str]:
    return [word.strip() for word in (text or "").split(",") if word.strip()]


def _numbers(text: str | None) -> list[int]:
    try:
        return [int(word) for word in _words(text)]
    except ValueError:
        raise click.BadParameter(
            f"{text!r}: expected numbers with commas, as in 1,2", param_hint="--more-seeds"
        ) from None


@contextmanager
def _progress() -> Iterator[
    tuple[
        Callable[[SweepProgress], None],
        Callable[[int, int], None],
        Callable[[str, int, int], None],
        Callable[[str], None],
    ]
]:
    """Yield what keeps a line up to date on standard error (thrice), and what writes a line that stays."""
    import time
    from datetime import timedelta

    from distill.cli.progress import describe
    from embedcache.cli.progress import show_lines

    name, started = "", 0.0

    with show_lines() as show:

        def on_progress(progress: SweepProgress) -> None:
            nonlocal name, started
            train = progress.train
            if name != progress.name or (train is not None and train.phase == "prepare"):
                name, started = progress.name, time.perf_counter()
            doing = "evaluate" if train is None else describe(train, time.perf_counter() - started)
            left = "" if progress.left is None else f"; sweep {timedelta(seconds=round(progress.left))} left"
            show(f"run {progress.number}/{progress.total} {progress.name}: {doing}{left}")

        yield (
            on_progress,
            lambda done, total: show(f"look at run {done}/{total}"),
            lambda what, done, total: show(f"compare: {what}, {done:,} of {total:,} sentences"),
            lambda line: click.echo(line, err=True),
        )


def _line(outcome: Outcome) -> str:
    dev = "" if outcome.dev is None else f", dev {outcome.dev:.2f}"
    scores = outcome.scores or {}
    suite = f", suite {scores['average']:.2f}" if scores else ""
    return f"{outcome.run.name}: {outcome.status}{dev}{suite}{_after(outcome.error)}{_after(outcome.note)}"


def _after(text: str | None) -> str:
    return f": {text}" if text else ""


def _print_plan(spec: SweepSpec, out: Path, as_json: bool) -> None:
    import json

    from rich.table import Table

    from distill.cli.sweep_table import heading
    from distill.sweep.plan import plan_runs, spelled
    from distill.sweep.runner import look

    outcomes = [look(run) for run in plan_runs(spec, out)]
    if as_json:
        facts = [
            {"run": o.run.name, "status": o.status, "steps": o.run.steps, "varied": dict(o.run.varied)}
            for o in outcomes
        ]
        click.echo(json.dumps(facts, indent=2))
        return
    keys = _shown_keys([outcome.run for outcome in outcomes], spec)
    table = Table(title=f"{len(outcomes)} runs", title_justify="left")
    for name in ("", *map(heading, keys), "steps", "status", "folder"):
        table.add_column(name, overflow="fold", justify="right" if name == "steps" else "left")
    for number, outcome in enumerate(outcomes):
        run = outcome.run
        cells = [spelled(run.varied[key]) for key in keys]
        table.add_row(str(number + 1), *cells, f"{run.steps:,}", outcome.status, run.name)
    console = _console()
    console.print(table)
    to_do = sum(outcome.run.steps for outcome in outcomes if outcome.result is None)
    console.print(f"{to_do:,} steps to do", highlight=False)
    if spec.more_seeds:
        console.print(
            f"then what is best by {', '.join(spec.best_of)} with seeds "
            f"{', '.join(map(str, spec.more_seeds))} too",
            highlight=False,
            soft_wrap=True,
        )


def _print_result(result: SweepResult, spec: SweepSpec, out: Path, suite: str | None, as_json: bool) -> None:
    import json
    from dataclasses import asdict

    from distill.cli.sweep_table import leaderboard_table, teacher_line
    from distill.sweep.leaderboard import LEADERBOARD, RUNS_TABLE

    if as_json:
        facts = {
            "leaderboard": [_row_facts(row) for row in result.rows],
            "teachers": [asdict(teacher) for teacher in result.teachers],
            "failed": {o.run.name: o.error for o in result.failed},
        }
        click.echo(json.dumps(facts, indent=2))
        return
    console = _console()
    keys = _shown_keys([o.run for o in result.outcomes], spec)
    console.print(leaderboard_table(result.rows, keys, suite))
    for teacher in result.teachers:
        console.print(teacher_line(teacher, suite), highlight=False, markup=False, soft_wrap=True)
    for outcome in result.failed:
        console.print(f"failed: {outcome.run.name}: {outcome.error}", highlight=False, markup=False)
    console.print(
        f"written: {out / LEADERBOARD}, {out / RUNS_TABLE}", highlight=False, markup=False, soft_wrap=True
    )


def _row_facts(row: Row) -> dict[str, object]:
    from dataclasses import asdict

    def facts(score: Score | None) -> dict[str, object] | None:
        return None if score is None else {"mean": score.mean, "std": score.std, "n": score.n}

    return {
        "varied": dict(row.varied),
        "runs": row.finished,
        "planned": row.planned,
        "dev": facts(row.dev),
        "suite": facts(row.suite),
        "retention": facts(row.retention),
        "parameters": row.parameters,
        "megabytes": row.megabytes,
        "sentences_per_second": None if row.speed is None else asdict(row.speed),
        "chosen": row.chosen,
    }


def _shown_keys(runs: Sequence[PlannedRun], spec: SweepSpec) -> list[str]:
    """Return the varied keys that tell runs apart."""
    return [key for key in spec.keys if len({str(run.varied[key]) for run in runs}) > 1]


def _console() -> Console:
    from distill.cli.evaluate import table_console

    return table_console()


def _check_plot(plot: Path, suite: str | None) -> None:
    """Refuse before the work what could not be drawn after it."""
    if plot.suffix.lower() != ".svg":
        raise click.BadParameter(f"{plot}: a picture is an SVG, name it FILE.svg", param_hint="--plot")
    if suite is None:
        raise click.UsageError("--plot draws what a suite says of the students: give --suite too")


def _draw(out: Path, suite: str, plot: Path) -> None:
    """Draw what 'distill report OUT --out FILE.svg' draws."""
    from distill.report import rows
    from distill.report.charts import picture
    from distill.sweep.measured import SPEED_SUITE
    from embedcache.fsio import write_bytes

    write_bytes(plot, picture(rows(out, [suite, SPEED_SUITE])).encode())
    click.echo(f"written to {plot}", err=True)
