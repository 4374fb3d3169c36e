"""Two models on the same items: a real difference is found, one that is none is not."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console
from scipy.stats import spearmanr

from distill.cli import compare as compare_module
from distill.cli.main import cli
from distill.errors import DataError
from distill.evaluation import EvaluatedModel, comparison, evaluate
from distill.evaluation.comparison import DRAWS, compare, compare_scores, holm
from distill.evaluation.scores import MeanOutcomes, PairOutcomes, SetScore, SetScores
from distill.report.compare import comparison_tables
from distill.report.writers import terminal_tables


def sets(gold: np.ndarray, *predicted: np.ndarray) -> SetScores:
    found = {}
    for number, one in enumerate(predicted):
        value = 100 * float(spearmanr(gold, one).statistic)
        found[f"set{number}"] = SetScore(
            f"Set {number}", "spearman", value, len(gold), outcomes=PairOutcomes(gold, one)
        )
    return SetScores(found, len(found))


@pytest.fixture
def gold() -> np.ndarray:
    return np.random.default_rng(0).random(300)


def noisy(gold: np.ndarray, seed: int, noise: float) -> np.ndarray:
    return gold + noise * np.random.default_rng(seed).standard_normal(len(gold))


def test_a_real_difference_is_found_and_an_absent_one_is_not(gold):
    hard = noisy(gold, 1, 0.4)  # what is hard in the pairs is so for all models
    a = sets(gold, hard, noisy(hard, 2, 0.05))
    b = sets(gold, noisy(hard, 3, 0.3), noisy(hard, 4, 0.05))
    found = compare_scores("sts", a, b, draws=500)
    real, absent = found.sets["set0"], found.sets["set1"]
    assert real.verdict == "A is better"
    assert real.p is not None
    assert real.p <= 0.01
    assert real.interval is not None
    assert 0 < real.interval[0] < real.difference < real.interval[1]
    assert absent.verdict == "no difference shown"
    assert absent.interval is not None
    assert absent.interval[0] < 0 < absent.interval[1]
    assert found.average is not None
    assert found.average.difference == pytest.approx(a.average - b.average)
    turned = compare_scores("sts", b, a, draws=500)
    assert turned.sets["set0"].verdict == "B is better"
    assert turned.sets["set0"].p == real.p


def test_it_says_there_is_a_difference_where_there_is_none_no_more_often_than_it_ought_to():
    rng = np.random.default_rng(5)
    told = 0
    for trial in range(100):
        a, b = ((rng.random(200) < 0.6).astype(float) for _ in "ab")
        one, other = (
            SetScores({"x": SetScore("X", "accuracy", 100 * v.mean(), 200, outcomes=MeanOutcomes(v))}, 1)
            for v in (a, b)
        )
        found = compare_scores("transfer", one, other, draws=300, seed=trial)
        assert found.average is None
        told += found.sets["x"].verdict != "no difference shown"
    assert told <= 11


def test_items_in_common_make_small_differences_visible(gold):
    hard = noisy(gold, 1, 0.6)
    a, b = sets(gold, hard), sets(gold, noisy(hard, 2, 0.1))
    paired = compare_scores("sts", a, b, draws=400).sets["set0"].interval
    shuffled = np.random.default_rng(9).permutation(300)
    apart = replace(b.sets["set0"], outcomes=PairOutcomes(gold, noisy(hard, 2, 0.1)[shuffled]))
    unpaired = compare_scores("sts", a, SetScores({"set0": apart}, 1), draws=400).sets["set0"].interval
    assert paired is not None
    assert unpaired is not None
    assert paired[1] - paired[0] < 0.5 * (unpaired[1] - unpaired[0])


def test_holm_by_hand():
    # Smallest times three, next times two, largest times one; never falling.
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([None, 0.02]) == [None, 0.02]
    assert holm([]) == []


def test_a_difference_that_the_number_of_sets_explains_is_not_called_one(gold):
    figures = {"label": "S", "measure": "spearman", "items": 5, "a": 2.0, "b": 1.0, "interval": (0.1, 2.0)}
    one = comparison.Difference(**figures, p=0.02, p_corrected=0.14)
    assert one.verdict == "no difference shown"
    assert comparison.Difference(**figures, p=0.02, p_corrected=0.02).verdict == "A is better"
    assert one.to_json()["p"] == 0.02
    assert one.to_json()["p_corrected"] == 0.14


def test_other_items_are_refused(gold):
    a = sets(gold, noisy(gold, 1, 0.1))
    with pytest.raises(DataError, match="not scored on the same items"):
        compare_scores("sts", a, sets(gold[:-1], noisy(gold, 1, 0.1)[:-1]))
    with pytest.raises(DataError, match="not scored on the same items"):
        compare_scores("sts", a, sets(gold[::-1], noisy(gold, 1, 0.1)))
    with pytest.raises(DataError, match="one model was scored on set0, the other on set0, set1"):
        compare_scores("sts", a, sets(gold, noisy(gold, 1, 0.1), gold))
    without = SetScores({"set0": replace(a.sets["set0"], outcomes=None)}, 1)
    with pytest.raises(DataError, match="outcomes were not kept"):
        compare_scores("sts", a, without)


def test_as_many_items_of_other_texts_are_refused(gold):
    a = sets(gold, noisy(gold, 1, 0.1))

    def of(items: str | None, accuracy: bool = False) -> SetScores:
        score = a.sets["set0"]
        outcomes = MeanOutcomes(gold, items=items) if accuracy else replace(score.outcomes, items=items)
        return SetScores({"set0": replace(score, outcomes=outcomes)}, 1)

    for accuracy in (False, True):
        with pytest.raises(DataError, match="spearman, of other texts"):
            compare_scores("sts", of("x", accuracy), of("y", accuracy), draws=20)
        compare_scores("sts", of("x", accuracy), of("x", accuracy), draws=20)
        # What was kept before there were such digests is compared by number.
        compare_scores("sts", of("x", accuracy), of(None, accuracy), draws=20)


def test_evaluations_say_which_items_they_are_of(data):
    first, again = (evaluate(model(name, 1.0), data=data, bootstrap=0).models[0].scores for name in "ab")
    path = data / "stsb_test.tsv"
    path.write_text(path.read_text(encoding="utf-8").replace("dog", "fox"), encoding="utf-8")
    other = evaluate(model("a", 1.0), data=data, bootstrap=0).models[0].scores
    assert isinstance(first, SetScores)
    assert isinstance(other, SetScores)
    assert compare_scores("sts", first, again, draws=20).sets["stsb"].items == 80
    with pytest.raises(DataError, match="of other texts"):
        compare_scores("sts", first, other, draws=20)


WORDS = ["red", "green", "blue", "dog", "cat", "bird", "runs", "sings", "sleeps", "jumps"]


def model(name: str, noise: float) -> EvaluatedModel:
    def encode(texts):
        vectors = np.array([[1 + text.count(letter) for letter in "abcdeghijlnoprst"] for text in texts])
        rng = np.random.default_rng(7)
        return (vectors + noise * rng.standard_normal(vectors.shape)).astype(np.float32)

    return EvaluatedModel(name, 1000, 4.0, 16, encode)


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
    (suite,) = found.suites
    assert suite.sets["stsb"].verdict == "A is better"
    assert suite.sets["stsb"].items == 80
    facts = json.loads(json.dumps(found.to_json()))
    assert facts["suites"][0]["sets"]["stsb"]["a"] == round(suite.sets["stsb"].a, 4)
    assert facts["suites"][0]["average"] is None
    assert facts["draws"] == 300
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(terminal_tables(comparison_tables(found), found.notes))
    shown = console.export_text()
    assert "better" in shown
    assert f"{suite.sets['stsb'].a:.2f}" in shown
    assert "Holm" in shown


def test_a_suite_without_items_is_refused_by_name_and_told_of_among_all(data):
    with pytest.raises(DataError, match="geometry measures models as a whole"):
        compare(model("a", 0.0), model("b", 1.0), suites=["geometry"], data=data)
    found = compare(model("a", 0.0), model("b", 1.0), suites=None, data=data, draws=100)
    assert [one.suite for one in found.suites] == ["sts"]
    assert any(note.startswith("not compared") and "geometry" in note for note in found.notes)


def test_draws_too_few_to_show_anything_are_told_of(data):
    models = model("good", 0.0), model("bad", 5.0)
    few, enough = (compare(*models, data=data, draws=draws) for draws in (39, 100))
    assert any("39 draws are too few" in note for note in few.notes)
    assert few.suites[0].sets["stsb"].verdict == "no difference shown"
    assert not any("too few" in note for note in enough.notes)
    assert enough.suites[0].sets["stsb"].verdict == "A is better"


def test_a_model_is_not_compared_with_itself(data):
    with pytest.raises(DataError, match="with itself"):
        compare("some/model", Path("some/model"), data=data)


def test_the_command(data, monkeypatch, tmp_path):
    models = {"good": model("good", 0.0), "bad": model("bad", 5.0)}
    seen = {}

    def with_models(a, b, **options):
        seen.update(options)
        return compare(models[a], models[b], **options)

    monkeypatch.setattr(comparison, "compare", with_models)
    words = ["compare", "good", "bad", "--data", str(data), "--bootstrap", "200", "--seed", "3", "--json"]
    out = tmp_path / "found.json"
    result = CliRunner().invoke(cli, [*words, "--out", str(out), "--no-contamination", "--again"])
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert facts == json.loads(out.read_text(encoding="utf-8"))
    assert facts["suites"][0]["sets"]["stsb"]["verdict"] == "A is better"
    assert (seen["draws"], seen["seed"], seen["contamination"], seen["again"]) == (200, 3, False, True)
    shown = CliRunner().invoke(cli, ["compare", "good", "bad", "--data", str(data)])
    assert "good" in shown.stdout
    assert seen["draws"] == DRAWS == compare_module._DRAWS
    both = CliRunner().invoke(cli, [*words, "--suite", "all", "--suite", "sts"])
    assert both.exit_code == 2
