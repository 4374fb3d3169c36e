"""Running a sweep: finished runs are skipped, interrupted ones resumed, failed ones listed."""

from __future__ import annotations

import csv
import gc
import io
import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from distill.errors import CheckpointError, DataError, DistillError
from distill.evaluation.result import AVERAGE
from distill.evaluation.task import get_suite
from distill.layout import CHECKPOINT
from distill.record import RunRecord, read_record
from distill.sweep.plan import PlannedRun, is_finished, plan_runs
from distill.sweep.spec import SEED, Sweep
from distill.training.distributed import refuse_launcher
from distill.training.folder import locked
from embedcache.errors import EmbedCacheError
from embedcache.fsio import write_bytes

LEADERBOARD, RUNS_TABLE = "leaderboard.csv", "runs.csv"

# Errors of one run that leave the others alone: running out of memory and damaged models among them.
_OF_ONE_RUN = (DistillError, EmbedCacheError, RuntimeError, OSError, ValueError)

Status = Literal["finished", "interrupted", "open", "failed"]


@dataclass(frozen=True)
class Outcome:
    """State of a run.

    Attributes:
        run: the run.
        status: ``finished``, ``interrupted`` (there is a checkpoint), ``open`` or ``failed``.
        record: its record; None until it begins.
        scores: figures of the suite: ``average``, by which it ranks, and each set's; empty until evaluated.
        retention: that in per cent of the teacher's.
        error: reason of the failure.
        note: how it went, where that is worth a line.
    """

    run: PlannedRun
    status: Status
    record: RunRecord | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    retention: float | None = None
    error: str | None = None
    note: str | None = None

    @property
    def dev(self) -> float | None:
        """Best development score, times 100; None where there is none."""
        score = self.record.result.best_score if self.record and self.record.result else None
        return None if score is None else 100 * score

    @property
    def suite(self) -> float | None:
        """Figure that the suite ranks by; None where it has none, and until it was evaluated."""
        return self.scores.get(AVERAGE)


@dataclass(frozen=True)
class Score:
    """Mean and sample standard deviation (n - 1; None of one run) over the seeds of a setting."""

    mean: float
    std: float | None
    n: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Score | None:
        """Return the score of the values that are not None; None where there are none."""
        found = [value for value in values if value is not None]
        if not found:
            return None
        return cls(statistics.fmean(found), statistics.stdev(found) if len(found) > 1 else None, len(found))

    def __str__(self) -> str:
        return f"{self.mean:.2f}" if self.std is None else f"{self.mean:.2f} ± {self.std:.2f}"


@dataclass(frozen=True)
class Row:
    """Runs of one setting, which differ by their seed alone.

    Attributes:
        varied: dotted key -> value as it is shown.
        planned: number of runs.
        finished: number of those that are finished.
        dev: development score times 100, by which rows are ranked.
        suite: the suite's headline figure.
        retention: that in per cent of the teacher's.
        parameters: parameters of the student; None until a run is finished.
        chosen: whether ``best_of`` chooses it; True without one, and where no run has a score.
    """

    varied: Mapping[str, str]
    planned: int
    finished: int
    dev: Score | None
    suite: Score | None
    retention: Score | None
    parameters: int | None
    chosen: bool


@dataclass(frozen=True)
class SweepProgress:
    """Progress of a sweep.

    Attributes:
        number: the current run, from 1.
        total: number of runs.
        name: name of the current run.
        train: progress of its training; None while its student is evaluated.
        left: seconds until the last run is trained; None until that can be estimated.
    """

    number: int
    total: int
    name: str
    train: Any
    left: float | None


@dataclass(frozen=True)
class SweepResult:
    """End of a sweep.

    Attributes:
        outcomes: its runs.
        rows: one row a setting, the best by development score first.
        trained: number of runs that were trained or resumed; the others were finished before.
    """

    outcomes: tuple[Outcome, ...]
    rows: tuple[Row, ...]
    trained: int

    @property
    def failed(self) -> list[Outcome]:
        """Runs that failed."""
        return [outcome for outcome in self.outcomes if outcome.status == "failed"]


def run_sweep(
    sweep: Sweep,
    out: Path,
    *,
    suite: str | None = None,
    data: Path | None = None,
    on_plan: Callable[[int, int], None] = lambda done, total: None,
    on_progress: Callable[[SweepProgress], None] = lambda progress: None,
    on_outcome: Callable[[Outcome], None] = lambda outcome: None,
) -> SweepResult:
    """Train every run of a sweep that is not finished; both tables in ``out`` are written after every run.

    Args:
        sweep: the sweep.
        out: its folder, which receives ``runs/``, ``leaderboard.csv`` and ``runs.csv``.
        suite: suite to evaluate each finished student by, beside its teacher.
        data: data of the suite.
        on_plan: called with runs planned and runs in all.
        on_progress: called after every step.
        on_outcome: called with every run once it is done.

    Raises:
        ConfigError: if a run cannot be run (none is trained then), another process is at this sweep, or a
            launcher has started several processes.
    """
    refuse_launcher("a sweep")
    if suite is not None:
        check_suite(suite, data)
    outcomes = [look(run) for run in plan_runs(sweep, out, on_plan)]
    trained, done, started = 0, 0.0, time.perf_counter()

    def report(number: int, train: Any) -> None:
        run = outcomes[number].run
        rest = sum(one.run.work for one in outcomes[number:] if one.status in ("open", "interrupted"))
        part = run.work * train.step / max(train.total, 1) if train and train.phase == "train" else 0.0
        worked = done + part
        left = (time.perf_counter() - started) / worked * (rest - part) if worked else None
        on_progress(SweepProgress(number + 1, len(outcomes), run.name, train, left))

    def finish_all(first: Sequence[Outcome] = ()) -> None:
        """Bring outcomes up to date in place, except those of ``first``, which ``best_of`` chooses from."""
        nonlocal trained, done
        for number, before in list(enumerate(outcomes))[len(first) :]:
            outcomes[number] = _finish(before, suite, data, partial(report, number))
            if before.status != "finished":
                trained, done = trained + 1, done + before.run.work
            on_outcome(outcomes[number])
            write_tables(out, sweep, outcomes, first or outcomes)

    with locked(out):
        finish_all()
        first = list(outcomes)
        if sweep.more_seeds and (best := _chosen(first, sweep).values()):
            seeds = {SEED: list(sweep.more_seeds)}
            blocks = tuple({**{key: [value] for key, value in run.given.items()}, **seeds} for run in best)
            known = {outcome.run.folder for outcome in outcomes}
            more = plan_runs(replace(sweep, blocks=blocks), out, shown=sweep.keys)
            outcomes += [look(run) for run in more if run.folder not in known]
            finish_all(first)
    return SweepResult(tuple(outcomes), tuple(leaderboard(sweep, outcomes, first)), trained)


def check_suite(name: str, data: Path | None) -> None:
    """Raise a :class:`DataError` if there is no such suite, or no such data."""
    get_suite(name)
    if data is not None and not data.exists():
        raise DataError(f"--data {data}: no such file or folder")


def look(run: PlannedRun) -> Outcome:
    """Return the state of a run, from its folder."""
    record = read_record(run.folder)
    if is_finished(record):
        return Outcome(run, "finished", record)
    begun = record is not None and (run.folder / CHECKPOINT).is_file()
    return Outcome(run, "interrupted" if begun else "open", record)


def _finish(outcome: Outcome, suite: str | None, data: Path | None, report: Callable[[Any], None]) -> Outcome:
    """Train a run unless it is finished, and evaluate it; its failure is part of the outcome."""
    run, note = outcome.run, None
    try:
        if outcome.status != "finished":
            note = _train(run, resumed=outcome.status == "interrupted", report=report)
        outcome = replace(look(run), note=note)
        if suite is not None:
            report(None)
            scores, retention = _evaluate(run, suite, data)
            outcome = replace(outcome, scores=scores, retention=retention)
    except _OF_ONE_RUN as error:
        return replace(outcome, status="failed", error=" ".join(str(error).split()) or type(error).__name__)
    finally:
        _free_memory()
    return outcome


def _train(run: PlannedRun, *, resumed: bool, report: Callable[[Any], None]) -> str | None:
    """Train or resume a run; return a note where it could not be resumed."""
    from distill.training.train import resume, train

    if not resumed:
        train(run.config, report, recipe=run.recipe)
        return None
    try:
        resume(run.folder, cache=run.config.cache, on_progress=report)
    except CheckpointError as error:
        # The folder's name says that it is the same run, so nothing else is replaced.
        train(run.config.model_copy(update={"overwrite": True}), report, recipe=run.recipe)
        return f"trained again, because it could not be resumed: {' '.join(str(error).split())}"
    return None


def _evaluate(run: PlannedRun, suite: str, data: Path | None) -> tuple[dict[str, float], float | None]:
    """Return the figures of a student by a suite, and its share of its teacher's average in per cent."""
    from distill.device import cpu_threads
    from distill.evaluation.runner import evaluate

    with cpu_threads(run.config.training.threads):
        found = evaluate(run.folder, suite=suite, data=data, device=run.config.training.device, keep=True)
    facts, result = found.models[-1]
    main, retention = result.main, found.retention(facts.name)
    scores = {} if main is None else {AVERAGE: main.value}
    if result.headline == AVERAGE:
        scores |= {name: figure.value for name, figure in result.figures.items()}
    return scores, None if retention is None else retention.value


def _free_memory() -> None:
    """Give back memory that the run before held on a GPU."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def leaderboard(sweep: Sweep, outcomes: Sequence[Outcome], choose_from: Sequence[Outcome]) -> list[Row]:
    """Return one row a setting, the best by the mean development score first.

    Args:
        sweep: the sweep.
        outcomes: the runs.
        choose_from: those that ``best_of`` chooses by.
    """
    chosen = _chosen(choose_from, sweep)
    rows: list[Row] = []
    for digest, group in _by_setting(outcomes).items():
        parameters = [one.record.parameters for one in group if one.status == "finished" and one.record]
        rows.append(
            Row(
                group[0].run.varied,
                len(group),
                sum(one.status == "finished" for one in group),
                Score.of(one.dev for one in group),
                Score.of(one.suite for one in group),
                Score.of(one.retention for one in group),
                parameters[0] if parameters else None,
                not sweep.best_of or not chosen or digest in chosen,
            )
        )
    return sorted(rows, key=lambda row: -row.dev.mean if row.dev else float("inf"))


def _by_setting(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.run.setting, []).append(outcome)
    return groups


def _chosen(outcomes: Sequence[Outcome], sweep: Sweep) -> dict[str, PlannedRun]:
    """Return the best setting by development score for each combination of the keys not in ``best_of``."""
    best: dict[tuple[str, ...], tuple[float, str, PlannedRun]] = {}
    for digest, group in _by_setting(outcomes).items():
        run, dev = group[0].run, Score.of(one.dev for one in group)
        others = tuple(value for key, value in run.varied.items() if key not in sweep.best_of)
        if dev is not None and (others not in best or dev.mean > best[others][0]):
            best[others] = (dev.mean, digest, run)
    return {digest: run for _, digest, run in best.values()}


def write_tables(
    out: Path, sweep: Sweep, outcomes: Sequence[Outcome], choose_from: Sequence[Outcome]
) -> None:
    """Write ``leaderboard.csv`` (a line a setting) and ``runs.csv`` (a line a run)."""
    settings = []
    for row in leaderboard(sweep, outcomes, choose_from):
        scores = {"dev": row.dev, "suite": row.suite, "retention": row.retention}
        settings.append(
            {
                **row.varied,
                "runs": row.finished,
                "planned": row.planned,
                **{
                    f"{name}_{part}": None if score is None else getattr(score, part)
                    for name, score in scores.items()
                    for part in ("mean", "std")
                },
                "parameters": row.parameters,
                **({"chosen": row.chosen} if sweep.best_of else {}),
            }
        )
    _write_csv(out / LEADERBOARD, settings)
    runs = []
    for one in outcomes:
        result = one.record.result if one.record else None
        facts = {} if result is None else result.model_dump(exclude={"best_score", "selected_by"})
        head = {"run": one.run.name, "status": one.status, **one.run.varied, "seed": one.run.config.seed}
        sets = {name: score for name, score in one.scores.items() if name != AVERAGE}
        figures = {"dev": one.dev, "suite": one.suite, **sets, "retention": one.retention}
        runs.append({**head, **figures, **facts, "error": one.error})
    _write_csv(out / RUNS_TABLE, runs)


def _write_csv(path: Path, lines: Sequence[Mapping[str, object]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(itertools.chain(*lines))), lineterminator="\n")
    writer.writeheader()
    for line in lines:
        writer.writerow(
            {key: f"{value:.4f}" if isinstance(value, float) else value for key, value in line.items()}
        )
    write_bytes(path, text.getvalue().encode())
