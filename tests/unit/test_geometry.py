"""The geometry suite, against figures worked out by hand and the textbook formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
from evaluation_helpers import letters_model, read_task, write_rows

from distill.errors import DataError
from distill.evaluation import evaluate, geometry
from distill.evaluation.geometry import score_geometry
from distill.evaluation.tasks import NotThereError

NONE = np.empty((0, 2), dtype=np.float32)
HEADER = "subset | score | sentence1 | sentence2"


def test_two_opposite_vectors():
    scores = score_geometry(np.array([[2.0, 0.0], [-3.0, 0.0]], dtype=np.float32), NONE, NONE)
    assert scores.alignment is None
    assert scores.uniformity == pytest.approx(-2 * 4)
    assert scores.anisotropy == pytest.approx(-1)
    assert scores.effective_rank == pytest.approx(1)


def test_orthogonal_vectors_use_every_dimension():
    scores = score_geometry(np.eye(4, dtype=np.float32), np.eye(4)[:1], np.eye(4)[1:2])
    assert scores.alignment == pytest.approx(2)
    assert scores.uniformity == pytest.approx(-4)
    assert scores.anisotropy == pytest.approx(0)
    assert scores.effective_rank == pytest.approx(4)


def test_equals_the_formulas_pair_by_pair(monkeypatch):
    rng = np.random.default_rng(1)
    vectors = rng.standard_normal((23, 6)).astype(np.float32) + 0.5
    left, right = rng.standard_normal((2, 5, 6)).astype(np.float32)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    pairs = [(unit[i], unit[j]) for i in range(23) for j in range(23) if i != j]
    spread = np.linalg.svd(unit, compute_uv=False)
    shares = spread / spread.sum()
    monkeypatch.setattr(geometry, "_BLOCK", 7)
    scores = score_geometry(vectors, left, right)
    assert scores.uniformity == pytest.approx(
        math.log(np.mean([math.exp(-2 * ((a - b) ** 2).sum()) for a, b in pairs])), rel=1e-5
    )
    assert scores.anisotropy == pytest.approx(np.mean([a @ b for a, b in pairs]), rel=1e-5)
    assert scores.effective_rank == pytest.approx(math.exp(-(shares * np.log(shares)).sum()), rel=1e-5)
    apart = left / np.linalg.norm(left, axis=1)[:, None] - right / np.linalg.norm(right, axis=1)[:, None]
    assert scores.alignment == pytest.approx((apart**2).sum(axis=1).mean(), rel=1e-5)


def test_a_collapsed_model_shows():
    scores = score_geometry(np.ones((5, 3), dtype=np.float32), NONE, NONE)
    assert scores.anisotropy == pytest.approx(1)
    assert scores.effective_rank == pytest.approx(1, abs=1e-5)


def test_one_sentence_is_refused():
    with pytest.raises(DataError, match="1 distinct sentences"):
        score_geometry(np.ones((1, 3), dtype=np.float32), NONE, NONE)


def test_similar_pairs_are_those_of_a_score_above_four(tmp_path):
    write_rows(
        tmp_path,
        "stsb_test",
        HEADER,
        *("s | 4.1 | one | two", "s | 4.0 | three | four", "s | 5 | one | five", "s | 5 | one | five"),
        *("s |  | six | seven", "s | nan | six | seven", "s | 5 |  | seven"),
    )
    task = read_task("geometry", tmp_path)
    assert task.similar() == [("one", "two"), ("one", "five"), ("one", "five")]
    # Each sentence once: a zero distance of a sentence to itself would be no pair.
    assert task.texts() == ["one", "three", "two", "four", "five"]
    assert task.facts["similar_pairs"] == 3
    assert any("3 rows skipped (empty sentence 1, no score 2)" in note for note in task.notes)
    assert any("1 similar pairs occur before" in note for note in task.notes)


def test_without_a_similar_pair_there_is_no_alignment_and_it_is_said(tmp_path):
    write_rows(tmp_path, "stsb_test", HEADER, "s | 1 | one | two", "s | 2 | three | four")
    result = evaluate(letters_model(), suite="geometry", data=tmp_path)
    report = result.to_json()["models"][0]
    assert report["alignment"] is None
    assert report["uniformity"] < 0
    assert report["retention"] is None
    assert any("no alignment" in note for note in result.notes)


def test_dev_stands_in_for_test(tmp_path):
    write_rows(tmp_path, "stsb_dev", HEADER, "s | 5 | one | two")
    assert read_task("geometry", tmp_path).facts["data"].endswith("stsb_dev.tsv")
    write_rows(tmp_path, "stsb_test", HEADER, "s | 5 | three | four")
    assert read_task("geometry", tmp_path).facts["data"].endswith("stsb_test.tsv")


def test_a_folder_without_sts_benchmark_is_not_there(tmp_path):
    with pytest.raises(NotThereError, match=r"stsb_test\.tsv and stsb_dev\.tsv"):
        read_task("geometry", tmp_path)
