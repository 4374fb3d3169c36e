"""Two models compared on the same files; the command itself is tested with evaluations of runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from suite_helpers import write_tsv

from distill.errors import DataError
from distill.evaluation.models import Model
from distill.evaluation.task import find_suites
from distill.report.compare import compare

WORDS = ["red", "green", "blue", "dog", "cat", "bird", "runs", "sings", "sleeps", "jumps"]


def model(name: str, noise: float) -> Model:
    def encode(texts: list[str]) -> np.ndarray:
        vectors = np.array([[1 + text.count(letter) for letter in "abcdeghijlnoprst"] for text in texts])
        drawn = [np.random.default_rng(list(text.encode())).standard_normal(16) for text in texts]
        return (vectors + noise * np.array(drawn)).astype(np.float32)

    return Model(name, encode)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rng, rows = np.random.default_rng(0), []
    for number in range(80):
        words = rng.choice(WORDS, 5, replace=False)
        other = [word if rng.random() < number / 80 else rng.choice(WORDS) for word in words]
        rows.append(("s", sum(map(str.__eq__, words, other)), " ".join(words), " ".join(other)))
    write_tsv(tmp_path / "stsb_test.tsv", "subset score sentence1 sentence2", rows)
    return tmp_path


def test_a_suite_without_items_is_refused_by_name_and_noted_among_all(data):
    models = model("good", 0.0), model("bad", 5.0)
    with pytest.raises(DataError, match="geometry"):
        compare(*models, ["geometry"], data=data)
    found = compare(*models, ["all"], data=data, draws=300)
    assert (found.a, found.b) == ("good", "bad")
    ((row,),) = found.suites.values()
    assert (row.items, row.verdict) == (80, "A is better")
    assert any("not compared" in note and "geometry" in note for note in found.notes)


def test_contradictory_arguments_are_an_error(data):
    with pytest.raises(DataError, match="with itself"):
        compare("some/model", Path("some/model"), data=data)
    with pytest.raises(DataError, match="give it alone"):
        find_suites(["all", "sts"])
