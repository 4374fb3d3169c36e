"""The runs of a sweep, each known before any of them starts: settings, steps, and the folder it goes to."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distill.config.models import RunConfig
from distill.config.sources import find_problems
from distill.data.dataset import DistillDataset
from distill.digests import model_digest
from distill.errors import ConfigError, DistillError
from distill.layout import BEST, file_name
from distill.losses.registry import get_loss
from distill.record import read_record
from distill.sweep.spec import SEED, SweepSpec
from distill.training.device import resolve_device
from distill.training.place import open_place, refuse_remote
from distill.training.setup import open_training_data, prepare_student
from embedcache.cache import Cache
from embedcache.errors import EmbedCacheError
from embedcache.fsio import canonical_json, sha256_file

RUNS = "runs"
"""Folder of the runs inside that of the sweep."""

_DIGEST_LETTERS = 10
_LONGEST_NAME = 90
# What a run computes does not depend on these.
_PLACES = ("cache", "out", "overwrite", "teacher_model", "tracking")
_MACHINE = ("device", "threads", "checkpoint_every")


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep.

    Attributes:
        name: its folder's name: what is special about it, and a digest of all that it depends on.
        folder: where it goes.
        config: its configuration, everything filled in.
        varied: dotted key -> value, of every key that the sweep varies somewhere; values are those of
            ``config``, but for :data:`LEARNED`.
        given: dotted key -> value, as its block gave them.
        steps: steps of the whole run.
        work: texts to be encoded in all of them, which is what its time depends on.
        recipe: name of the recipe it was made from; None without one.
    """

    name: str
    folder: Path
    config: RunConfig
    varied: Mapping[str, Any]
    given: Mapping[str, Any]
    steps: int
    work: int
    recipe: str | None = None

    @property
    def setting(self) -> tuple[Any, ...]:
        """What it has in common with its repetitions by another seed."""
        return tuple(_hashable(value) for key, value in self.varied.items() if key != SEED)


def plan_runs(
    spec: SweepSpec,
    out: Path,
    on_progress: Callable[[int, int], None] | None = None,
    keys: Sequence[str] | None = None,
) -> list[PlannedRun]:
    """Return the runs of a sweep, each once.

    Args:
        spec: what is varied.
        out: the sweep's folder.
        on_progress: called with runs looked at and runs in all.
        keys: the keys that are varied; default: those that ``spec`` names.

    Raises:
        ConfigError: naming every run that cannot be run, and why.
    """
    wanted = list(spec.combinations())
    planned: dict[str, PlannedRun] = {}
    looked = _Looked()
    problems: dict[str, int] = {}
    for number, varied in enumerate(wanted):
        try:
            run = _plan(spec, varied, out, keys or spec.keys, looked)
            planned.setdefault(run.name.rpartition("-")[2], run)
        except (DistillError, EmbedCacheError) as error:
            problems[str(error)] = problems.get(str(error), 0) + 1
        if on_progress is not None:
            on_progress(number + 1, len(wanted))
    if problems:
        told = "; ".join(f"{problem} ({count} of {len(wanted)} runs)" for problem, count in problems.items())
        raise ConfigError(f"the sweep cannot be run: {told}")
    return list(planned.values())


LEARNED = "learned"
"""Stands for the value of a temperature that is learned: None would read as that of a loss without one."""


def shown_value(config: RunConfig, path: str) -> Any:
    """Return the value that the dotted ``path`` leads to, or :data:`LEARNED`."""
    value = value_at(config, path)
    learned = value is None and path == "loss.tau" and "tau" in get_loss(config.loss.name).defaults
    return LEARNED if learned else value


def value_at(config: RunConfig, path: str) -> Any:
    """Return the value that the dotted ``path`` leads to."""
    group, _, name = path.partition(".")
    if group == "loss" and name != "name":
        return config.loss.settings.get(name)
    value: Any = config
    for part in path.split("."):
        value = getattr(value, part)
    return value


def spelled(value: object) -> str:
    """Return a value of a configuration as it stands in names and tables."""
    if value is None:
        return "-"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(spelled, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


class _Looked:
    """What has been looked at for one run and need not be looked at for the next."""

    def __init__(self) -> None:
        self._digests: dict[str, str | None] = {}
        self._students: dict[bytes, Exception | None] = {}

    def digest(self, spec: str) -> str | None:
        """Return the digest of a student's folder; None of a hub id or of layers of the teacher."""
        if spec not in self._digests:
            self._digests[spec] = model_digest(spec)
        return self._digests[spec]

    def check_student(self, cache: Cache, config: RunConfig, dataset: DistillDataset) -> None:
        """Raise what building this student raises; once for all runs that differ in loss or seed alone."""
        facts = config.model_dump(
            mode="json",
            include={"corpus", "teacher", "teacher_model", "target_dim", "student", "evaluation", "tracking"},
        )
        known = canonical_json({**facts, "held_out": len(dataset.held_out)})
        if known not in self._students:
            self._students[known] = None
            try:
                prepare_student(cache, config, dataset, on_trial=True)
            except (DistillError, EmbedCacheError) as error:
                self._students[known] = error
        problem = self._students[known]
        if problem is not None:
            raise problem


def _plan(
    spec: SweepSpec, varied: Mapping[str, Any], out: Path, keys: Sequence[str], looked: _Looked
) -> PlannedRun:
    values = spec.settings(varied)
    if problems := find_problems(RunConfig, values):
        raise ConfigError.joined(problems)
    asked = RunConfig.model_validate(values)
    refuse_remote(asked.cache, "a sweep")
    with open_place(asked) as place:
        cache = place.cache
        dataset, config = open_training_data(place, asked)
    digest = _digest(config, dataset, looked.digest(config.student.spec))
    known = next((out / RUNS).glob(f"*-{digest}"), None)
    name = known.name if known else f"{_readable(keys, config)}-{digest}"
    folder = out / RUNS / name
    # What is finished needs neither its student nor the device any more.
    record = read_record(folder)
    if record is None or not record.is_finished:
        resolve_device(config.training.device)
        looked.check_student(cache, config, dataset)
    training, views = config.training, get_loss(config.loss.name).views
    steps = training.count_steps(len(dataset))
    return PlannedRun(
        name,
        folder,
        config.model_copy(update={"out": str(folder), "overwrite": False}),
        {key: shown_value(config, key) for key in keys},
        dict(varied),
        steps,
        min((training.epochs or 1) * len(dataset), steps * (training.batch_size or 1)) * views,
        spec.recipe_name,
    )


def _digest(config: RunConfig, dataset: DistillDataset, student: str | None) -> str:
    """Return a digest of all that decides how a run ends, wherever cache, student and development file lie.

    Args:
        config: the run's configuration, everything filled in.
        dataset: what it trains on.
        student: the digest of the student's folder; None where its spec says all.
    """
    facts = config.model_dump(mode="json", exclude=set(_PLACES))
    if student is not None:
        facts["student"]["spec"] = student
    facts["training"] = {key: value for key, value in facts["training"].items() if key not in _MACHINE}
    if config.training.max_steps is None:
        # Runs that were named before there was this key, or one of those below, keep their names.
        del facts["training"]["max_steps"]
    for key in ("text", "text2", "label"):
        if facts["evaluation"][key] is None:
            del facts["evaluation"][key]
    # It is for remotes, which a sweep refuses.
    del facts["stream"]
    data = config.evaluation.data
    if data is not None:
        try:
            facts["evaluation"]["data"] = sha256_file(Path(data))
        except OSError as error:
            raise ConfigError(f"evaluation.data: {data} cannot be read ({error.strerror})") from error
    facts["corpus"] = dataset.corpus.info.digest
    facts["views"] = [
        dataset.corpus.view(view).info.digest
        for view in config.training.views or []
        if view in dataset.corpus.view_names()
    ]
    facts["teacher"] = [contract.id for contract in dataset.targets.contracts]
    return hashlib.sha256(canonical_json(facts)).hexdigest()[:_DIGEST_LETTERS]


def _readable(keys: Sequence[str], config: RunConfig) -> str:
    """Return student and loss, and every other varied key with its value."""
    *parents, student = config.student.spec.rstrip("/").split("/")
    words = [parents[-1] if student == BEST and parents else student, config.loss.name]
    for key in keys:
        value = shown_value(config, key)
        if key not in ("student.spec", "loss.name") and value is not None:
            words.append(f"{key.rpartition('.')[2]}{spelled(value)}")
    name = "-".join(words)
    return file_name(name)[:_LONGEST_NAME].rstrip(".")


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, (list, tuple)) else value
