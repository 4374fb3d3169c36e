"""Training of a student on teacher vectors, triples, pairs, sentences or labels."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from typing_extensions import Unpack

from distill.card import write_card
from distill.config.finetune import FinetuneConfig
from distill.config.keywords import FinetuneKeywords, RunKeywords
from distill.config.models import RunConfig
from distill.config.signature import with_settings
from distill.config.sources import keyword_options, load_config, naming_settings
from distill.device import cpu_threads, make_accelerator, seeded
from distill.errors import CheckpointError
from distill.layout import BEST, CHECKPOINT, CONFIG
from distill.record import MachineRecord, RunRecord, read_record
from distill.training.checkpoint import Checkpoint
from distill.training.distillation import open_distillation
from distill.training.distributed import is_first_process
from distill.training.finetuning import open_finetuning
from distill.training.folder import (
    advising,
    begin_folder,
    continue_folder,
    finish_folder,
    locked,
    read_interrupted,
    require_free,
    save_student,
)
from distill.training.run import Run
from distill.training.selection import describe_test_name
from distill.training.task import Task
from distill.training.tracking import OnProgress, Tracker, refuse_missing_trackers, tell, train_progress
from distill.training.trainer import Trainer
from embedcache.progress import is_watched

if TYPE_CHECKING:
    from accelerate import Accelerator

_FIXED: dict[str, Any] = {
    **dict.fromkeys(("corpus", "views", "rows", "held_out", "selected", "order"), True),
    **dict.fromkeys(("labels", "parameters", "dev"), True),
    # Teachers and the start may have moved.
    "teachers": {"__all__": {"name", "contract_id", "share"}},
    "start": {"spec", "contract_id", "setting", "seeds"},
}
"""Fields of a record that may not change between an interruption and the resumption."""


def train(
    config: RunConfig | FinetuneConfig, on_progress: OnProgress | None = None, *, recipe: str | None = None
) -> Run:
    """Train the student that ``config`` describes.

    The run's folder receives ``config.yaml`` (everything filled in), ``run.json`` (see
    ``distill.record.RunRecord``), ``metrics.jsonl``, ``held_out.txt``, ``targets.safetensors`` where
    targets are combined or projected, and ``best/``, the student as a sentence-transformers folder; until
    then also a checkpoint.

    Args:
        config: the configuration.
        on_progress: called after every step.
        recipe: name of the recipe that the configuration was made from, for the record.

    Raises:
        ConfigError: if the configuration cannot be run as it is.
        DataError: if vectors are missing, or texts are too few or malformed.
        StudentError: if the student cannot be built or does not fit the teacher.
        TrainingError: if the loss becomes NaN or infinite.
        RemoteError: if a remote's vectors are not the teacher's.
        EmbedCacheError: if the cache or a file cannot be used.
    """
    refuse_missing_trackers(config.tracking.log_with)
    with _open_task(config, on_progress) as task:
        folder = task.folder()
        require_free(folder, overwrite=config.overwrite)
        return _train(task, folder, on_progress, {"identity": config.identity_digest(), "recipe": recipe})


def resume(
    folder: str | os.PathLike[str],
    *,
    cache: str | None = None,
    device: str | None = None,
    threads: int | None = None,
    on_progress: OnProgress | None = None,
    progress: bool | None = None,
) -> Run:
    """Resume an interrupted run from its last checkpoint; without one, from the start.

    With the device and the number of threads it began with, the weights are those of a run that was never
    interrupted, bit for bit.

    Args:
        folder: the run's folder.
        cache: place of the cache, of ``distill run``; default: as before.
        device: device of this machine; default: as before.
        threads: CPU threads; default: as before.
        on_progress: called after every step.
        progress: without ``on_progress``, show a line; default: on a terminal and in a notebook.

    Raises:
        CheckpointError: if there is no run to resume, or its data have changed.
        DistillError, EmbedCacheError: as ``train``.
    """
    folder = Path(folder).expanduser()
    before = read_interrupted(folder)
    options = {"training.device": device, "training.threads": threads, "out": str(folder), "cache": cache}
    model: type[RunConfig | FinetuneConfig] = RunConfig if before.kind == "run" else FinetuneConfig
    config = load_config(model, folder / CONFIG, options=options)
    facts = {"identity": before.identity, "recipe": before.recipe}
    with _watched(on_progress, progress) as watch, _open_task(config, watch, before) as task:
        return _train(task, folder, watch, facts, before)


@with_settings(RunConfig)
def run(
    cache: str | os.PathLike[str],
    student: str | os.PathLike[str] = "layers:3",
    loss: str | Mapping[str, Any] | None = None,
    teacher: str | Sequence[str] | None = None,
    corpus: str | None = None,
    out: str | Path | None = None,
    *,
    on_progress: OnProgress | None = None,
    progress: bool | None = None,
    **settings: Unpack[RunKeywords],
) -> Run:
    """Train a student on the vectors of a cache.

    Args:
        cache: folder of the cache, the opened cache, or name or URL of a remote.
        student: short name, hub id, folder, or form such as ``layers:3``.
        loss: name of a loss, or its name and settings: ``{"name": "simtde", "alpha": 0.2}``; default: what
            did best for the kind of student.
        teacher: teacher in the cache, or several; default: the only one.
        corpus: corpus in the cache; default: the only one.
        out: folder of the run; default: ``runs/CORPUS-STUDENT-LOSS``.
        on_progress: called after every step.
        progress: without ``on_progress``, show a line; default: on a terminal and in a notebook.
        settings: other settings of ``RunConfig``, by short name (``epochs=4``, ``lr=3e-4``) or group
            (``optimizer={"eps": 1e-6}``).

    Raises:
        ConfigError: naming every key that is unknown or has an unusable value; else as ``train``.
    """
    named: dict[str, object] = {
        "cache": cache,
        "student": student,
        "loss": loss,
        "corpus": corpus,
        "out": out,
    }
    named["teacher"] = teacher if teacher is None or isinstance(teacher, str) else list(teacher)
    with naming_settings(RunConfig), _watched(on_progress, progress) as watch:
        options = keyword_options(RunConfig, {**named, **settings})
        return train(load_config(RunConfig, options=options), watch)


@with_settings(FinetuneConfig)
def finetune(
    start: str | os.PathLike[str],
    *,
    triples: str | Path | None = None,
    sentences: str | Path | None = None,
    labels: str | Path | None = None,
    out: str | Path | None = None,
    on_progress: OnProgress | None = None,
    progress: bool | None = None,
    **settings: Unpack[FinetuneKeywords],
) -> Run:
    """Fine-tune a student, or any encoder, on texts; one of the three files is given.

    Args:
        start: a run or its folder (its best student is meant), another folder, a hub id or an alias.
        triples: file of anchors, positives and hard negatives, or of pairs.
        sentences: file of texts, each its own positive under another dropout.
        labels: file of labelled texts or pairs; makes a classifier.
        out: folder of the run; default: ``runs/START-FILE-finetune``.
        on_progress: called after every step.
        progress: without ``on_progress``, show a line; default: on a terminal and in a notebook.
        settings: other settings of ``FinetuneConfig``, as for ``run``.

    Raises:
        ConfigError: naming every key that is unknown or has an unusable value; else as ``train``.
    """
    files = {"triples": triples, "sentences": sentences, "labels": labels}
    with naming_settings(FinetuneConfig), _watched(on_progress, progress) as watch:
        options = keyword_options(FinetuneConfig, {"start": start, "out": out, **files, **settings})
        return train(load_config(FinetuneConfig, options=options), watch)


@contextmanager
def _watched(on_progress: OnProgress | None, progress: bool | None) -> Iterator[OnProgress | None]:
    """Yield the callback of a training: ``on_progress``, or one that shows a line if the user watches."""
    asked = is_watched() if progress is None else progress
    if on_progress is not None or not asked or not is_first_process():
        yield on_progress
        return
    with train_progress() as line:
        yield line


def _open_task(
    config: RunConfig | FinetuneConfig, on_progress: OnProgress | None, before: RunRecord | None = None
) -> AbstractContextManager[Task]:
    if isinstance(config, RunConfig):
        return open_distillation(config, on_progress, before)
    return open_finetuning(config)


def _train(
    task: Task,
    folder: Path,
    on_progress: OnProgress | None,
    facts: dict[str, Any],
    before: RunRecord | None = None,
) -> Run:
    config = task.config.model_copy(update={"out": str(folder)})
    accelerator = make_accelerator(config.training, config.tracking.log_with, folder / "tensorboard")
    is_first = accelerator.is_main_process
    on_progress = on_progress if is_first else None
    work = task.prepare(accelerator, on_progress)
    student, record = work.student, work.make_record(**facts)
    record = record.model_copy(update={"machine": _machine(accelerator)})
    if warning := describe_test_name(config.evaluation.data):
        tell(on_progress, warning)
        record = record.model_copy(update={"notes": [*record.notes, warning]})
    if before is not None:
        _refuse_other_data(before, record)
    save_best = partial(save_student, student.kept, folder, student.classifier)
    trainer = Trainer(work, config, accelerator, folder, save_best)
    if isinstance(config, RunConfig):
        tell(on_progress, f"loss {config.loss.name}, learning rate {config.optimizer.lr:g}")
    # From here on files are written; everything that can be refused has been.
    with (
        locked(folder) if is_first else nullcontext(),
        # The caller's random numbers stay as they are; dropout draws other numbers in each process.
        seeded(config.seed + accelerator.process_index, accelerator.device),
    ):
        # Another process may have trained here since the first look.
        if before is None:
            require_free(folder, overwrite=config.overwrite)
        else:
            read_interrupted(folder)
        checkpoint = None if before is None else Checkpoint.load(folder)
        # The first process may change the folder once all of them have read it.
        accelerator.wait_for_everyone()
        if checkpoint is not None:
            trainer.resume(checkpoint)
        resumed = trainer.step
        if is_first and checkpoint is not None:
            continue_folder(folder, config.to_yaml(), record, resumed)
        elif is_first:
            if before is not None:
                tell(on_progress, "no checkpoint was written yet: the run begins again")
            begin_folder(folder, config.to_yaml(), record, task.held_out_texts())
            task.save(folder)
        # Every process needs the folder before it trains.
        accelerator.wait_for_everyone()
        with (
            Tracker(folder if is_first else None, accelerator, after=resumed) as tracker,
            cpu_threads(config.training.threads),
            advising(folder),
        ):
            result = trainer.train(tracker, on_progress)
        record = record.model_copy(update={"result": result, "scores": trainer.best_scores})
        if is_first:
            write_card(folder / BEST, record, config.model_dump(mode="json"), student.dimension)
            finish_folder(folder, record)
    return Run(folder, config, record, resumed)


def _machine(accelerator: Accelerator) -> MachineRecord:
    """Return what a run is trained with."""
    device = accelerator.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    versions = {library: version(library) for library in ("torch", "transformers")}
    return MachineRecord(precision=str(accelerator.mixed_precision), device=name, **versions)


def _refuse_other_data(before: RunRecord, now: RunRecord) -> None:
    if before.machine is not None and now.machine is not None:
        precisions = before.machine.precision, now.machine.precision
        if len(set(precisions)) > 1:
            raise CheckpointError(
                "cannot resume: the run was trained in precision {}, and would go on in {}; go on where it "
                "began, or start the run again with --overwrite".format(*precisions)
            )
    was, found = (record.model_dump(include=_FIXED) for record in (before, now))
    for key in was:
        if was[key] != found[key] and key == "order":
            raise CheckpointError(
                "cannot resume: the remote has the vectors in other shards than when the run began (someone "
                "pushed the same texts again), so rows would come in another order: start the run again with "
                "--overwrite"
            )
        if was[key] != found[key]:
            raise CheckpointError(
                f"cannot resume: the run's {key} was {was[key]} and is {found[key]} now; restore it, or "
                "start the run again with --overwrite"
            )


def complete(
    config: RunConfig | FinetuneConfig, on_progress: OnProgress | None = None, *, recipe: str | None = None
) -> Run:
    """Train the run of ``config.out``, or resume it where it was interrupted with this configuration.

    A run whose checkpoint is damaged or whose data have changed is trained again, with a note to
    ``on_progress``.

    Args:
        config: the configuration; ``out`` is given.
        on_progress: called after every step.
        recipe: as for ``train``.

    Raises:
        DistillError, EmbedCacheError: as ``train``.
    """
    folder = Path(str(config.out))
    before, identity = read_record(folder), config.identity_digest()
    is_same = before is not None and (before.identity, before.seeds[-1]) == (identity, config.seed)
    if is_same and (folder / CHECKPOINT).is_file():
        cache = config.cache if isinstance(config, RunConfig) else None
        try:
            return resume(folder, cache=cache, on_progress=on_progress)
        except CheckpointError as error:
            tell(on_progress, f"trained again: {error}")
            config = config.model_copy(update={"overwrite": True})
    return train(config, on_progress, recipe=recipe)
