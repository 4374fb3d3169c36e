"""Base of losses: modules that map student and teacher vectors to one number per row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

from torch import Tensor, nn

from distill.losses.queue import TeacherQueue

PartT = TypeVar("PartT")

Need = Literal["labels", "token table", "live teacher", "rows apart"]


@dataclass(frozen=True)
class TokenPairs:
    """Token embeddings of student and teacher, float32.

    Attributes:
        students: shape (n, h); gradients on.
        targets: shape (n, h).
        rows: int64, shape (n,); the row of the batch that each token stands in; None where the tokens are
            those of the vocabulary, which belong to all rows alike.
        total: tokens of the whole step, those of all processes.
        mean_square: of the components of all the teacher's embeddings.
    """

    students: Tensor
    targets: Tensor
    rows: Tensor | None
    total: int
    mean_square: float


@dataclass(frozen=True)
class HiddenPairs:
    """Hidden states of layers of student and teacher for the same tokens, float32.

    Attributes:
        students: one tensor (B, T, h_S) a layer; gradients on.
        targets: one tensor (B, T, h_T) a layer, of the teacher's layer that it is held against.
        mask: bool, shape (B, T); real tokens.
        total: real tokens of the whole step, those of all processes.
        mean_squares: shape (layers,); of the components of each layer's targets, over those tokens; None
            where the loss takes errors as they are.
    """

    students: tuple[Tensor, ...]
    targets: tuple[Tensor, ...]
    mask: Tensor
    total: int
    mean_squares: Tensor | None


@dataclass(frozen=True)
class ClassPairs:
    """Logits of student and teacher, float32.

    Attributes:
        students: shape (B, c); the student's logits, gradients on.
        targets: shape (B, c); the teacher's logits.
        labels: int64, shape (B,); the corpus's labels; None without any.
    """

    students: Tensor
    targets: Tensor
    labels: Tensor | None


@dataclass(frozen=True)
class LossBatch:
    """The vectors of one step, float32.

    Attributes:
        students: one tensor (B, d) a view, the view the teacher encoded first; gradients on.
        targets: shape (B, d); the teacher's vectors of the same rows.
        others: shape (G, d); the targets of the whole step: those of all processes, of which ``targets`` are
            a part.
        tokens: for losses that look at token embeddings.
        hidden: for losses that look at layers.
        classes: for losses that look at labels.
        rows: int64, shape (B,); the corpus rows that the vectors are of; None where they are of none.
    """

    students: tuple[Tensor, ...]
    targets: Tensor
    others: Tensor
    tokens: TokenPairs | None = None
    hidden: HiddenPairs | None = None
    classes: ClassPairs | None = None
    rows: Tensor | None = None

    @classmethod
    def alone(cls, students: tuple[Tensor, ...], targets: Tensor) -> LossBatch:
        """Return the batch of a step that one process makes."""
        return cls(students, targets, targets)


def required(part: PartT | None) -> PartT:
    """Return a part of a batch that a loss reads inside the models.

    Raises:
        ValueError: if the batch does not have it.
    """
    if part is None:
        raise ValueError("the loss looks inside the models, and the batch holds nothing of it")
    return part


def mean_over_tokens(errors: Tensor, rows: Tensor, batch: LossBatch, total: int) -> Tensor:
    """Share out errors of tokens over the rows they stand in.

    Args:
        errors: shape (n,); one number a token.
        rows: int64, shape (n,); the row of each.
        batch: the step.
        total: tokens of the whole step.

    Returns:
        shape (B,); its mean over the rows of the whole step is the mean of ``errors`` over all tokens.
    """
    scaled = errors * (len(batch.others) / total)
    return errors.new_zeros(len(batch.targets)).index_add(0, rows, scaled)


class DistillLoss(nn.Module, ABC):
    """Base of all losses.

    Everything that a loss learns or remembers (a temperature, a queue) is a parameter or buffer, so it is
    optimised and saved with the student.
    """

    needs_whole_batch: ClassVar[bool] = False
    """True if it compares rows of a batch with each other, so a process needs the student's vectors of all
    processes."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: TeacherQueue | None = None
        """Teacher vectors of other rows; None for losses that have no use for them."""

    @classmethod
    def needs(cls, settings: Mapping[str, Any]) -> set[Need]:
        """Return its needs with these settings: the corpus's labels, the teacher's token embeddings, the
        teacher itself, or that the rows its queue starts with are not trained on.
        """
        return set()

    @abstractmethod
    def forward(self, batch: LossBatch) -> Tensor:
        """Return the loss of each row, float32, shape (B,); training minimises their mean."""

    def begin_step(self, targets: Tensor, rows: Tensor) -> None:
        """Called once before each step with the batch's targets.

        Args:
            targets: float32, shape (G, d); the targets of the whole step.
            rows: int64, shape (G,); the corpus rows they are of.
        """

    def end_step(self, targets: Tensor, rows: Tensor) -> None:
        """Put the batch's targets into the queue, if any; called once a step, after the optimiser."""
        if self.queue is not None:
            self.queue.push(targets, rows)

    def metrics(self) -> dict[str, float]:
        """Return figures to log beside the loss."""
        return {}
