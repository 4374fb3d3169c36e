"""Models and test files for tests of evaluation."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from distill.evaluation.models import Model, Vectors


def vectors_of(texts: Sequence[str], width: int = 8, salt: str = "") -> Vectors:
    """Return vectors that depend on each text alone, (n, width) float32."""
    seeds = (int(hashlib.sha256(f"{salt}{text}".encode()).hexdigest()[:8], 16) for text in texts)
    rows = [np.random.default_rng(seed).normal(size=width) for seed in seeds]
    return np.array(rows, np.float32).reshape(len(texts), width)


class Counted:
    """An encoder that remembers the texts it was given.

    Args:
        width: width of its vectors.
        salt: tells its vectors from those of others.
    """

    def __init__(self, width: int = 8, salt: str = "") -> None:
        self.seen: list[str] = []
        self._width, self._salt = width, salt

    def __call__(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of ``texts``."""
        self.seen += texts
        return vectors_of(texts, self._width, self._salt)


def model(name: str = "model", width: int = 8, salt: str = "") -> Model:
    """Return a model in memory."""
    return Model(name, Counted(width, salt or name))


def write_tsv(path: Path, header: str, rows: Iterable[Sequence[object]]) -> Path:
    """Write a test file; ``header`` has blanks between the columns."""
    lines = ["\t".join(header.split()), *("\t".join(map(str, row)) for row in rows)]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def write_pairs(path: Path, count: int = 20, subset: str = "all") -> Path:
    """Write scored pairs."""
    rows = [(subset, round(5 * i / count, 2), f"left {i}", f"right {i * 7 % count}") for i in range(count)]
    return write_tsv(path, "subset score sentence1 sentence2", rows)
