"""What a suite is to the runner: read the data once, name the sentences, score a model's vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from distill.errors import DataError
from distill.evaluation.encoding import Encoded, Progress, silent
from distill.evaluation.evaluated_model import EvaluatedModel
from distill.evaluation.scores import Scores
from distill.layout import describe_missing

SNLI_PAIRS = 15_000
"""Pairs that SNLI's classifier learns from by default: encoding the sentences of all takes longer
than everything else that is evaluated."""

Spec = str | Path | EvaluatedModel
"""A model as a caller names it: a folder, hub id or alias, or an already loaded model."""


class NotThereError(DataError):
    """None of the files that a suite reads are there; nothing is wrong with any file."""


class NothingToScoreError(NotThereError):
    """Files that a suite reads are there and whole, but they hold nothing that is scored."""


@dataclass(frozen=True)
class Request:
    """What suites are asked to read.

    Attributes:
        models: the models to evaluate, as the caller names them.
        data: folder or file the suite reads, if one was given.
        teacher: the teacher's name in reports, if there is a teacher.
        text_column: column of ``data`` that holds the sentences, for suites that read plain sentences.
        limit: at most so many sentences, for suites that read plain sentences.
        sst2_sentences: learn SST2 from whole sentences, not from phrases (transfer).
        snli_pairs: how many pairs SNLI is learnt from; 0 for all (nli).
        seed: chooses samples where a suite takes any.
        progress: called while something long is done.
    """

    models: tuple[Spec, ...]
    data: Path | None = None
    teacher: str | None = None
    text_column: str | None = None
    limit: int | None = None
    sst2_sentences: bool = False
    snli_pairs: int = SNLI_PAIRS
    seed: int = 0
    progress: Progress = silent

    def folder(self, suite: str) -> Path:
        """Return the folder of test files, for suites that score whole sets.

        Raises:
            DataError: if it was not given or is not there, or settings for plain sentences were given.
        """
        if self.text_column is not None or self.limit is not None:
            raise DataError(f"the {suite} suite scores whole sets: leave out --text-column and --limit")
        if self.data is None:
            raise DataError(f"the {suite} suite needs a folder of test files: give --data DIR")
        if self.data.is_file():
            raise DataError(f"{self.data} is a file: give --data the folder that it lies in")
        if not self.data.is_dir():
            near = describe_missing(f"{self.data.absolute()}")
            raise DataError(f"{near}; --data is the folder that holds the test files")
        return self.data


@dataclass(frozen=True)
class Subject:
    """A model with the vectors of every sentence that the tasks asked for.

    Attributes:
        spec: what the caller named.
        model: the model.
        encoded: its vectors.
        teacher: the teacher's subject, for another model where there is a teacher.
        is_teacher: whether it is the teacher's own.
    """

    spec: Spec
    model: EvaluatedModel
    encoded: Encoded
    teacher: Subject | None = None
    is_teacher: bool = False


class Task(Protocol):
    """A suite with its data read."""

    @property
    def facts(self) -> Mapping[str, object]:
        """What holds for all models: files, counts."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """What a reader must know: sets not found, rows skipped."""
        ...

    @property
    def files(self) -> Sequence[Path]:
        """The test files whose content may change a figure."""
        ...

    @property
    def settings(self) -> Mapping[str, object]:
        """What may change a figure beside files, sentences and models: of the request only what is used.

        What chooses the sentences alone is not among it, since the sentences tell.
        """
        ...

    @property
    def needs_teacher(self) -> bool:
        """Whether nothing can be scored without the teacher's vectors."""
        ...

    def texts(self) -> Sequence[str]:
        """Return the sentences whose vectors are needed; repetitions do no harm."""
        ...

    def score(self, subject: Subject, notes: list[str]) -> Scores:
        """Score one model; ``notes`` takes what a reader must know of it.

        Raises:
            DataError: if its vectors cannot be scored.
        """
        ...
