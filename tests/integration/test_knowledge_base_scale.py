"""The graph at the size of SST-2, and what retrieval adds to the time of a student."""

from __future__ import annotations

import time

import numpy as np
import pytest

from distill.knowledge_base.index import IndexSettings, NeighbourIndex
from distill.knowledge_base.recall import measure_recall

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1800)]

ROWS, WIDTH, QUERIES = 67_000, 384, 1000


def projected(count: int, seed: int) -> np.ndarray:
    """Unit vectors as supervised contrast leaves them: two sides, some hundred clusters, and noise."""
    rng, fixed = np.random.default_rng(seed), np.random.default_rng(0)
    sides = fixed.standard_normal((2, WIDTH))
    clusters = sides[fixed.integers(0, 2, 300)] + 0.7 * fixed.standard_normal((300, WIDTH))
    found = clusters[rng.integers(0, 300, count)] + 0.4 * rng.standard_normal((count, WIDTH))
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("codec", ["float32", "float16"])
def test_the_default_graph_finds_nearly_all_after_saving_loading_and_appending(codec):
    settings = IndexSettings(codec=codec)
    vectors, queries = projected(ROWS, 1), projected(QUERIES, 2)
    index = NeighbourIndex.build(vectors[:60_000], settings)
    index = NeighbourIndex.from_bytes(index.to_bytes().tobytes(), settings)
    index.add(vectors[60_000:])
    assert len(index) == ROWS
    found = measure_recall(index, queries, 10)
    assert found.recall >= 0.99, found
    # Otherwise a base would do without a graph.
    assert found.seconds < found.exact_seconds


@pytest.mark.parametrize("batch", [32, 1])
def test_retrieval_adds_little_to_a_student_of_three_layers(tmp_path, batch):
    from distill.knowledge_base.vote import mixed, neighbour_vote, softmax
    from distill.retrieval_classifier import student_encoder
    from distill.vectors import unit
    from embedcache.testing import sentences, tiny_encoder

    # As wide and deep as MiniLM-L3; random weights take as long as trained ones.
    encode = student_encoder(
        tiny_encoder(tmp_path / "l3", dimension=WIDTH, layers=3, normalize=False), "cpu", 1
    )
    texts = sentences(640, longest=30)
    index = NeighbourIndex.build(projected(ROWS, 1), IndexSettings())
    soft = np.full((ROWS, 2), 0.5)
    encode(texts[:batch])
    student = retrieval = 0.0
    for start in range(0, len(texts), batch):
        began = time.perf_counter()
        vectors = encode(texts[start : start + batch])
        encoded = time.perf_counter()
        rows, cosines = index.search(unit(vectors), 10)
        mixed(softmax(vectors[:, :2]), neighbour_vote(cosines, soft[rows], 0.07), 0.5)
        student += encoded - began
        retrieval += time.perf_counter() - encoded
    assert retrieval < 0.03 * student
