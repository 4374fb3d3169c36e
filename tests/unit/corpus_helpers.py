"""Small corpora for the tests of the corpus."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from embedcache.corpus import part
from embedcache.corpus.corpus import Corpus
from embedcache.corpus.readers import ReadReport, RowBatch
from embedcache.corpus.store import store_corpus
from embedcache.testing import sentences

TEXTS = [*sentences(8), "Žluťoučký kůň 🐎", "  blanks kept  "]
IDS = [f"id-{number}" for number in range(10)]
LABELS = [number % 3 for number in range(10)]


def small_parts(monkeypatch: pytest.MonkeyPatch, *, rows: int = 4) -> None:
    """Let parts end after ``rows`` rows."""
    monkeypatch.setattr(part, "PART_ROWS", rows)


def cut(
    texts: list[str], ids: list[str] | None = None, labels: list[Any] | None = None, *, rows: int = 3
) -> Iterator[RowBatch]:
    """Yield the rows in batches of ``rows``."""
    edges = [*range(0, len(texts), rows), len(texts)]
    for a, b in pairwise(edges):
        yield RowBatch(texts[a:b], ids and ids[a:b], labels and labels[a:b])


def stored(
    folder: Path,
    *columns: Any,
    name: str = "corpus",
    rows: int = 3,
    replace: bool = False,
    bytes_: int | None = None,
) -> Corpus:
    """Store texts, ids and labels as a corpus; parts end at ``bytes_`` of text."""
    with pytest.MonkeyPatch.context() as patch:
        if bytes_ is not None:
            patch.setattr(part, "PART_BYTES", bytes_)
        corpus, _ = store_corpus(folder, name, cut(*columns, rows=rows), ReadReport(), replace=replace)
    return corpus


def content(folder: Path) -> dict[str, bytes]:
    """Return the files below ``folder``: path -> bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Failing:
    """Hook of write steps that counts them, and fails at step ``after`` and every later one; -1: never."""

    def __init__(self, after: int, error: BaseException | None = None) -> None:
        self.after, self.steps = after, 0
        self.error = error or OSError(errno.ENOSPC, "No space left on device")

    def __call__(self, step: str, path: Path) -> None:
        """Count a step."""
        self.steps += 1
        if 0 <= self.after < self.steps:
            raise self.error
