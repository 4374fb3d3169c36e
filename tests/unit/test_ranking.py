"""Ranks and their measures: against cases worked out by hand and against all orders of tied documents."""

from __future__ import annotations

from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distill.evaluation import ranking
from distill.evaluation.ranking import Standing, rank_relevant


def standing(cosines: list[float], gains: dict[int, float]) -> Standing:
    """Return how one query stands whose cosines to the documents are these."""
    angles = np.arccos(np.array(cosines, dtype=np.float64))
    documents = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    query = np.array([[1.0, 0.0]], dtype=np.float32)
    (found,) = rank_relevant(query, documents, [np.array(list(gains))], [np.array(list(gains.values()))])
    return found


def in_all_orders(cosines: list[float], gains: dict[int, float], measure) -> float:
    """Return the mean of a measure of a ranked list over every order that the ties allow."""
    orders = [
        order
        for order in permutations(range(len(cosines)))
        if all(cosines[a] >= cosines[b] for a, b in pairwise(order))
    ]
    return float(np.mean([measure([gains.get(document, 0.0) for document in order]) for order in orders]))


def dcg(gains: list[float], k: int) -> float:
    return sum(gain / np.log2(rank + 1) for rank, gain in enumerate(gains[:k], 1))


def listed(gains: dict[int, float], k: int):
    """The four measures as a textbook defines them of one ranked list of gains."""
    best = sorted(gains.values(), reverse=True)
    return {
        "hit": lambda ranked: float(any(ranked[:k])),
        "recall": lambda ranked: sum(gain > 0 for gain in ranked[:k]) / len(gains),
        "mrr": lambda ranked: 1 / (1 + next(i for i, gain in enumerate(ranked) if gain > 0)),
        "ndcg": lambda ranked: dcg(ranked, k) / dcg(best, k),
    }


def test_without_ties_the_measures_are_those_of_the_ranked_list():
    # By cosine: document 2, 0 (relevant), 3, 1 (relevant).
    found = standing([0.8, 0.1, 0.9, 0.5], {0: 1.0, 1: 1.0})
    assert found.better.tolist() == [1, 3]
    assert found.tied.tolist() == [1, 1]
    assert [found.hit(k) for k in (1, 2, 4)] == [0, 1, 1]
    assert [found.recall(k) for k in (1, 2, 4)] == [0, 0.5, 1]
    assert found.reciprocal_rank() == pytest.approx(0.5)
    ideal = 1 + 1 / np.log2(3)
    assert found.ndcg(10) == pytest.approx((1 / np.log2(3) + 1 / np.log2(5)) / ideal)
    assert found.ndcg(2) == pytest.approx((1 / np.log2(3)) / ideal)


def test_graded_gains_are_linear():
    found = standing([0.9, 0.5], {0: 1.0, 1: 3.0})
    assert found.ndcg(10) == pytest.approx((1 + 3 / np.log2(3)) / (3 + 1 / np.log2(3)))


def test_a_model_that_gives_all_texts_one_vector_gets_what_guessing_gets():
    found = standing([0.7] * 8, {0: 1.0})
    assert found.hit(1) == pytest.approx(1 / 8)
    assert found.recall(4) == pytest.approx(1 / 2)
    assert found.reciprocal_rank() == pytest.approx(np.mean([1 / rank for rank in range(1, 9)]))


def test_a_tie_is_broken_for_nobody_whatever_the_order_of_the_documents():
    assert standing([0.9, 0.9], {0: 1.0}).hit(1) == pytest.approx(0.5)
    assert standing([0.9, 0.9], {1: 1.0}).hit(1) == pytest.approx(0.5)


def test_cosines_that_differ_by_rounding_alone_are_tied():
    found = standing([0.5, 0.5 + 1e-7], {0: 1.0})
    assert (found.better.tolist(), found.tied.tolist()) == ([0], [2])


@given(
    st.lists(st.sampled_from([0.2, 0.5, 0.9]), min_size=1, max_size=6),
    st.data(),
    st.integers(1, 4),
)
def test_measures_are_the_mean_over_all_orders_of_tied_documents(cosines, data, k):
    rows = data.draw(st.sets(st.integers(0, len(cosines) - 1), min_size=1))
    gains = {row: float(data.draw(st.integers(1, 3))) for row in sorted(rows)}
    found = standing(cosines, gains)
    expected = {name: in_all_orders(cosines, gains, measure) for name, measure in listed(gains, k).items()}
    assert found.hit(k) == pytest.approx(expected["hit"])
    assert found.recall(k) == pytest.approx(expected["recall"])
    assert found.reciprocal_rank() == pytest.approx(expected["mrr"])
    assert found.ndcg(k) == pytest.approx(expected["ndcg"])


def test_blocks_of_queries_change_nothing(monkeypatch):
    rng = np.random.default_rng(0)
    queries, documents = (rng.standard_normal((n, 8)).astype(np.float32) for n in (7, 30))
    relevant = [rng.choice(30, 3, replace=False) for _ in range(7)]
    gains = [np.ones(3)] * 7
    whole = rank_relevant(queries, documents, relevant, gains)
    monkeypatch.setattr(ranking, "_BLOCK", 60)
    parts = rank_relevant(queries, documents, relevant, gains)
    assert [one.better.tolist() for one in parts] == [one.better.tolist() for one in whole]


def test_length_of_a_vector_does_not_matter():
    documents = np.array([[10.0, 10.0], [0.1, 0.0]], dtype=np.float32)
    query = np.array([[5.0, 0.0]], dtype=np.float32)
    (found,) = rank_relevant(query, documents, [np.array([1])], [np.ones(1)])
    assert found.hit(1) == 1
