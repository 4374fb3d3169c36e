"""Putting a training together: everything that can be refused is refused here, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from distill.data.dataset import DistillDataset, open_dataset
from distill.data.source import DistillSource
from distill.data.tokens import TokenArrays, tokenise_corpus
from distill.errors import ConfigError, StudentError
from distill.losses.registry import LOSSES, make_loss
from distill.students.student import build_student, count_parameters, without_head
from distill.training.checkpoint import Checkpoint
from distill.training.device import cpu_threads, make_accelerator, seeded
from distill.training.folder import advising, continue_folder, locked, save_student
from distill.training.objective import Distillation
from distill.training.schedule import count_steps, warmup_steps
from distill.training.selection import make_selector
from distill.training.tracking import OnProgress, Tracker, TrainProgress, require_tensorboard
from distill.training.trainer import Trainer, TrainResult
from distill.training.views import choose_views
from embedcache.cache import Cache, CachedTeacher
from embedcache.corpus.corpus import Corpus
from embedcache.corpus.part import ORIGINAL
from embedcache.teacher.by_contract import load_by_contract
from embedcache.teacher.load import Teacher
from embedcache.teacher.tokenize import FastTokenizer, fast_tokenizer

if TYPE_CHECKING:
    from accelerate import Accelerator
    from sentence_transformers import SentenceTransformer

    from distill.config import EvaluationConfig, RunConfig, TrainerConfig
    from distill.training.selection import Selector


def open_training_data(
    cache: Cache, config: RunConfig, on_progress: OnProgress | None = None
) -> tuple[DistillDataset, RunConfig]:
    """Return what ``config`` trains on, and the configuration with everything filled in that depends on it.

    Raises:
        ConfigError: if the warm-up outlasts the run; else as :func:`open_dataset` and :func:`choose_views`.
        DataError, InputError: as :func:`open_dataset`.
    """
    facts = LOSSES[config.loss.name]
    views = choose_views(config.loss.name, config.training.views, cache.corpus(config.corpus))
    # Rows that are chosen by number must not depend on what is filled in later.
    apart = config.loss.variant == "code" and facts.full_queue is True
    dataset = open_dataset(
        cache,
        corpus=config.corpus,
        teacher=config.teacher,
        weights=config.teacher_weights,
        target_dim=config.target_dim,
        view=views[0],
        where=config.training.where,
        held_out=lambda distinct: config.resolved(distinct).evaluation.held_out or 0,
        limit=config.training.limit,
        queue=lambda distinct: (config.resolved(distinct).loss.queue or 0) if facts.full_queue else 0,
        queue_apart=apart,
        # Who sets a limit knows how few rows there will be.
        least_selected=1 if config.training.limit else config.resolved(1).training.batch_size or 1,
        seed=config.seed,
    )
    if on_progress is not None and dataset.selected is not None:
        on_progress(TrainProgress("select", dataset.selected, len(dataset.corpus)))
    distinct = len(dataset) + len(dataset.held_out) + (len(dataset.queue_rows) if apart else 0)
    resolved = config.resolved(distinct)
    refuse_long_warmup(resolved, len(dataset))
    training = resolved.training.model_copy(update={"views": views})
    return dataset, resolved.model_copy(
        update={
            "corpus": dataset.corpus.name,
            "teacher": config.teacher or dataset.teacher.name,
            "training": training,
        }
    )


@dataclass(frozen=True)
class Training:
    """A training that is ready to start, in each of the processes that take part in it.

    Attributes:
        config: the resolved configuration.
        folder: the run's folder.
        model: the student, with its head.
        kept: what is scored and saved of it: the student itself, or the student without its head.
        selector: what the best checkpoint is chosen by.
        trainer: the loop.
        accelerator: device, precision and processes.
    """

    config: TrainerConfig
    folder: Path
    model: SentenceTransformer
    kept: SentenceTransformer
    selector: Selector | None
    trainer: Trainer
    accelerator: Accelerator

    @property
    def parameters(self) -> int:
        """Parameters of what is saved."""
        return count_parameters(self.kept)

    @property
    def dimension(self) -> int:
        """Width of the vectors that what is saved gives."""
        return int(self.kept.get_embedding_dimension() or 0)

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

    def go_on(self, record: Mapping[str, object], start: Callable[[], None]) -> None:
        """Bring the trainer and its folder to the last checkpoint there.

        Args:
            record: the record of the run, without a result.
            start: writes what a run begins with; called where there is no checkpoint.

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
            start()
        else:
            continue_folder(self.folder, self.config.to_yaml(), dict(record), self.trainer.step)

    def train(self, on_progress: OnProgress | None) -> TrainResult:
        """Train, and write down how it goes."""
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
            return self.trainer.train(tracker, on_progress if self.is_first else None)


@dataclass(frozen=True)
class DistillTraining(Training):
    """A training on a teacher's vectors.

    Attributes:
        config: the resolved configuration.
        dataset: what is trained on.
    """

    config: RunConfig
    dataset: DistillDataset


@dataclass(frozen=True)
class StudentParts:
    """A student, and what it is chosen and fed by.

    Attributes:
        model: the student, with its head.
        kept: what is scored and saved of it.
        tokenizer: its tokenizer.
        selector: what the best checkpoint is chosen by; None where there is nothing to choose by.
    """

    model: SentenceTransformer
    kept: SentenceTransformer
    tokenizer: FastTokenizer
    selector: Selector | None


def prepare_student(cache: Cache, config: RunConfig, dataset: DistillDataset) -> StudentParts:
    """Build the student, and open what it is chosen by; takes seconds, and writes nothing.

    Raises:
        ConfigError, StudentError, MissingExtraError, DataError: as :func:`prepare`.
    """
    if config.tracking.tensorboard:
        require_tensorboard()
    targets, student = dataset.targets, config.student
    # Weights that a model's file lacks are drawn at random when it is loaded.
    with seeded(config.seed, torch.device("cpu")):
        model = build_student(
            student.spec,
            dataset.teacher.contract,
            lambda: load_live_teacher(cache, dataset.teacher, config.teacher_model),
            dimension=targets.dimension if targets.combination else None,
            head=student.head,
            pooling=student.pooling,
            max_length=student.max_length,
            dropout=student.dropout,
            seed=config.seed,
        )
    kept = without_head(model) if student.drop_head else model
    tokenizer = tokenizer_of(model, student.spec)
    selector = make_selector(config.evaluation.data, dataset, tokenizer)
    refuse_patience_without_scores(config.evaluation, selector, len(dataset.held_out))
    return StudentParts(model, kept, tokenizer, selector)


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
    parts = prepare_student(cache, config, dataset)
    model, kept, tokenizer, selector = parts.model, parts.kept, parts.tokenizer, parts.selector
    with accelerator.main_process_first():
        views = tuple(
            tokenise_view(cache, dataset.corpus, name, tokenizer, on_progress)
            for name in config.training.views or [ORIGINAL]
        )
    trainer = Trainer(
        model,
        kept,
        Distillation(make_loss(config.loss, dataset.targets.dimension), dataset),
        DistillSource(dataset, views, texts=LOSSES[config.loss.name].views),
        tokenizer,
        selector,
        config,
        accelerator,
        folder,
        lambda: save_student(kept, folder),
    )
    return DistillTraining(config, folder, model, kept, selector, trainer, accelerator, dataset)


def load_live_teacher(cache: Cache, teacher: CachedTeacher, source: str | None = None) -> Teacher:
    """Load the teacher itself, and make sure it is the one the cache holds vectors of.

    Args:
        cache: the cache.
        teacher: the cached teacher.
        source: alias, hub id or folder to load from; default: as it was built.

    Raises:
        TeacherError: if it cannot be found.
        ContractMismatchError: if it is another teacher now; it names the fields that differ.
    """
    return load_by_contract(
        source or cache.model_source(teacher),
        teacher.contract,
        name=teacher.name,
        remedy="say where that one is with --teacher-model",
    )


def tokenizer_of(model: SentenceTransformer, spec: str, max_length: int | None = None) -> FastTokenizer:
    """Return a tokenizer of a student.

    Args:
        model: the student.
        spec: what messages call it.
        max_length: tokens after which it cuts a text; default, and at most: as the student does.

    Raises:
        StudentError: if it has none that is fast enough, or the student cuts texts earlier.
    """
    model.prompts, model.default_prompt_name = {}, None
    own = int(model.max_seq_length or 0)
    if max_length is not None and own and max_length > own:
        raise StudentError(
            f"student.max_length {max_length}: {spec!r} takes at most {own} tokens; give that or less"
        )
    try:
        # What it gives is compared with what the model itself makes of a text.
        model.max_seq_length = max_length or own
        tokenizer = fast_tokenizer(model, max_length or own, "")
    finally:
        model.max_seq_length = own
    if tokenizer is None:
        raise StudentError(
            f"student {spec!r} has no tokenizer with a fast (Rust) backend, which training needs; "
            "choose a text encoder such as BERT, MiniLM or MPNet"
        )
    return tokenizer


def tokenise_view(
    cache: Cache, corpus: Corpus, view: str, tokenizer: FastTokenizer, on_progress: OnProgress | None
) -> TokenArrays:
    """Return the token ids of a view of a corpus, made now where the cache does not hold them yet."""
    texts = corpus if view == ORIGINAL else corpus.view(view)
    return tokenise_corpus(cache, texts, tokenizer, prepare_progress(on_progress, len(corpus)))


def prepare_progress(on_progress: OnProgress | None, rows: int) -> Callable[[int], None] | None:
    """Return what reports that so many of ``rows`` are tokenised; None where nobody wants to know."""
    if on_progress is None:
        return None
    return lambda done: on_progress(TrainProgress("prepare", done, rows))


def machine_flags(device: str | None, threads: int | None) -> dict[str, object]:
    """Return the settings that may be others when a run goes on: they are of the machine, not of the run."""
    return {"training.device": device, "training.threads": threads}


def refuse_long_warmup(config: TrainerConfig, rows: int) -> None:
    """Raise :class:`ConfigError` where the warm-up outlasts a run over ``rows`` rows."""
    warmup_steps(config.optimizer.warmup, count_steps(config.training, rows))


def refuse_patience_without_scores(
    evaluation: EvaluationConfig, selector: Selector | None, held_out: int
) -> None:
    """Raise :class:`ConfigError` where patience is asked for and there is nothing to select by."""
    for key, value in (("patience", evaluation.patience), ("patience_epochs", evaluation.patience_epochs)):
        if selector is None and value is not None:
            raise ConfigError(
                f"evaluation.{key}: {value} without a new best can only be counted where there are "
                f"evaluations, and {held_out} rows are held out; hold out at least 10, "
                "give --dev, or leave it out"
            )
