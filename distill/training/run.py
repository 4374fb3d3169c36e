"""One run, from a configuration to a student on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distill.card import write_card
from distill.config.models import RunConfig
from distill.config.sources import keyword_options, load_config
from distill.data.loader import CheckRows
from distill.layout import BEST, CONFIG, default_folder
from distill.record import RunRecord, TrainResult
from distill.training.admission import admit_first_window
from distill.training.describe import new_record, refuse_other_data
from distill.training.folder import (
    claim_folder,
    finish_folder,
    read_interrupted,
    start_folder,
)
from distill.training.place import Place, open_place
from distill.training.setup import DistillTraining, machine_flags, open_training_data, prepare
from distill.training.tracking import OnProgress, best_scores


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        folder: the run's folder.
        config: the configuration with all defaults filled in.
        result: how training ended.
        parameters: parameters of the student as it is saved.
        teachers: the teachers' names.
        corpus: the corpus's name.
        corpus_rows: rows of the corpus.
        rows: rows trained on.
        selected: rows that satisfy ``training.where``; None where there is none.
        resumed: the step it went on from last; 0 where it was never interrupted, or had to start anew.
        notes: sentences that are worth knowing about how the student was made.
        scores: what the best checkpoint was chosen by, and what was found out beside it; empty where there
            was nothing to choose by.
    """

    folder: Path
    config: RunConfig
    result: TrainResult
    parameters: int
    teachers: tuple[str, ...]
    corpus: str
    corpus_rows: int
    rows: int
    selected: int | None
    resumed: int = 0
    notes: tuple[str, ...] = ()
    scores: dict[str, float] = field(default_factory=dict)

    @property
    def best(self) -> Path:
        """The folder of the best student; ``SentenceTransformer(run.best)`` opens it."""
        return self.folder / BEST

    def facts(self) -> dict[str, object]:
        """Return what the run was and how it ended, as a JSON object."""
        return {
            "run": str(self.folder),
            "best": str(self.best),
            "parameters": self.parameters,
            "rows": self.rows,
            "selected": self.selected,
            "teachers": list(self.teachers),
            "resumed": self.resumed,
            "notes": list(self.notes),
            "scores": self.scores,
            **self.result.model_dump(),
        }


def run_config(config: RunConfig, on_progress: OnProgress | None = None, *, recipe: str | None = None) -> Run:
    """Train the student that ``config`` describes.

    The run's folder receives ``config.yaml`` (everything filled in), ``run.json`` (teachers, corpus, result),
    ``metrics.jsonl``, ``held_out.txt``, ``targets.safetensors`` where targets are combined or projected, and
    ``best/``, the student as a sentence-transformers folder; while it is trained, also a checkpoint.

    Args:
        config: the configuration.
        on_progress: called after every step.
        recipe: name of the recipe that the configuration was made from, to be written down; what the run
            does is in the configuration alone.

    Raises:
        ConfigError: if the configuration cannot be run as it is.
        DataError: if vectors are missing or the corpus is too small.
        StudentError: if the student cannot be built or does not fit the teacher.
        TrainingError: if the loss becomes NaN or infinite.
        RemoteError: if a remote's vectors are not the teacher's.
        EmbedCacheError: if the cache cannot be used.
    """
    with open_place(config, on_progress) as place:
        return _run(place, config, on_progress, recipe)


def _run(place: Place, config: RunConfig, on_progress: OnProgress | None, recipe: str | None) -> Run:
    cache, identity = place.cache, config.identity_digest()
    dataset, config = open_training_data(place, config, on_progress)
    folder, config = claim_folder(config, lambda: _default_out(config, dataset.corpus.name))
    admit_later = admit_first_window(dataset, config)
    training = prepare(cache, config, dataset, folder, on_progress)
    record = new_record(cache, dataset, config, training.parameters, recipe, identity, training.notes)
    # From here on files are written; everything that can be refused has been.
    with training.exclusive():
        if training.is_first:
            start_folder(folder, config, dataset, record)
        return _train(training, record, admit_later, on_progress)


def resume(
    folder: str | Path,
    *,
    cache: str | None = None,
    device: str | None = None,
    threads: int | None = None,
    on_progress: OnProgress | None = None,
) -> Run:
    """Go on with a run that was interrupted, from its last checkpoint; without one, from the start.

    With the device and the number of threads it began with, the weights are those of a run that was never
    interrupted, bit for bit.

    Args:
        folder: the run's folder.
        cache: where the cache is now; default: where it was.
        device, threads: of the machine that it goes on upon; default: as before.
        on_progress: called after every step.

    Raises:
        CheckpointError: if there is no run to go on with, or what it is made of has changed.
        DistillError, EmbedCacheError: as :func:`run_config`.
    """
    folder = Path(folder).expanduser()
    record = read_interrupted(folder, "run")
    options = {**machine_flags(device, threads), "cache": cache, "out": str(folder)}
    config = load_config(RunConfig, folder / CONFIG, options=options)
    with open_place(config, on_progress, digest=record.corpus.digest) as place:
        opened = place.cache
        dataset, config = open_training_data(place, config, on_progress)
        admit_later = admit_first_window(dataset, config)
        training = prepare(opened, config, dataset, folder, on_progress)
        now = new_record(
            opened, dataset, config, training.parameters, record.recipe, record.identity, training.notes
        )
        refuse_other_data(record, now)
        with training.exclusive():
            training.go_on(now, lambda: start_folder(folder, config, dataset, now), on_progress)
            return _train(training, now, admit_later, on_progress)


def run(
    cache: str | Path,
    student: str | Path = "layers:3",
    loss: str | Mapping[str, Any] = "mse",
    teacher: str | Sequence[str] | None = None,
    corpus: str | None = None,
    out: str | Path | None = None,
    *,
    on_progress: OnProgress | None = None,
    **settings: Any,
) -> Run:
    """Train a student on the vectors of a cache.

    Args:
        cache: folder of the cache, or name or URL of a remote.
        student: short name, hub id, folder, or form such as ``layers:3``.
        loss: name of a loss, or its name and settings: ``{"name": "simtde", "alpha": 0.2}``.
        teacher: teacher in the cache, or several; default: the only one.
        corpus: corpus in the cache; default: the only one.
        out: folder of the run; default: ``runs/CORPUS-STUDENT-LOSS``.
        on_progress: called after every step.
        settings: other settings of :class:`RunConfig`, by short name (``epochs=4``, ``lr=3e-4``) or group
            (``optimizer={"eps": 1e-6}``).

    Raises:
        ConfigError: naming every key that is unknown or has a value that cannot be used; else as
            :func:`run_config`.
    """
    named: dict[str, object] = {
        "cache": cache,
        "student": student,
        "loss": loss,
        "corpus": corpus,
        "out": out,
    }
    named["teacher"] = teacher if teacher is None or isinstance(teacher, str) else list(teacher)
    options = keyword_options(RunConfig, {**named, **settings})
    return run_config(load_config(RunConfig, options=options), on_progress)


def _train(
    training: DistillTraining,
    record: RunRecord,
    admit_later: CheckRows | None,
    on_progress: OnProgress | None,
) -> Run:
    resumed = training.trainer.step
    result = training.train(on_progress, admit_later)
    dataset = training.dataset
    run = Run(
        training.folder,
        training.config,
        result,
        training.parameters,
        teachers=dataset.targets.names,
        corpus=dataset.corpus.name,
        corpus_rows=len(dataset.corpus),
        rows=len(dataset),
        selected=dataset.selected,
        resumed=resumed,
        notes=training.notes,
        scores=best_scores(training.folder, result.best_step) if training.is_first else {},
    )
    if training.is_first:
        record = record.model_copy(update={"scores": run.scores, "result": result})
        write_card(run.best, record, training.config.model_dump(mode="json"), training.dimension)
        finish_folder(training.folder, record)
    return run


def _default_out(config: RunConfig, corpus: str) -> str:
    student = Path(config.student.spec).name if "/" in config.student.spec else config.student.spec
    words = f"{corpus}-{student}-{config.loss.name.rpartition(':')[2]}"
    return default_folder(words)
