"""``distill compare``: two models on the same files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from distill.cli.main import cli
from distill.errors import DataError
from distill.evaluation.models import Model
from distill.report import compare as report
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
    rng = np.random.default_rng(0)
    lines = ["subset\tscore\tsentence1\tsentence2"]
    for number in range(80):
        words = rng.choice(WORDS, 5, replace=False)
        other = [word if rng.random() < number / 80 else rng.choice(WORDS) for word in words]
        same = sum(map(str.__eq__, words, other))
        lines.append(f"s\t{same}\t{' '.join(words)}\t{' '.join(other)}")
    (tmp_path / "stsb_test.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path


def test_models_are_compared_on_files(data):
    found = compare(model("good", 0.0), model("bad", 5.0), data=data, draws=300)
    assert (found.a, found.b) == ("good", "bad")
    (row,) = found.suites["sts"]
    assert (row.items, row.verdict) == (80, "A is better")


def test_a_suite_without_items_is_refused_by_name_and_noted_among_all(data):
    models = model("a", 0.0), model("b", 1.0)
    with pytest.raises(DataError, match="geometry"):
        compare(*models, ["geometry"], data=data)
    found = compare(*models, None, data=data, draws=100)
    assert list(found.suites) == ["sts"]
    assert any("not compared" in note and "geometry" in note for note in found.notes)
    with pytest.raises(DataError, match="with itself"):
        compare("some/model", Path("some/model"), data=data)


def test_the_command(data, monkeypatch, tmp_path):
    models = {"good": model("good", 0.0), "bad": model("bad", 5.0)}
    monkeypatch.setattr(
        report, "compare", lambda a, b, *rest, **more: compare(models[a], models[b], *rest, **more)
    )
    words = ["compare", "good", "bad", "--data", str(data), "--bootstrap", "200"]
    result = CliRunner().invoke(cli, [*words, "--json", "--out", str(tmp_path / "found.json")])
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert facts == json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert facts["suites"]["sts"][0]["verdict"] == "A is better"
    shown = CliRunner().invoke(cli, words).stdout
    assert "good" in shown
    assert f"{facts['suites']['sts'][0]['a']:.2f}" in shown
    assert CliRunner().invoke(cli, [*words, "--suite", "all", "--suite", "sts"]).exit_code == 2
