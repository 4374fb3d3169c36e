"""What tests of suites share: test files, models whose vectors are known, one task's scores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from distill.evaluation.encoding import encode_distinct
from distill.evaluation.old_init import EvaluatedModel
from distill.evaluation.suites import SUITES
from distill.evaluation.tasks import Request, Subject, Task


def write_rows(folder: Path, stem: str, header: str, *rows: str) -> Path:
    """Write a test file; blanks around ``|`` stand for a tab."""
    path = folder / f"{stem}.tsv"
    lines = [line.replace(" | ", "\t") for line in (header, *rows)]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="")
    return path


def model_of(vectors: dict[str, Sequence[float]], name: str = "student") -> EvaluatedModel:
    """Return a model that gives each text the vector it has in ``vectors``."""
    width = len(next(iter(vectors.values())))

    def encode(texts) -> np.ndarray:
        return np.array([vectors[text] for text in texts], dtype=np.float32)

    return EvaluatedModel(name, 1000, 4.0, width, encode)


def letters_model(name: str = "student") -> EvaluatedModel:
    """Return a model whose vectors count letters."""

    def encode(texts) -> np.ndarray:
        return np.array(
            [[1 + text.lower().count(chr(97 + i)) for i in range(26)] for text in texts], dtype=np.float32
        )

    return EvaluatedModel(name, 1000, 4.0, 26, encode)


def read_task(suite: str, folder: Path) -> Task:
    """Read the data of a suite."""
    return SUITES[suite].read(Request(models=(), data=folder))


def score_task(task: Task, model: EvaluatedModel, notes: list[str] | None = None) -> Any:
    """Score one model on one task."""
    subject = Subject(model, model, encode_distinct(model, task.texts()))
    return task.score(subject, [] if notes is None else notes)
