"""Classifiers on frozen vectors: protocols against scikit-learn, nothing chosen on scored examples."""

from __future__ import annotations

from collections import Counter as Count
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from suite_helpers import Counted, vectors_of, write_tsv

from distill.errors import DataError
from distill.evaluation import logistic
from distill.evaluation.files import Examples
from distill.evaluation.logistic import FOLDS, assign_folds, dev_chosen, nested_folds, train_folds
from distill.evaluation.probes import (
    Probe,
    draw_pairs,
    entailment_features,
    hold_out,
    pair_features,
    read_nli,
    read_transfer,
    score_probe,
)
from distill.evaluation.task import SuiteOptions, get_suite

STRENGTHS = (2.0**-10, 2.0**-2)


@pytest.fixture(autouse=True)
def _few_strengths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logistic, "STRENGTHS", STRENGTHS)


def labelled(count: int, seed: int = 0, width: int = 6) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=count)
    return (rng.normal(size=(count, width)) + 1.2 * np.eye(3, width)[labels]).astype(np.float32), labels


def reference(train: tuple, test: np.ndarray, strength: float) -> np.ndarray:
    model = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=1000))
    return model.fit(*train).predict(test)


def best(x: np.ndarray, y: np.ndarray, splits: list[tuple[np.ndarray, np.ndarray]]) -> float:
    """The strength with the most right answers for the second of each split."""
    right = [
        sum(int((reference((x[a], y[a]), x[b], strength) == y[b]).sum()) for a, b in splits)
        for strength in STRENGTHS
    ]
    return STRENGTHS[int(np.argmax(right))]


def test_folds_spread_each_label_evenly_and_depend_on_the_seed_alone() -> None:
    labels = np.repeat([0, 1, 2], [57, 30, 13])
    fold = assign_folds(labels, 0)
    for some in (fold, *(fold[labels == label] for label in (0, 1, 2))):
        assert np.ptp(np.bincount(some, minlength=FOLDS)) <= 1
    assert np.array_equal(fold, assign_folds(labels, 0))
    assert not np.array_equal(fold, assign_folds(labels, 1))


def test_folds_of_the_training_examples_choose_the_strength_as_scikit_learn_would() -> None:
    (x, y), (test, _) = labelled(120), labelled(40, 1)
    fold = assign_folds(y, 0)
    strength = best(x, y, [(fold != k, fold == k) for k in range(FOLDS)])
    predicted, strengths = train_folds(x, y, test, 0)
    assert strengths == (strength,)
    assert np.array_equal(predicted, reference((x, y), test, strength))


@pytest.mark.parametrize("most", [30_000, 60])
def test_dev_examples_choose_the_strength(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(logistic, "MOST_TO_CHOOSE", most)
    (x, y), (dev, dev_y), (test, _) = labelled(120), labelled(50, 1), labelled(40, 2)
    drawn = np.sort(np.random.default_rng(0).permutation(len(y))[:most])
    strength = best(np.vstack([x, dev]), np.hstack([y, dev_y]), [(drawn, np.arange(120, 170))])
    predicted, strengths = dev_chosen(x, y, dev, dev_y, test, 0)
    assert strengths == (strength,)
    assert np.array_equal(predicted, reference((x, y), test, strength))


def test_nested_folds_answer_each_example_by_a_classifier_that_has_not_seen_it() -> None:
    x, y = labelled(100)
    fold, k = assign_folds(y, 0), 7
    predicted, strengths = nested_folds(x, y, 0)
    inner = [((fold != k) & (fold != j), fold == j) for j in range(FOLDS) if j != k]
    assert strengths[k] == best(x, y, inner)
    expected = reference((x[fold != k], y[fold != k]), x[fold == k], strengths[k])
    assert np.array_equal(predicted[fold == k], expected)


def test_features_of_pairs() -> None:
    u, v = vectors_of(["a", "b"]), vectors_of(["c", "d"])
    assert np.array_equal(pair_features(u, v), np.hstack([abs(u - v), u * v]))
    assert np.array_equal(entailment_features(u, v), np.hstack([u, v, u * v, abs(u - v)]))


def transfer_file(folder: Path, name: str, splits: dict[str, int], columns: str = "text") -> None:
    sides = range(len(columns.split()))
    rows = [
        (split, i % 2, *(f"{split} {i} {side}" for side in sides))
        for split, count in splits.items()
        for i in range(count)
    ]
    if splits.keys() == {"all"}:
        write_tsv(folder / f"{name}.tsv", f"label {columns}", [row[1:] for row in rows])
    else:
        write_tsv(folder / f"{name}.tsv", f"split label {columns}", rows)


def test_transfer_reads_the_sets_that_are_there_and_scores_accuracy_and_f1(tmp_path: Path) -> None:
    transfer_file(tmp_path, "senteval_mr", {"all": 40})
    transfer_file(tmp_path, "senteval_mrpc", {"train": 30, "val": 10, "test": 12}, "text text2")
    transfer_file(tmp_path, "glue_sst2", {"train": 30, "dev": 10, "test": 10})
    result = get_suite("transfer").run(Counted(), tmp_path, SuiteOptions())
    assert list(result.figures) == ["mr", "sst2", "mrpc"]
    assert set(result.missing) == {"CR", "SUBJ", "MPQA", "TREC"}
    mrpc = result.figures["mrpc"]
    assert mrpc.items == 12
    right = mrpc.outcomes.values > 0
    gold = np.arange(12) % 2
    assert mrpc.others["f1"] == pytest.approx(100 * f1_score(gold, np.where(right, gold, 1 - gold)))
    assert mrpc.value == pytest.approx(100 * right.mean())
    transfer_file(tmp_path, "senteval_sst2_sentences", {"train": 20, "dev": 10, "test": 10})
    assert {one.name: len(one.learnt) for one in read_transfer(tmp_path)}["sst2"] == 30
    (tmp_path / "glue_sst2.tsv").unlink()
    assert {one.name: len(one.learnt) for one in read_transfer(tmp_path)}["sst2"] == 20


def test_labels_with_too_few_examples_are_an_error(tmp_path: Path) -> None:
    write_tsv(tmp_path / "senteval_mr.tsv", "label text", [(int(i < 3), f"t{i}") for i in range(40)])
    with pytest.raises(DataError, match="MR"):
        read_transfer(tmp_path)


def test_unlabelled_rows_are_left_out_and_leaks_are_reported(tmp_path: Path) -> None:
    rows = [("train", i % 2, f"Text  {i}") for i in range(30)]
    rows += [("test", 0, "text 1"), ("test", 7, "new"), ("test", "-", "x"), ("odd", 1, "y"), ("test", 1, " ")]
    write_tsv(tmp_path / "senteval_trec.tsv", "split label text", rows)
    (probe,) = read_transfer(tmp_path)
    assert len(probe.scored) == 2
    assert sum(probe.skipped.values()) == 3
    notes = " ".join(probe.notes())
    assert "1 of 2 scored examples are also learnt from" in notes
    assert "1 labels" in notes


def snli(count: int) -> Examples:
    texts = [(f"premise {i // 3}", f"hypothesis {i}") for i in range(count)]
    return Examples(texts, [("entailment", "neutral", "contradiction")[i % 3] for i in range(count)])


def test_snli_draws_and_holds_out_whole_premises() -> None:
    whole = snli(300)
    drawn = draw_pairs(whole, 90, seed=0)
    assert len(drawn) == 90
    assert set(Count(texts[0] for texts in drawn.texts).values()) == {3}
    kept, held = hold_out(drawn, 0)
    assert {texts[0] for texts in kept.texts}.isdisjoint(texts[0] for texts in held.texts)
    assert len(held) == 9
    assert draw_pairs(whole, 90, seed=1).texts != drawn.texts


def test_snli_is_scored_on_its_test_file_or_its_dev_file_with_a_note(tmp_path: Path) -> None:
    def write(name: str, count: int) -> None:
        one = snli(count)
        rows = [(label, *texts) for label, texts in zip(one.labels, one.texts, strict=True)]
        write_tsv(tmp_path / f"{name}.tsv", "label premise hypothesis", rows)

    write("snli_train100k", 300)
    write("snli_dev", 30)
    (probe,) = read_nli(tmp_path, 0, 120)
    assert any("snli_dev.tsv" in note and "of 300" in note for note in probe.notes())
    write("snli_test", 60)
    assert len(read_nli(tmp_path, 0, 0)[0].scored) == 60


def test_separable_vectors_are_classified_and_random_ones_are_not() -> None:
    texts = [(f"t{i}",) for i in range(100)]
    probe = Probe("x", "X", {"all": Examples(texts, [str(i % 2) for i in range(100)])})
    sides = {text: int(text[1:]) % 2 for (text,) in texts}
    apart, _ = score_probe(probe, lambda side: np.array([[sides[t], 1.0] for t in side], np.float32), 0)
    chance, _ = score_probe(probe, vectors_of, 0)
    assert apart.value == 100
    assert 30 < chance.value < 70
