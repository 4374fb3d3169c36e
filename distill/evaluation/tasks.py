"""What every suite shares: the request, the encoding of distinct sentences, and the result.

A suite is a function from a :class:`Request` to an :class:`EvaluationResult`. Whatever it measures, it
encodes each distinct sentence once per model (:func:`encode_distinct`) and reports on each model alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from distill.errors import DataError
from distill.evaluation.model import EvaluatedModel
from distill.evaluation.record import RunTeacher

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from rich.console import RenderableType

FORMAT_VERSION = 1
"""Version of the JSON that :meth:`EvaluationResult.to_json` returns."""

CHUNK = 2048
"""Sentences handed to a model at once: often enough for a progress line, too many to cost speed."""

Spec = str | Path | EvaluatedModel
"""A model as a caller names it: a folder, hub id or alias, or an already loaded model."""

Progress = Callable[[str, int, int], None]
"""Called with (what is being done, sentences done, sentences in all)."""


def silent(task: str, done: int, total: int) -> None:
    """Report no progress."""


@dataclass(frozen=True)
class TeacherChoice:
    """The teacher that models are compared with.

    Attributes:
        name: the teacher's name, in the report and in a cache.
        spec: what it is loaded from.
        run_teacher: what a run's own record says of it; None where a caller named it.
    """

    name: str
    spec: Spec
    run_teacher: RunTeacher | None = None

    @property
    def implied(self) -> bool:
        """True where no caller named it but a run's own record did."""
        return self.run_teacher is not None

    @property
    def contract_id(self) -> str | None:
        """The contract it must have; None where any will do."""
        return self.run_teacher.contract_id if self.run_teacher else None


class Load(Protocol):
    """Turns a spec into a model; a run's teacher into what it was then."""

    def __call__(self, spec: Spec, teacher: RunTeacher | None = None) -> EvaluatedModel:
        """Return the model."""
        ...


@dataclass(frozen=True)
class Request:
    """One call of a suite.

    Attributes:
        models: the models to evaluate, in the order of the report.
        data: folder or file the suite reads, if one was given.
        teacher: the teacher to stand beside the models, if there is one.
        cache: folder of a cache that may hold the teacher's vectors.
        load: turns a spec into a model.
        text_column: column of ``data`` that holds the sentences, for suites that read plain sentences.
        limit: at most so many sentences, for suites that read plain sentences.
        seed: chooses samples where a suite takes any.
        progress: called while sentences are encoded.
    """

    models: tuple[Spec, ...]
    data: Path | None
    teacher: TeacherChoice | None
    cache: Path | None
    load: Load
    text_column: str | None = None
    limit: int | None = None
    seed: int = 0
    progress: Progress = silent

    def load_teacher(self) -> EvaluatedModel:
        """Load the teacher, and check that it still is what the run was distilled from, where a run named it.

        Raises:
            DataError, ContractMismatchError: if there is no teacher, or its contract has changed.
            TeacherError: if it cannot be found or loaded.
        """
        if self.teacher is None:
            raise DataError("no teacher is known: give --teacher")
        model = self.load(self.teacher.spec, self.teacher.run_teacher)
        contract_id = model.contract.id if model.contract else "none"
        if self.teacher.contract_id not in (None, contract_id):
            raise DataError(
                f"{self.teacher.name} as loaded now has contract {contract_id[:12]}, "
                f"but the run was distilled from {str(self.teacher.contract_id)[:12]}; give --teacher"
            )
        return model


class Scores(Protocol):
    """What one suite found out about one model."""

    def to_json(self) -> dict[str, object]:
        """Return the scores as a JSON object with stable keys."""
        ...

    def rows(self) -> list[tuple[str, dict[str, str]]]:
        """Return detail rows as (measure, column -> cell); empty where the summary says it all."""
        ...

    def summary(self) -> dict[str, str]:
        """Return the headline figures as column -> cell."""
        ...


@dataclass(frozen=True)
class ModelReport:
    """One model's line of a result.

    Attributes:
        name: the model's name.
        role: ``teacher`` or ``model``.
        parameters: number of parameters.
        megabytes: size of the saved weights, in units of 10^6 bytes.
        dimension: width of its vectors.
        sentences_per_second: distinct sentences encoded per second of wall time.
        scores: what the suite measured.
    """

    name: str
    role: str
    parameters: int
    megabytes: float
    dimension: int
    sentences_per_second: float
    scores: Scores

    @classmethod
    def of(cls, model: EvaluatedModel, role: str, speed: float, scores: Scores) -> ModelReport:
        """Return the report of ``model``, which encoded ``speed`` sentences per second."""
        return cls(model.name, role, model.parameters, model.megabytes, model.dimension, speed, scores)

    def to_json(self) -> dict[str, object]:
        """Return the report as a JSON object; the suite's own keys stand beside the common ones."""
        return {
            "name": self.name,
            "role": self.role,
            "parameters": self.parameters,
            "megabytes": round(self.megabytes, 3),
            "dimension": self.dimension,
            "sentences_per_second": round(self.sentences_per_second, 1),
            **self.scores.to_json(),
        }


@dataclass(frozen=True)
class EvaluationResult:
    """What a suite found out about every model.

    Attributes:
        suite: name of the suite.
        models: one report per model, the teacher's first where it was encoded.
        facts: what holds for all models: the data, what was missing, how much was read.
        notes: one line each for whatever a reader must know: sets not found, rows skipped, no teacher.
    """

    suite: str
    models: tuple[ModelReport, ...]
    facts: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> ModelReport:
        """Return the report of the model called ``name``.

        Raises:
            KeyError: if no model of the result has that name.
        """
        for report in self.models:
            if report.name == name:
                return report
        raise KeyError(
            f"no model {name!r} in this result; there are {[report.name for report in self.models]}"
        )

    def to_json(self) -> dict[str, object]:
        """Return the result as a JSON object.

        Keys: ``format`` (version), ``suite``, the suite's facts, ``models`` (see :class:`ModelReport` and the
        suite's scores), ``notes``. Scores are multiplied by 100 where the table shows them so.
        """
        return {
            "format": FORMAT_VERSION,
            "suite": self.suite,
            **self.facts,
            "models": [report.to_json() for report in self.models],
            "notes": list(self.notes),
        }

    def table(self) -> RenderableType:
        """Return the result as something that ``rich.print`` shows: tables, then the notes."""
        from distill.evaluation.table import render

        return render(self)


@dataclass(frozen=True)
class Encoded:
    """Distinct sentences and their vectors.

    Attributes:
        rows: sentence -> row of ``vectors``.
        vectors: (n, d) float32, finite, no row zero.
        seconds: wall time the model took.
    """

    rows: Mapping[str, int]
    vectors: NDArray[np.float32]
    seconds: float

    @property
    def sentences_per_second(self) -> float:
        """Distinct sentences per second of wall time."""
        return len(self.rows) / self.seconds

    def pick(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors of ``texts``, (len(texts), d); KeyError where one was not encoded."""
        picked: NDArray[np.float32] = self.vectors[[self.rows[text] for text in texts]]
        return picked


def encode_distinct(model: EvaluatedModel, texts: Iterable[str], progress: Progress = silent) -> Encoded:
    """Encode each distinct sentence of ``texts`` once.

    Raises:
        DataError: if a vector is zero or not finite; the sentence is named.
    """
    import numpy as np

    # Longest first: chunks are then even in length, and a model too large for the memory fails at once.
    distinct = sorted(dict.fromkeys(texts), key=len, reverse=True)
    if not distinct:
        raise DataError("no sentence to encode; give data that holds some")
    parts = []
    start = time.perf_counter()
    for first in range(0, len(distinct), CHUNK):
        progress(model.name, first, len(distinct))
        parts.append(model.encode(distinct[first : first + CHUNK]))
    seconds = max(time.perf_counter() - start, 1e-9)
    progress(model.name, len(distinct), len(distinct))
    vectors = np.concatenate(parts)
    require_usable(vectors, distinct, model.name)
    return Encoded({text: row for row, text in enumerate(distinct)}, vectors, seconds)


def require_usable(vectors: NDArray[np.float32], texts: Sequence[str], name: str) -> None:
    """Check that every row of ``vectors``, (n, d), has a direction.

    Raises:
        DataError: if a row is zero or not finite; the sentence it belongs to is named.
    """
    import numpy as np

    finite = np.all(np.isfinite(vectors), axis=1)
    bad = ~finite | (np.abs(vectors).max(axis=1) == 0)
    if bad.any():
        row = int(bad.argmax())
        fault = "a zero vector" if finite[row] else "a vector with NaN or infinity"
        raise DataError(
            f"{name} gave {fault} for {int(bad.sum())} of {len(texts)} sentences, "
            f"first for {shorten(texts[row])}: "
            "cosines need finite, non-zero vectors; check the model's weights and its compute dtype"
        )


def unit_rows(vectors: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return ``vectors``, (n, d), scaled to length one, in float64."""
    import numpy as np

    wide = vectors.astype(np.float64)
    unit: NDArray[np.float64] = wide / np.linalg.norm(wide, axis=1, keepdims=True)
    return unit


def shorten(text: str, width: int = 60) -> str:
    """Return ``text`` quoted and cut to ``width`` characters, for messages."""
    return repr(text if len(text) <= width else text[: width - 1] + "…")
