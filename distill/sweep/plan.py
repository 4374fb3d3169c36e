"""Runs of a sweep, each known before any of them starts.

A run's folder is named by a digest of all that it depends on, so the same sweep again finds its runs, and a
sweep may grow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distill.config.models import RunConfig
from distill.config.sources import make_config
from distill.digests import model_digest
from distill.errors import ConfigError, DistillError
from distill.layout import BEST, file_name
from distill.losses.registry import get_loss
from distill.record import RunRecord, digest_of, read_record
from distill.sweep.spec import SEED, Sweep
from embedcache.errors import EmbedCacheError
from embedcache.fsio import canonical_json

RUNS = "runs"
_DIGEST_LETTERS, _LONGEST_NAME = 10, 90


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep.

    Attributes:
        folder: its folder; the name ends with a digest of all that the run depends on.
        config: its resolved configuration.
        given: dotted key -> value as its block gave it, without the seed.
        varied: dotted key -> value as it is shown, of every key that the sweep varies.
        setting: digest of all that it depends on but for the seed.
        steps: its steps.
        work: texts encoded in all of them, by which time is estimated.
        recipe: name of its recipe; None without one.
    """

    folder: Path
    config: RunConfig
    given: Mapping[str, Any]
    varied: Mapping[str, str]
    setting: str
    steps: int
    work: int
    recipe: str | None = None

    @property
    def name(self) -> str:
        """Name of its folder."""
        return self.folder.name


def plan_runs(
    sweep: Sweep,
    out: Path,
    on_plan: Callable[[int, int], None] = lambda done, total: None,
    shown: Sequence[str] = (),
) -> list[PlannedRun]:
    """Return the runs of a sweep, each once; those that cannot be run are refused before any of them starts.

    Args:
        sweep: the sweep.
        out: its folder.
        on_plan: called with runs planned and runs in all.
        shown: keys that name runs; default: those that ``sweep`` varies.

    Raises:
        ConfigError: naming every problem, and how many runs have it.
    """
    wanted = list(sweep.combinations())
    planned: dict[Path, PlannedRun] = {}
    checked: dict[bytes, Exception | None] = {}
    problems: dict[str, int] = {}
    for number, varied in enumerate(wanted):
        try:
            run = _plan(sweep, varied, out, shown or sweep.keys, checked)
            planned.setdefault(run.folder, run)
        except (DistillError, EmbedCacheError, OSError) as error:
            problems[str(error)] = problems.get(str(error), 0) + 1
        on_plan(number + 1, len(wanted))
    if problems:
        told = "; ".join(f"{problem} ({count} of {len(wanted)} runs)" for problem, count in problems.items())
        raise ConfigError(f"the sweep cannot be run: {told}")
    return list(planned.values())


def _plan(
    sweep: Sweep,
    given: Mapping[str, Any],
    out: Path,
    shown: Sequence[str],
    checked: dict[bytes, Exception | None],
) -> PlannedRun:
    from distill.device import resolve_device
    from distill.training.distillation import open_data, run_setting
    from distill.training.preparation import prepare_student
    from distill.training.remote import open_cache, refuse_remote

    asked = make_config(RunConfig, sweep.settings(given))
    refuse_remote(asked.cache, "a sweep")
    with open_cache(asked) as place:
        dataset, config = open_data(place, asked)
        # A student's folder counts by its content, wherever it lies.
        spec = model_digest(config.student.spec) or config.student.spec
        student = config.student.model_copy(update={"spec": spec})
        known_by = config.model_copy(update={"student": student})
        setting = run_setting(dataset, known_by)
        digest = digest_of([setting, config.seed])[:_DIGEST_LETTERS]
        known = next((out / RUNS).glob(f"*-{digest}"), None)
        folder = known or out / RUNS / f"{_readable(shown, config)}-{digest}"
        if not is_finished(read_record(folder)):
            resolve_device(config.training.device)
            # A student is built on trial once for all runs that differ in loss, optimizer or seed alone.
            facts = config.model_dump(mode="json", exclude={"loss", "optimizer", "training", "seed", "out"})
            trial = canonical_json([facts, config.training.views, get_loss(config.loss.name).inside])
            if trial not in checked:
                checked[trial] = None
                try:
                    prepare_student(place.cache, config, dataset, on_trial=True)
                except (DistillError, EmbedCacheError) as error:
                    checked[trial] = error
            if (problem := checked[trial]) is not None:
                raise problem
    training = config.training
    steps = training.count_steps(len(dataset))
    rows = min((training.epochs or 1) * len(dataset), steps * (training.batch_size or 1))
    return PlannedRun(
        folder,
        config.model_copy(update={"out": str(folder), "overwrite": False}),
        {key: value for key, value in given.items() if key != SEED},
        {key: shown_value(config, key) for key in shown},
        setting,
        steps,
        rows * get_loss(config.loss.name).views,
        None if sweep.recipe is None else sweep.recipe.name,
    )


def shown_value(config: RunConfig, key: str) -> str:
    """Return a setting as it stands in names and tables; ``-`` where a loss does not take it."""
    if key.startswith("loss.") and key != "loss.name":
        name = key.removeprefix("loss.")
        if name not in get_loss(config.loss.name).defaults:
            return "-"
        value = config.loss.settings.get(name)
        # A temperature without a number is learned.
        return "learned" if value is None and name == "tau" else _spelled(value)
    value = config
    for part in key.split("."):
        value = getattr(value, part)
    return _spelled(value)


def _spelled(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_spelled, value))
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _readable(shown: Sequence[str], config: RunConfig) -> str:
    """Return student, loss, every other varied key with its value, and the seed."""
    *parents, student = config.student.spec.rstrip("/").split("/")
    words = [parents[-1] if student == BEST and parents else student, config.loss.name]
    shown_here = [key for key in shown if key not in ("student.spec", "loss.name")]
    values = {key.rpartition(".")[2]: shown_value(config, key) for key in shown_here}
    words += [f"{name}{value}" for name, value in values.items() if value != "-"]
    return file_name("-".join([*words, f"seed{config.seed}"]))[:_LONGEST_NAME].rstrip(".")


def is_finished(record: RunRecord | None) -> bool:
    """Return whether there is a run, and it is finished."""
    return record is not None and record.result is not None
