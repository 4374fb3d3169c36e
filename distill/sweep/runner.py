"""Running a sweep: finished runs are left alone, interrupted ones gone on with, failed ones noted."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from distill.errors import CheckpointError, DistillError
from distill.evaluation.encoding import Progress, silent
from distill.layout import CHECKPOINT, CONFIG
from distill.record import read_record
from distill.sweep.beside import evaluate_teachers, time_models
from distill.sweep.leaderboard import Row, chosen_settings, leaderboard, write_tables
from distill.sweep.measured import SPEED_SUITE, Measured, measure_student, measure_teachers
from distill.sweep.plan import PlannedRun, plan_runs
from distill.sweep.scores import SuiteChoice, evaluate_run
from distill.sweep.spec import SweepSpec, with_seeds
from distill.training.folder import locked
from distill.training.processes import refuse_launcher
from distill.training.tracking import TrainProgress
from embedcache.errors import EmbedCacheError

Status = Literal["finished", "interrupted", "open", "failed"]

# What one run may die of without the others being touched: also of memory (RuntimeError) or a damaged model.
_OF_ONE_RUN = (DistillError, EmbedCacheError, RuntimeError, OSError, ValueError)


@dataclass(frozen=True)
class Outcome:
    """How a run of a sweep stands.

    Attributes:
        run: the run.
        status: ``finished``, ``interrupted`` (there is a checkpoint), ``open`` or ``failed``.
        result: what the run's record says of its result; None until it is finished.
        measured: what else is known of its student; None until it is finished.
        error: what it failed of.
        note: what is worth knowing about how it went.
    """

    run: PlannedRun
    status: Status
    result: dict[str, Any] | None = None
    measured: Measured | None = None
    error: str | None = None
    note: str | None = None

    @property
    def dev(self) -> float | None:
        """Best development score, times 100; None where there is none."""
        score = (self.result or {}).get("best_score")
        return None if score is None else 100 * float(score)

    @property
    def scores(self) -> dict[str, float] | None:
        """What the suite says of the student; None without a suite and until it is evaluated."""
        return None if self.measured is None else self.measured.scores


@dataclass(frozen=True)
class SweepProgress:
    """Where a sweep stands.

    Attributes:
        number: the run it is at, from 1.
        total: runs in all.
        name: that run's name.
        train: where that run's training stands; None while its student is evaluated.
        left: seconds until the last run is trained; None where nothing can be said yet.
    """

    number: int
    total: int
    name: str
    train: TrainProgress | None
    left: float | None


@dataclass(frozen=True)
class SweepResult:
    """How a sweep ended.

    Attributes:
        outcomes: its runs.
        rows: one row a setting, the best by development score first.
        teachers: what is known of the teachers that the students were evaluated beside.
        worked_on: runs that were trained, gone on with, evaluated or timed; the others were finished before.
        notes: why something is not known that was asked for.
    """

    outcomes: tuple[Outcome, ...]
    rows: tuple[Row, ...]
    teachers: tuple[Measured, ...]
    worked_on: int
    notes: tuple[str, ...] = ()

    @property
    def failed(self) -> list[Outcome]:
        """The runs that failed."""
        return [outcome for outcome in self.outcomes if outcome.status == "failed"]


OnSweepProgress = Callable[[SweepProgress], None]


def run_sweep(
    spec: SweepSpec,
    out: str | Path,
    *,
    suite: SuiteChoice | None = None,
    time_on: Path | None = None,
    on_progress: OnSweepProgress | None = None,
    on_outcome: Callable[[Outcome], None] | None = None,
    on_plan: Callable[[int, int], None] | None = None,
    on_compare: Progress = silent,
) -> SweepResult:
    """Train every run of a sweep that is not finished, and keep the tables in ``out`` up to date.

    Args:
        spec: what is varied.
        out: the sweep's folder; ``runs/`` in it receives a folder per run.
        suite: what to evaluate every finished student with and, once for all of them, their teachers.
        time_on: the folder of STS-B test, on whose sentences finished students and teachers are timed when
            all is trained; None: nothing is timed.
        on_progress: called after every step.
        on_outcome: called with every run once it is done, those done before too.
        on_plan: called with runs looked at and runs in all, before the first is trained.
        on_compare: called with (what is done, sentences done, sentences in all) when all is trained.

    Raises:
        DataError: if ``time_on`` has no sentences to time models on.
        ConfigError: if a run cannot be run as it is (nothing is trained then), another process is at it, or a
            launcher has started several processes.
    """
    refuse_launcher("a sweep")
    out = Path(out).expanduser()
    if time_on is not None:
        # What reads the sentences says what is wrong with them, before hours of training.
        _ = SuiteChoice(SPEED_SUITE, time_on).digest
    runs = plan_runs(spec, out, on_plan)
    with locked(out):
        outcomes = [look(run, suite) for run in runs]
        worked_on = _train_all(outcomes, spec, out, suite, on_progress, on_outcome, choose_from=None)
        first = list(outcomes)
        if spec.more_seeds:
            chosen = chosen_settings(outcomes, spec)
            known = {outcome.run.name for outcome in outcomes}
            more = plan_runs(with_seeds(spec, chosen), out, keys=spec.keys) if chosen else []
            outcomes += [look(run, suite) for run in more if run.name not in known]
            worked_on |= _train_all(outcomes, spec, out, suite, on_progress, on_outcome, choose_from=first)
        notes = _compare(outcomes, suite, time_on, on_compare, worked_on)
        write_tables(out, outcomes, spec, first)
    finished = [outcome.run.folder for outcome in outcomes if outcome.status == "finished"]
    return SweepResult(
        tuple(outcomes),
        tuple(leaderboard(outcomes, spec, first)),
        tuple(measure_teachers(finished, suite)),
        len(worked_on),
        tuple(notes),
    )


def look(run: PlannedRun, suite: SuiteChoice | None = None) -> Outcome:
    """Return how ``run`` stands, from what lies in its folder."""
    record = read_record(run.folder)
    if record is None:
        return Outcome(run, "open")
    if record.result is None:
        there = (run.folder / CHECKPOINT).is_file() and (run.folder / CONFIG).is_file()
        return Outcome(run, "interrupted" if there else "open")
    return Outcome(run, "finished", record.result.model_dump(), measure_student(run.folder, suite))


def _train_all(
    outcomes: list[Outcome],
    spec: SweepSpec,
    out: Path,
    suite: SuiteChoice | None,
    on_progress: OnSweepProgress | None,
    on_outcome: Callable[[Outcome], None] | None,
    *,
    choose_from: Sequence[Outcome] | None,
) -> set[str]:
    """Bring ``outcomes`` up to date in place, one by one; return the names of those that were not."""
    worked_on = set()
    clock = _Clock(sum(o.run.work for o in outcomes if o.result is None))
    for number, before in enumerate(outcomes):
        if before.status == "failed" or (choose_from is not None and number < len(choose_from)):
            continue

        report = _reporter(number + 1, len(outcomes), before.run, clock, on_progress)
        outcomes[number] = after = _finish(before, suite, report)
        if after is not before:
            worked_on.add(after.run.name)
        if before.result is None:
            clock.done(before.run)
        if on_outcome is not None:
            on_outcome(after)
        write_tables(out, outcomes, spec, choose_from or outcomes)
    write_tables(out, outcomes, spec, choose_from or outcomes)
    return worked_on


def _compare(
    outcomes: list[Outcome],
    suite: SuiteChoice | None,
    time_on: Path | None,
    progress: Progress,
    worked_on: set[str],
) -> list[str]:
    """Put what is finished beside its teachers, in place; return why something is not known.

    Args:
        outcomes: the runs.
        suite: the suite of their scores.
        time_on: the folder whose sentences models are timed on.
        progress: called while models encode.
        worked_on: takes the names of the runs of which more is known now.
    """
    finished = [outcome for outcome in outcomes if outcome.status == "finished"]
    notes = []
    if suite is not None:
        notes += evaluate_teachers([outcome.run for outcome in finished], suite, progress)
    if time_on is not None:
        # What a student is made of does not depend on the seed.
        once = {outcome.run.setting: outcome.run for outcome in reversed(finished)}
        notes += time_models(list(once.values())[::-1], time_on, progress)
    for number, outcome in enumerate(outcomes):
        if outcome.status != "finished":
            continue
        now = measure_student(outcome.run.folder, suite)
        # Scores that could not be kept are known all the same.
        now = replace(now, scores=now.scores or outcome.scores)
        if now != outcome.measured:
            outcomes[number] = replace(outcome, measured=now)
            worked_on.add(outcome.run.name)
    _free_memory()
    return notes


def _reporter(
    number: int, total: int, run: PlannedRun, clock: _Clock, on_progress: OnSweepProgress | None
) -> Callable[[TrainProgress | None], None]:
    def report(progress: TrainProgress | None) -> None:
        if on_progress is not None:
            left = clock.left(run, progress)
            on_progress(SweepProgress(number, total, run.name, progress, left))

    return report


def _finish(
    outcome: Outcome, suite: SuiteChoice | None, report: Callable[[TrainProgress | None], None]
) -> Outcome:
    run = outcome.run
    try:
        if outcome.result is None:
            note = _train(run, resumed=outcome.status == "interrupted", report=report)
            outcome = replace(look(run, suite), note=note)
        if suite is not None and outcome.scores is None:
            report(None)
            scores = evaluate_run(run, suite)
            outcome = replace(outcome, measured=replace(measure_student(run.folder, suite), scores=scores))
    except _OF_ONE_RUN as error:
        return replace(outcome, status="failed", error=" ".join(str(error).split()) or type(error).__name__)
    finally:
        _free_memory()
    return outcome


def _train(run: PlannedRun, *, resumed: bool, report: Callable[[TrainProgress | None], None]) -> str | None:
    """Train ``run``, or go on with it; return what is worth knowing about it."""
    from distill.training.run import resume, run_config

    if not resumed:
        run_config(run.config, report, recipe=run.recipe)
        return None
    try:
        resume(run.folder, cache=run.config.cache, on_progress=report)
    except CheckpointError as error:
        # The folder's name says that it is this very run: nothing of anybody else's is replaced.
        anew = run.config.model_copy(update={"overwrite": True})
        run_config(anew, report, recipe=run.recipe)
        return f"trained anew, as it could not be gone on with: {' '.join(str(error).split())}"
    return None


def _free_memory() -> None:
    """Give back what the run before held on a GPU."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        with suppress(RuntimeError):
            torch.cuda.empty_cache()


class _Clock:
    """Says how long a sweep still takes, from what its runs have taken in this process."""

    def __init__(self, work: int) -> None:
        self._left, self._done, self._started = float(work), 0.0, time.perf_counter()

    def left(self, run: PlannedRun, progress: TrainProgress | None) -> float | None:
        """Return seconds until all is trained, while ``run`` is being trained."""
        share = progress.step / max(progress.total, 1) if progress and progress.phase == "train" else 0.0
        done = self._done + run.work * share
        if done <= 0:
            return None
        return (time.perf_counter() - self._started) / done * (self._left - run.work * share)

    def done(self, run: PlannedRun) -> None:
        """Note that ``run`` is over."""
        self._left, self._done = self._left - run.work, self._done + run.work
