"""Sweeps: many runs on one cache, ranked by their development score.

A run's folder is named by a digest of everything that decides its result. The same sweep
again skips finished runs, resumes interrupted ones and tries failed ones again; a sweep may grow.
"""

from __future__ import annotations

import csv
import gc
import io
import itertools
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from distill.config.models import RunConfig
from distill.config.sources import make_config
from distill.config.sweep import SEED, Sweep
from distill.config.tree import flat
from distill.device import cpu_threads, resolve_device
from distill.digests import model_digest
from distill.errors import ConfigError, DistillError
from distill.evaluation.result import Figure
from distill.evaluation.runner import evaluate
from distill.evaluation.task import get_suite, require_data
from distill.layout import BEST, CHECKPOINT, file_name
from distill.losses.registry import get_loss
from distill.record import RunRecord, digest_of, read_record
from distill.report.rows import Score
from distill.training.distillation import open_data, run_setting
from distill.training.distributed import refuse_launcher
from distill.training.folder import locked
from distill.training.preparation import prepare_student
from distill.training.remote import open_cache, refuse_remote
from distill.training.selection import read_dev
from distill.training.tracking import TrainProgress
from distill.training.train import complete
from embedcache.errors import EmbedCacheError
from embedcache.fsio import canonical_json, write_bytes
from embedcache.notebook import data_frame, html_table

if TYPE_CHECKING:
    import pandas as pd

RUNS, LEADERBOARD, RUNS_TABLE = "runs", "leaderboard.csv", "runs.csv"

_DIGEST_LETTERS, _LONGEST_NAME = 10, 90
# Errors of one run that leave the others alone: running out of memory and damaged models among them.
_OF_ONE_RUN = (DistillError, EmbedCacheError, RuntimeError, OSError, ValueError)


@dataclass
class SweepRun:
    """A run of a sweep and its state.

    Attributes:
        folder: its folder; the name ends with a digest of everything that decides its result.
        config: its resolved configuration.
        given: dotted key -> value as its block gives it.
        varied: dotted key -> value as it is shown, of every key that the sweep varies.
        setting: digest of everything that decides its result but the seed.
        steps: its steps.
        chosen: True if ``best_of`` chooses its setting; also True without ``best_of``.
        record: its record; None until it begins.
        scores: ``dev``, the development score times 100; where it was evaluated, also ``suite``, the suite's
            headline figure, ``retention``, that in per cent of the teacher's, and each set's figure.
        trained: True if this sweep trained or resumed it; else it was finished before.
        error: reason of its failure.
    """

    folder: Path
    config: RunConfig
    given: Mapping[str, Any]
    varied: Mapping[str, str]
    setting: str
    steps: int
    chosen: bool = True
    record: RunRecord | None = None
    scores: dict[str, float] = field(default_factory=dict)
    trained: bool = False
    error: str | None = None

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.folder.name

    @property
    def status(self) -> str:
        """``finished``, ``interrupted`` (there is a checkpoint), ``open`` or ``failed``."""
        if self.error is not None:
            return "failed"
        if self.record is not None and self.record.is_finished:
            return "finished"
        return "interrupted" if (self.folder / CHECKPOINT).is_file() else "open"

    def look(self) -> None:
        """Read its record."""
        self.record = read_record(self.folder)
        if self.record and self.record.result and self.record.result.best_score is not None:
            self.scores["dev"] = 100 * self.record.result.best_score


OnProgress = Callable[[SweepRun, TrainProgress | None], None]
"""Called with a run and the progress of its training; None while its student is evaluated."""


def plan_runs(
    sweep: Sweep,
    out: Path,
    wanted: Iterable[Mapping[str, Any]] | None = None,
    on_plan: Callable[[int], None] = lambda number: None,
) -> list[SweepRun]:
    """Return the runs of a sweep, each once; those that cannot be run are refused before any of them starts.

    Args:
        sweep: the sweep.
        out: its folder.
        wanted: dotted key -> value of each run; default: all combinations.
        on_plan: called with the number of the run that is checked, from 1.

    Raises:
        ConfigError: naming every problem.
    """
    planned: dict[Path, SweepRun] = {}
    tried: set[bytes] = set()
    problems: dict[str, None] = {}
    for number, given in enumerate(sweep.combinations() if wanted is None else wanted, start=1):
        on_plan(number)
        try:
            run = _plan(sweep, given, out, tried)
            planned.setdefault(run.folder, run)
        except (DistillError, EmbedCacheError, OSError) as error:
            problems[str(error)] = None
    if problems:
        raise ConfigError(f"the sweep cannot be run: {'; '.join(problems)}")
    return list(planned.values())


def _plan(sweep: Sweep, given: Mapping[str, Any], out: Path, tried: set[bytes]) -> SweepRun:
    asked = make_config(RunConfig, sweep.settings(given))
    refuse_remote(asked.cache, "a sweep")
    with open_cache(asked) as opened:
        dataset, config = open_data(opened, asked)
        # A student's folder counts by its content, wherever it lies.
        spec = model_digest(config.student.spec) or config.student.spec
        student = config.student.model_copy(update={"spec": spec})
        decisive = run_setting(dataset, config.model_copy(update={"student": student}))
        digest = digest_of([decisive, config.seed])[:_DIGEST_LETTERS]
        values = dict(flat(config.model_dump(mode="json")))
        # "-" is a setting that the loss does not have, "none" one that is null.
        varied = {
            key: _spelled(values.get(key)) if key in values or key in given else "-" for key in sweep.keys
        }
        known = next((out / RUNS).glob(f"*-{digest}"), None)
        folder = known or out / RUNS / f"{_readable(varied, config)}-{digest}"
        steps = config.training.count_steps(len(dataset))
        config = config.model_copy(update={"out": str(folder), "overwrite": False})
        run = SweepRun(folder, config, given, varied, decisive, steps)
        run.look()
        if run.status != "finished":
            resolve_device(config.training.device)
            # A student is built on trial once for all runs that differ in loss, optimizer or seed alone.
            facts = config.model_dump(mode="json", exclude={"loss", "optimizer", "training", "seed", "out"})
            trial = canonical_json([facts, config.training.views, get_loss(config.loss.name).inside])
            if trial not in tried:
                tried.add(trial)
                dev = read_dev(config.evaluation, labelled=get_loss(config.loss.name).inside == "classes")
                prepare_student(opened.cache, config, dataset, dev, on_trial=True)
    return run


def _spelled(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(_spelled, value))
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _readable(varied: Mapping[str, str], config: RunConfig) -> str:
    """Return student, loss, every other varied key with its value, and the seed."""
    *parents, student = config.student.spec.rstrip("/").split("/")
    words = [parents[-1] if student == BEST and parents else student, config.loss.name]
    others = {key: value for key, value in varied.items() if key not in ("student.spec", "loss.name")}
    words += [f"{key.rpartition('.')[2]}{value}" for key, value in others.items() if value != "-"]
    return file_name("-".join([*words, f"seed{config.seed}"]))[:_LONGEST_NAME].rstrip(".")


class SweepRuns(list[SweepRun]):
    """Runs of a sweep, which show their leaderboard."""

    def __repr__(self) -> str:
        """Return the number of runs and the best setting."""
        failed = sum(run.error is not None for run in self)
        return f"SweepRuns({len(self)} runs, {failed} failed; best: {next(iter(leaderboard(self)), None)})"

    def _repr_html_(self) -> str:
        """Return the leaderboard as a table, as a notebook shows it."""
        return html_table(leaderboard(self), f"{len(self)} runs")

    def to_frame(self) -> pd.DataFrame:
        """Return ``leaderboard`` as a pandas data frame, a row a setting.

        Raises:
            MissingExtraError: if pandas is not installed.
        """
        return data_frame(leaderboard(self))


def run_sweep(
    sweep: Sweep,
    out: Path,
    *,
    suite: str | None = None,
    data: Path | None = None,
    on_plan: Callable[[int], None] = lambda number: None,
    on_progress: OnProgress = lambda run, train: None,
    on_run: Callable[[SweepRun, int, int], None] = lambda run, number, total: None,
) -> SweepRuns:
    """Train every run of a sweep that is not finished; both tables in ``out`` are written after every run.

    Args:
        sweep: the sweep.
        out: its folder, which receives ``runs/``, ``leaderboard.csv`` and ``runs.csv``.
        suite: suite to evaluate each finished student by, beside its teacher.
        data: data of the suite.
        on_plan: called with the number of the run that is checked.
        on_progress: called after every step.
        on_run: called with a run that is done, its number, from 1, and the number of runs.

    Returns:
        the runs; the failed ones have an error.

    Raises:
        ConfigError: if a run cannot be run (none is trained then), another process is at this sweep, or a
            launcher has started several processes.
        DataError: if there is no such suite, or it needs other data.
    """
    refuse_launcher("a sweep")
    if suite is not None:
        require_data(get_suite(suite), data)
    runs = SweepRuns(plan_runs(sweep, out, on_plan=on_plan))

    def finish(first: int) -> None:
        for number, run in enumerate(runs[first:], start=first + 1):
            _finish(run, sweep.recipe, suite, data, partial(on_progress, run))
            if not first:
                choose(sweep, runs)
            write_tables(out, runs)
            on_run(run, number, len(runs))

    with locked(out):
        finish(0)
        chosen = {run.setting: run.given for run in runs if run.chosen}
        wanted = [{**given, SEED: seed} for given in chosen.values() for seed in sweep.more_seeds]
        known, count = {run.folder for run in runs}, len(runs)
        runs += [run for run in plan_runs(sweep, out, wanted) if run.folder not in known]
        finish(count)
    return runs


def _finish(
    run: SweepRun,
    recipe: str | None,
    suite: str | None,
    data: Path | None,
    report: Callable[[TrainProgress | None], None],
) -> None:
    """Train a run unless it is finished, and evaluate it; its failure is kept in it."""
    try:
        if run.status != "finished":
            complete(run.config, report, recipe=recipe)
            run.trained = True
            run.look()
        if suite is not None:
            report(None)
            run.scores |= _evaluate(run, suite, data)
    except _OF_ONE_RUN as error:
        run.error = " ".join(str(error).split()) or type(error).__name__
    # The next run needs the memory that this one held on a GPU.
    gc.collect()
    torch.cuda.empty_cache()


def _evaluate(run: SweepRun, suite: str, data: Path | None) -> dict[str, float]:
    """Return the figures of a student by a suite, and its share of its teacher's average in per cent."""
    with cpu_threads(run.config.training.threads):
        device = run.config.training.device
        found = evaluate(run.folder, suite=suite, data=data, device=device, keep=True, progress=False)
    facts, result = found.models[-1]
    figures = {"suite": result.main, "retention": found.retention(facts.name), **result.figures}
    return {name: figure.value for name, figure in figures.items() if figure is not None}


def choose(sweep: Sweep, runs: Sequence[SweepRun]) -> None:
    """Choose the values of ``best_of`` with the best mean development score, for all values of other keys."""
    if not sweep.best_of:
        return
    best: dict[tuple[str, ...], tuple[float, str]] = {}
    for setting, group in _by_setting(runs).items():
        others = tuple(value for key, value in group[0].varied.items() if key not in sweep.best_of)
        if scores := [run.scores["dev"] for run in group if "dev" in run.scores]:
            mine = (statistics.fmean(scores), setting)
            best[others] = max(mine, best.get(others, mine))
    chosen = {setting for _, setting in best.values()}
    for run in runs:
        run.chosen = run.setting in chosen


def leaderboard(runs: Sequence[SweepRun]) -> list[dict[str, Any]]:
    """Return one line a setting, the best by the mean development score first.

    A line has the varied keys, ``runs`` (finished) of ``planned``, mean and sample standard deviation (n - 1;
    None of one run) of each score, the student's ``parameters``, and whether ``best_of`` has ``chosen`` it.
    """
    lines = []
    for group in _by_setting(runs).values():
        finished = [run for run in group if run.status == "finished"]
        line: dict[str, Any] = {**group[0].varied, "runs": len(finished), "planned": len(group)}
        for name in ("dev", "suite", "retention"):
            if score := Score.over(Figure(run.scores[name], name) for run in group if name in run.scores):
                line |= {name: score.mean, f"{name}_std": score.std}
        line["parameters"] = next((run.record.parameters for run in finished if run.record), None)
        lines.append({**line, "chosen": group[0].chosen})
    return sorted(lines, key=lambda line: -line.get("dev", float("-inf")))


def _by_setting(runs: Sequence[SweepRun]) -> dict[str, list[SweepRun]]:
    groups: dict[str, list[SweepRun]] = {}
    for run in runs:
        groups.setdefault(run.setting, []).append(run)
    return groups


def write_tables(out: Path, runs: Sequence[SweepRun]) -> None:
    """Write ``leaderboard.csv`` (a line a setting) and ``runs.csv`` (a line a run)."""
    lines = []
    for run in runs:
        result = run.record.result if run.record else None
        facts = {} if result is None else result.model_dump(exclude={"best_score", "selected_by"})
        size = run.record.parameters if run.record else None
        head = {"run": run.name, "status": run.status, **run.varied, "seed": run.config.seed}
        lines.append({**head, "parameters": size, **run.scores, **facts, "error": run.error})
    for name, table in ((LEADERBOARD, leaderboard(runs)), (RUNS_TABLE, lines)):
        text = io.StringIO()
        writer = csv.DictWriter(text, list(dict.fromkeys(itertools.chain(*table))), lineterminator="\n")
        writer.writeheader()
        for line in table:
            cells = {key: f"{one:.4f}" if isinstance(one, float) else one for key, one in line.items()}
            writer.writerow(cells)
        write_bytes(out / name, text.getvalue().encode())
