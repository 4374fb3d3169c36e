"""Putting a training together: everything that can be refused is refused here, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from distill.classification.outputs import soft_labels
from distill.classification.selection import class_selector, with_dev_columns
from distill.config.models import ONLINE
from distill.data.dataset import DistillDataset, open_dataset
from distill.data.source import DistillSource
from distill.data.streaming import Ahead
from distill.errors import ConfigError
from distill.losses.registry import get_loss
from distill.reaugkd.head import LabelHead
from distill.record import RunRecord, TrainResult
from distill.students.build import build_student, count_parameters
from distill.students.registry import StudentOptions
from distill.training.checkpoint import Checkpoint
from distill.training.device import cpu_threads, make_accelerator, seeded
from distill.training.folder import advising, continue_folder, locked, save_student
from distill.training.objective_setup import load_live_teacher, make_objective, refuse_online
from distill.training.place import Place, refuse_unknown_rows
from distill.training.schedule import warmup_steps
from distill.training.selection import make_selector
from distill.training.student import StudentParts, student_parts
from distill.training.token_views import count_tokens, sample_texts, tokenise_view
from distill.training.tracking import OnProgress, Tracker, TrainProgress, require_tensorboard
from distill.training.trainer import Trainer
from distill.training.views import choose_views
from embedcache.cache import Cache
from embedcache.corpus.part import ORIGINAL
from embedcache.pairs import what_is_read

if TYPE_CHECKING:
    from accelerate import Accelerator
    from numpy.typing import NDArray

    from distill.config.models import RunConfig
    from distill.config.trainer import TrainerConfig
    from distill.data.loader import CheckRows
    from distill.data.source import Source
    from distill.training.objective import Objective
    from embedcache.teacher.load import Teacher
    from embedcache.teacher.tokenize import FastTokenizer


def open_training_data(
    place: Place, config: RunConfig, on_progress: OnProgress | None = None
) -> tuple[DistillDataset, RunConfig]:
    """Return what ``config`` trains on, and the configuration with everything filled in that depends on it.

    Raises:
        ConfigError: if the warm-up outlasts the run; else as :func:`refuse_online`, :func:`open_dataset`,
            :func:`choose_views` and :func:`refuse_unknown_rows`.
        DataError: if the loss's queue is longer than the rows to train on; else as :func:`open_dataset`.
        InputError: as :func:`open_dataset`.
    """
    cache, facts = place.cache, get_loss(config.loss.name)
    refuse_unknown_rows(config.training.where, place)
    views = choose_views(config.loss.name, config.training.views, cache.corpus(place.corpus))
    # Rows that are chosen by number must not depend on what is filled in later.
    apart = config.loss.settings.get("variant") == "code" and facts.full_queue is True

    def queued(distinct: int) -> int:
        resolved = config.resolved(distinct)
        settings = resolved.loss.settings
        facts.refuse_long_queue(settings, distinct - (resolved.evaluation.held_out or 0))
        return int(settings["queue"]) if facts.full_queue else 0

    dataset = open_dataset(
        cache,
        corpus=place.corpus,
        teacher=config.cached_teacher,
        weights=config.teacher_weights,
        target_dim=config.target_dim,
        view=views[0],
        where=config.training.where,
        held_out=lambda distinct: config.resolved(distinct).evaluation.held_out or 0,
        limit=config.training.limit,
        queue=queued,
        queue_apart=apart,
        # Who sets a limit knows how few rows there will be.
        least_selected=1 if config.training.limit else config.resolved(1).training.batch_size or 1,
        seed=config.seed,
        open_store=place.open_store,
        cache_limit=config.stream.limit,
    )
    if on_progress is not None and dataset.selected is not None:
        on_progress(TrainProgress("select", dataset.selected, len(dataset.corpus)))
    distinct = len(dataset) + len(dataset.held_out) + (len(dataset.queue_rows) if apart else 0)
    resolved = config.resolved(distinct)
    refuse_long_warmup(resolved, len(dataset))
    refuse_online(resolved, dataset)
    ahead(dataset, resolved).begin()
    if facts.inside == "classes":
        dataset = replace(dataset, soft=soft_labels(cache, resolved, dataset))
        evaluation = with_dev_columns(resolved.evaluation, cache, dataset)
        resolved = resolved.model_copy(update={"evaluation": evaluation})
    elif given := resolved.evaluation.of_labelled:
        raise ConfigError(
            f"{', '.join(given)}: they are of labelled texts, and the loss {resolved.loss.name} makes no "
            "classifier; leave them out"
        )
    training = resolved.training.model_copy(update={"views": views})
    return dataset, resolved.model_copy(
        update={
            "corpus": dataset.corpus.name,
            "teacher": f"{ONLINE}:{dataset.teacher.name}"
            if config.online
            else config.teacher or dataset.teacher.name,
            "training": training,
        }
    )


@dataclass(frozen=True)
class Training:
    """A training that is ready to start, in each of the processes that take part in it.

    Attributes:
        config: the resolved configuration.
        folder: the run's folder.
        student: the student, and what it is chosen and fed by.
        trainer: the loop.
        accelerator: device, precision and processes.
    """

    config: TrainerConfig
    folder: Path
    student: StudentParts
    trainer: Trainer
    accelerator: Accelerator

    @property
    def parameters(self) -> int:
        """Parameters of what is saved."""
        return count_parameters(self.student.kept)

    @property
    def dimension(self) -> int:
        """Width of the vectors that what is saved gives."""
        return int(self.student.kept.get_embedding_dimension() or 0)

    @property
    def selected_by(self) -> str | None:
        """What the best checkpoint is chosen by; None where there is nothing to choose by."""
        return self.student.selector.name if self.student.selector else None

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that writes."""
        return bool(self.accelerator.is_main_process)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep others out of the folder, and their random numbers as they are, inside the block."""
        lock = locked(self.folder) if self.is_first else nullcontext()
        # Dropout draws other numbers in each process.
        with lock, seeded(self.config.seed + self.accelerator.process_index, self.accelerator.device):
            yield

    def go_on(self, record: RunRecord, start: Callable[[], None], on_progress: OnProgress | None) -> None:
        """Bring the trainer and its folder to the last checkpoint there.

        Args:
            record: the record of the run, without a result.
            start: writes what a run begins with; called where there is no checkpoint.
            on_progress: told where there is no checkpoint.

        Raises:
            CheckpointError: if the checkpoint is damaged, or of another student, loss or number of processes.
        """
        checkpoint = Checkpoint.load(self.folder)
        # The first process may change the folder once all of them have read it.
        self.accelerator.wait_for_everyone()
        if checkpoint is not None:
            self.trainer.resume(checkpoint)
        if not self.is_first:
            return
        if checkpoint is None:
            if on_progress is not None:
                on_progress(TrainProgress("anew", 0, self.trainer.total_steps))
            start()
        else:
            continue_folder(self.folder, self.config.to_yaml(), record, self.trainer.step)

    def train(self, on_progress: OnProgress | None, check: CheckRows | None = None) -> TrainResult:
        """Train, and write down how it goes; for the arguments and errors see :meth:`Trainer.train`."""
        config = self.config
        # The folder has to be there before anybody trains.
        self.accelerator.wait_for_everyone()
        with (
            Tracker(
                self.folder if self.is_first else None,
                tensorboard=config.tracking.tensorboard,
                after=self.trainer.step,
            ) as tracker,
            cpu_threads(config.training.threads),
            advising(self.folder),
        ):
            return self.trainer.train(tracker, on_progress if self.is_first else None, check)


@dataclass(frozen=True)
class DistillTraining(Training):
    """A training on a teacher's vectors.

    Attributes:
        config: the resolved configuration.
        dataset: what is trained on.
        notes: sentences that are worth knowing about how the student was made.
    """

    config: RunConfig
    dataset: DistillDataset
    notes: tuple[str, ...] = ()


def prepare_student(
    cache: Cache,
    config: RunConfig,
    dataset: DistillDataset,
    on_note: Callable[[str], None] = lambda note: None,
    on_progress: OnProgress | None = None,
    *,
    live_teacher: Callable[[], Teacher] | None = None,
    in_turn: Callable[[], AbstractContextManager[None]] = nullcontext,
    on_trial: bool = False,
) -> StudentParts:
    """Build the student, and open what it is chosen by; takes seconds, and writes nothing but token ids.

    Args:
        cache: the cache; it receives token ids where tokens have to be counted for the student.
        config: the resolved configuration.
        dataset: what is trained on.
        on_note: told what is worth knowing about how the student is made.
        on_progress: told how many rows are tokenised.
        live_teacher: loads the teacher itself; default: as the configuration says.
        in_turn: opens a block that the first of several processes goes through before the others.
        on_trial: as :func:`distill.students.build.build_student`; such a student is not for training.

    Raises:
        ConfigError, StudentError, MissingExtraError, DataError: as :func:`prepare`.
    """
    if config.tracking.tensorboard:
        require_tensorboard()
    targets, student = dataset.targets, config.student
    facts = get_loss(config.loss.name)
    reader: Literal["on targets", "alone"] | None = None
    if facts.inside == "classes":
        reader = "alone" if facts.targets == "soft labels alone" else "on targets"
    view = (config.training.views or [ORIGINAL])[0]

    def count(tokenizer: FastTokenizer) -> NDArray[np.int64]:
        # What the first has written, the others read.
        with in_turn():
            return count_tokens(cache, dataset, view, tokenizer, on_progress)

    options = StudentOptions(config.seed, count, lambda: sample_texts(dataset), on_note, on_trial)
    # Weights that a model's file lacks are drawn at random when it is loaded.
    with seeded(config.seed, torch.device("cpu")):
        model = build_student(
            student.spec,
            dataset.teacher.contract,
            live_teacher or _teacher_loader(cache, config, dataset),
            options,
            dimension=targets.dimension if targets.combination else None,
            classifier=reader,
            head=student.head,
            pooling=student.pooling,
            max_length=student.max_length,
            dropout=student.dropout,
        )
    soft, head = dataset.soft, None
    if soft is not None:
        width = int(model.get_embedding_dimension() or 0)
        reads = what_is_read(sample_texts(dataset))
        head = LabelHead(soft.names, width, dropout=student.dropout, seed=config.seed, reads=reads)
    return student_parts(
        model,
        student.spec,
        lambda tokenizer: (
            make_selector(config.evaluation.data, dataset, tokenizer)
            if soft is None or head is None
            else class_selector(config, dataset, soft, head, tokenizer)
        ),
        config.evaluation,
        drop_head=student.drop_head,
        held_out=len(dataset.held_out),
        classifier=head,
    )


def _teacher_loader(cache: Cache, config: RunConfig, dataset: DistillDataset) -> Callable[[], Teacher]:
    """Return what loads the teacher itself: once, where it is run in training too."""
    load = partial(load_live_teacher, cache, dataset.teacher, config.teacher_model)
    # One that only the student is made from goes as soon as that is done.
    return lru_cache(load) if config.online else load


def make_trainer(
    student: StudentParts,
    objective: Objective,
    source: Source,
    config: TrainerConfig,
    accelerator: Accelerator,
    folder: Path,
) -> Trainer:
    """Return the loop that trains a student and keeps the best of it in ``folder``."""
    return Trainer(
        student.model,
        student.kept,
        objective,
        source,
        student.tokenizer,
        student.selector,
        config,
        accelerator,
        folder,
        lambda: save_student(student.kept, folder, student.classifier),
    )


def prepare(
    cache: Cache, config: RunConfig, dataset: DistillDataset, folder: Path, on_progress: OnProgress | None
) -> DistillTraining:
    """Build the student and all that it is trained with.

    Raises:
        ConfigError: if the configuration does not fit the machine or the data.
        StudentError: if the student cannot be built or does not fit the teacher.
        MissingExtraError: if something is asked for that is not installed.
        StorageError: if token arrays cannot be written.
    """
    accelerator = make_accelerator(config.training)
    notes: list[str] = []

    def note(text: str) -> None:
        notes.append(text)
        if on_progress is not None:
            on_progress(TrainProgress("note", 0, 0, text=text))

    live_teacher = _teacher_loader(cache, config, dataset)
    student = prepare_student(
        cache,
        config,
        dataset,
        note,
        on_progress,
        live_teacher=live_teacher,
        in_turn=accelerator.main_process_first,
    )
    with accelerator.main_process_first():
        views = tuple(
            tokenise_view(cache, dataset.corpus, name, student.tokenizer, on_progress)
            for name in config.training.views or [ORIGINAL]
        )
    trainer = make_trainer(
        student,
        make_objective(cache, config, dataset, student, live_teacher, accelerator.device),
        DistillSource(dataset, views, get_loss(config.loss.name).views, ahead(dataset, config)),
        config,
        accelerator,
        folder,
    )
    return DistillTraining(config, folder, student, trainer, accelerator, dataset, tuple(notes))


def ahead(dataset: DistillDataset, config: RunConfig) -> Ahead:
    """Return what has the vectors of ``dataset`` fetched before they are needed."""
    targets = dataset.targets
    return Ahead(targets.stores, targets.positions, dataset.order, config.training.epochs or 1)


def machine_flags(device: str | None, threads: int | None) -> dict[str, object]:
    """Return the settings that may be others when a run goes on: they are of the machine, not of the run."""
    return {"training.device": device, "training.threads": threads}


def refuse_long_warmup(config: TrainerConfig, rows: int) -> None:
    """Raise :class:`ConfigError` where the warm-up outlasts a run over ``rows`` rows."""
    warmup_steps(config.optimizer.warmup, config.training.count_steps(rows))
