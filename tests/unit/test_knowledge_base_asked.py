"""What the graph finds of a student's own vectors, beside exact search."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from knowledge_base_helpers import clusters, contracts, make_cache, make_run

from distill.knowledge_base.asked import Asked, compare_answers
from distill.knowledge_base.base import KnowledgeBase
from distill.knowledge_base.build import build_base
from distill.knowledge_base.index import IndexSettings, NeighbourIndex
from distill.knowledge_base.recall import Recall, are_among
from distill.knowledge_base.vote import mixed, neighbour_vote, softmax

ROWS, WIDTH, QUERIES, K, BETA = 3000, 24, 200, 10, 0.3


@pytest.fixture(scope="module")
def asked_from_outside(tmp_path_factory: pytest.TempPathFactory) -> tuple[KnowledgeBase, np.ndarray]:
    """A base with a poor graph, and vectors that lie as far from its rows as a student's may."""
    folder = tmp_path_factory.mktemp("asked")
    made = build_base(
        make_run(folder / "run", make_cache(folder / "cache"), contracts()[1]), folder / "cache"
    )
    vectors = clusters(ROWS, WIDTH, centres=2)
    rng = np.random.default_rng(3)
    base = replace(
        made.base,
        index=NeighbourIndex.build(vectors, IndexSettings(m=2, ef_construction=4, ef_search=1)),
        soft_labels=softmax(rng.normal(size=(ROWS, 2)) * 4).astype(np.float32),
    )
    outside = rng.normal(size=(QUERIES, WIDTH)).astype(np.float32)
    return base, outside / np.linalg.norm(outside, axis=1, keepdims=True)


def test_answers_of_the_graph_stand_beside_those_of_exact_search(asked_from_outside) -> None:
    base, vectors = asked_from_outside
    rng = np.random.default_rng(5)
    student = softmax(rng.normal(size=(QUERIES, 2)))
    labels = rng.integers(0, 2, QUERIES)
    asked = compare_answers(base, vectors, student, labels, K, BETA)
    votes, rows = [], []
    for found, cosines in (base.index.search(vectors, K), base.index.exact(vectors, K)):
        rows.append(found)
        votes.append(neighbour_vote(cosines, base.soft_labels[found], base.tau))
    right = [(mixed(student, one, BETA).argmax(axis=1) == labels).mean() for one in votes]
    assert right[0] != right[1]
    assert (asked.accuracy, asked.exact_accuracy) == tuple(right)
    assert asked.recall.recall == are_among(*rows).mean() < 0.9
    assert asked.other_votes == (votes[0].argmax(axis=1) != votes[1].argmax(axis=1)).sum() > 2
    assert asked.loses_much is bool(right[1] - right[0] > 0.005)


def test_a_long_search_answers_as_exact_search(asked_from_outside) -> None:
    base, vectors = asked_from_outside
    index = NeighbourIndex.build(base.index.vectors(), IndexSettings(ef_search=1000, codec="float32"))
    student = np.full((QUERIES, 2), 0.5)
    asked = compare_answers(replace(base, index=index), vectors, student, np.zeros(QUERIES, int), K, BETA)
    assert (asked.recall.recall, asked.other_votes) == (1.0, 0)
    assert asked.accuracy == asked.exact_accuracy
    assert not asked.loses_much


@pytest.mark.parametrize(("exact", "is_much"), [(0.85, False), (0.9, False), (0.904, False), (0.906, True)])
def test_half_a_text_of_a_hundred_is_no_matter(exact: float, is_much: bool) -> None:
    recall = Recall(queries=200, k=10, recall=0.4, as_near=0.4, seconds=0.1, exact_seconds=1.0)
    asked = Asked(recall, 5, 0.9, exact)
    assert asked.loses_much is is_much
    assert json.loads(json.dumps(asked.to_json()))["loses_much"] is is_much
