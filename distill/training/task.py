"""Task: the data of a training, opened, and the student and objective made from them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from distill.config.finetune import FinetuneConfig
from distill.config.models import RunConfig
from distill.config.training import SelectionConfig
from distill.data.source import Source
from distill.errors import ConfigError, StudentError
from distill.reaugkd.head import LabelHead
from distill.record import DevRecord, RunRecord
from distill.students.build import count_parameters, without_head
from distill.students.static import is_static, static_tokenizer
from distill.training.objectives import Objective
from distill.training.selection import Selector
from distill.training.tracking import OnProgress, TrainProgress
from embedcache.fsio import sha256_file
from embedcache.teacher.tokenize import FastTokenizer, fast_tokenizer

if TYPE_CHECKING:
    from accelerate import Accelerator
    from sentence_transformers import SentenceTransformer


@dataclass(frozen=True)
class StudentParts:
    """A student, its tokenizer, and the scorer of its checkpoints.

    Attributes:
        model: the student, with its head.
        kept: the model that is scored and saved: the student itself, or the student without its head.
        tokenizer: its tokenizer.
        selector: scorer of checkpoints; None where there is nothing to choose by.
        classifier: classifier that reads its vectors and is saved with it; None for an encoder alone.
    """

    model: SentenceTransformer
    kept: SentenceTransformer
    tokenizer: FastTokenizer
    selector: Selector | None
    classifier: LabelHead | None = None

    @property
    def parameters(self) -> int:
        """Parameters of the model that is saved."""
        return count_parameters(self.kept)

    @property
    def dimension(self) -> int:
        """Width of the vectors of the model that is saved."""
        return int(self.kept.get_embedding_dimension() or 0)


@dataclass(frozen=True)
class Work:
    """Everything that a trainer needs.

    Attributes:
        student: the student.
        objective: the objective.
        source: rows to train on.
        make_record: makes the run's record, given ``identity`` and ``recipe``.
    """

    student: StudentParts
    objective: Objective
    source: Source
    make_record: Callable[..., RunRecord]


class Task(ABC):
    """Task of one command, its data opened; nothing is written before ``save``.

    Attributes:
        config: the resolved configuration.
    """

    config: RunConfig | FinetuneConfig

    @abstractmethod
    def folder(self) -> Path:
        """Return the folder of the run: the one of the configuration, else one named after the data.

        Raises:
            ConfigError: if it holds something that the task needs.
        """

    @abstractmethod
    def prepare(self, accelerator: Accelerator, on_progress: OnProgress | None) -> Work:
        """Build student, objective and source.

        Raises:
            ConfigError, DataError, StudentError: if they do not fit each other.
        """

    @abstractmethod
    def held_out_texts(self) -> Sequence[str]:
        """Return the texts that neither this training nor the stage before has seen."""

    def save(self, folder: Path) -> None:  # noqa: B027 - most tasks have none
        """Write files of the run's folder that only this kind of task has."""


def tokenizer_of(model: SentenceTransformer, spec: str, max_length: int | None = None) -> FastTokenizer:
    """Return a tokenizer of a student.

    Args:
        model: the student.
        spec: its name in messages.
        max_length: tokens after which it cuts a text; default, and at most: as the student does.

    Raises:
        StudentError: if it has none that is fast enough, or the student cuts texts earlier or never.
    """
    model.prompts, model.default_prompt_name = {}, None
    if is_static(model):
        if max_length is not None:
            raise StudentError(
                f"student.max_length {max_length}: {spec!r} is a static student, which reads whole texts at "
                "next to no cost; leave it out"
            )
        return static_tokenizer(model)
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


def make_parts(
    model: SentenceTransformer,
    spec: str,
    select: Callable[[FastTokenizer], Selector | None],
    evaluation: SelectionConfig,
    drop_head: bool = False,
    classifier: LabelHead | None = None,
) -> StudentParts:
    """Return a student with its tokenizer and selector.

    Args:
        model: the student.
        spec: its specification, for messages.
        select: makes the selector, given the tokenizer.
        evaluation: patience, which needs a selector.
        drop_head: score and save the student without its head.
        classifier: classifier that is saved with it.

    Raises:
        ConfigError: if patience is set and there is nothing to select by.
        StudentError: if the student has no fast tokenizer, or no head to drop.
    """
    kept = without_head(model) if drop_head else model
    tokenizer = tokenizer_of(model, spec)
    selector = select(tokenizer)
    for key, value in (("patience", evaluation.patience), ("patience_epochs", evaluation.patience_epochs)):
        if selector is None and value is not None:
            raise ConfigError(
                f"{value} needs scores to wait for: hold out at least 10 rows, give --dev, or leave it out",
                f"evaluation.{key}",
            )
    return StudentParts(model, kept, tokenizer, selector, classifier)


def describe_dev(data: str | None, rows: Sequence[str] | None = None) -> DevRecord | None:
    """Return the record of a development set; None where there is none."""
    if data is None:
        return None
    path = Path(data)
    return DevRecord(name=path.name, sha256=sha256_file(path), rows=list(rows) if rows else None)


def prepared(on_progress: OnProgress | None, rows: int) -> Callable[[int], None] | None:
    """Return the callback for rows tokenised; None without one for progress."""
    if on_progress is None:
        return None
    return lambda done: on_progress(TrainProgress("prepare", done, rows))
