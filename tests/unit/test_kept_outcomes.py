"""Outcomes that evaluations keep: of every measure, and what older files hold of them."""

from __future__ import annotations

import numpy as np
import pytest
from evaluation_helpers import letters_model, read_task, score_task, write_rows
from kept_helpers import Bench

from distill.evaluation import evaluate
from distill.evaluation.bootstrap import with_intervals
from distill.evaluation.kept import place_of, read_kept
from embedcache.fsio import read_sealed_json, write_sealed_json


@pytest.fixture
def own(tmp_path, monkeypatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def test_intervals_of_all_measures_are_drawn_again_from_what_is_kept(own):
    first = own.evaluate(bootstrap=60).models[1].scores.sets["stsb"]
    own.encoded()
    again = own.evaluate(bootstrap=60).models[1].scores.sets["stsb"]
    assert own.encoded() == {}
    assert set(first.intervals) == {"pearson", "spearman_mean_of_subsets"}
    assert again.intervals == first.intervals
    assert own.evaluate(bootstrap=0).models[1].scores.sets["stsb"].intervals == {}


def test_intervals_of_a_whole_model_are_drawn_again_from_what_is_kept(own):
    first = own.evaluate(suite="geometry", bootstrap=60).models[1].scores
    own.encoded()
    again = own.evaluate(suite="geometry", bootstrap=60).models[1].scores
    assert own.encoded() == {}
    assert again.intervals == first.intervals
    assert None not in first.intervals.values()


@pytest.mark.parametrize("suite", ["sts", "geometry"])
def test_intervals_of_the_same_draws_are_taken_from_what_is_kept(own, suite, monkeypatch):
    first = own.evaluate(suite=suite, bootstrap=60).models[1]

    def refuse(*_: object) -> None:
        raise AssertionError("drawn again")

    monkeypatch.setattr("distill.evaluation.bootstrap._taken", refuse)
    again = own.evaluate(suite=suite, bootstrap=60).models[1]
    assert again.scores.to_json() == first.scores.to_json()
    assert again.retention_interval == first.retention_interval
    assert (first.retention_interval is not None) == (suite == "sts")
    with pytest.raises(AssertionError, match="drawn again"):
        own.evaluate(suite=suite, bootstrap=61)


def test_an_older_evaluation_can_be_read_but_is_made_anew(own):
    own.evaluate()
    own.encoded()
    path = place_of(own.run, "sts")
    value = read_sealed_json(path)
    del value["digest"]["outcomes"]
    for _, score in value["model"]["report"]["scores"]["sets"]["mapping"]:
        del score["intervals"]
        del score["outcomes"]["subsets"]
    write_sealed_json(path, value)
    old = read_kept(own.run, "sts")
    assert old is not None
    # What cannot be told from it has no interval.
    assert set(with_intervals(old.model.report.scores, 50).sets["stsb"].intervals) == {"pearson"}
    own.evaluate()
    assert own.encoded()["first"] > 0
    assert "outcomes" in read_kept(own.run, "sts").digest


def test_every_measure_of_a_ranked_set_has_an_interval(tmp_path):
    rng = np.random.default_rng(0)
    words = ["".join(chr(97 + c) for c in rng.integers(26, size=6)) for _ in range(40)]
    write_rows(tmp_path, "x_corpus", "doc_id | text", *(f"d{n} | {w}" for n, w in enumerate(words)))
    write_rows(tmp_path, "x_queries", "query_id | text", *(f"q{n} | {w[:2]}" for n, w in enumerate(words)))
    write_rows(
        tmp_path, "x_qrels", "query_id | doc_id | score", *(f"q{n} | d{n} | 1" for n in range(len(words)))
    )
    scores = score_task(read_task("retrieval", tmp_path), letters_model())
    score = with_intervals(scores, 200).sets["x"]
    assert set(score.intervals) == set(score.others)
    for name, (low, high) in score.intervals.items():
        assert low <= score.others[name] <= high, name
    low, high = score.intervals["mrr"]
    assert low < score.others["mrr"] < high


def test_f1_has_an_interval_of_its_own(tmp_path):
    rng = np.random.default_rng(1)
    rows = []
    for number in range(120):
        first = "".join(chr(97 + c) for c in rng.integers(26, size=8))
        same = rng.random() < 0.7
        second = first[::-1] if same else "".join(chr(97 + c) for c in rng.integers(26, size=8))
        rows.append(
            f"{'train' if number % 2 else 'test'} | {int(same != (rng.random() < 0.2))} | {first} | {second}"
        )
    write_rows(tmp_path, "senteval_mrpc", "split | label | text | text2", *rows)
    result = evaluate(letters_model(), suite="transfer", data=tmp_path, bootstrap=100)
    score = result.models[0].scores.sets["mrpc"]
    low, high = score.intervals["f1"]
    assert low <= score.others["f1"] <= high
    assert (low, high) != score.interval
