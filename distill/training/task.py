"""Task: the data of a training, opened, and the student and objective made from them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from distill.config.finetune import FinetuneConfig
from distill.config.models import RunConfig
from distill.data.loader import CheckRows
from distill.data.source import Source
from distill.record import DevRecord, RunRecord
from distill.training.objectives import Objective
from distill.training.student import StudentParts
from distill.training.tracking import OnProgress, TrainProgress
from embedcache.fsio import sha256_file

if TYPE_CHECKING:
    from accelerate import Accelerator


@dataclass(frozen=True)
class Work:
    """Everything that a trainer needs.

    Attributes:
        student: the student.
        objective: the objective.
        source: rows to train on.
        record: the run's record, without identity, recipe and result.
    """

    student: StudentParts
    objective: Objective
    source: Source
    record: RunRecord


class Task(ABC):
    """Task of one command, its data opened; nothing is written before :meth:`save`.

    Attributes:
        config: the resolved configuration.
    """

    config: RunConfig | FinetuneConfig

    @abstractmethod
    def default_out(self) -> str:
        """Return the folder of a run that names none."""

    @abstractmethod
    def prepare(self, accelerator: Accelerator, on_progress: OnProgress | None) -> Work:
        """Build student, objective and source.

        Raises:
            ConfigError, DataError, StudentError: if they do not fit each other.
        """

    @abstractmethod
    def held_out_texts(self) -> Sequence[str]:
        """Return the texts that neither this training nor the stage before has seen."""

    def claim(self, folder: Path) -> None:  # noqa: B027 - most tasks need nothing of it
        """Raise :class:`ConfigError` where ``folder`` holds something that the task needs."""

    def admit(self) -> CheckRows | None:
        """Check the first rows to train on; return the check of later ones, None without any."""
        return None

    def save(self, folder: Path) -> None:  # noqa: B027 - most tasks have none
        """Write files of the run's folder that only this kind of task has."""


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
