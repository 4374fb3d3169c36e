"""The index finds what exact search finds, whatever becomes of it; and what its neighbours vote for."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from knowledge_base_helpers import clusters

from distill.errors import ConfigError
from distill.knowledge_base.effort import EFFORTS, FEWEST_QUERIES, USUAL_EFFORT, settle_effort
from distill.knowledge_base.index import CODECS, IndexSettings, NeighbourIndex
from distill.knowledge_base.lead import lead_interval
from distill.knowledge_base.recall import measure_recall, moved_rows
from distill.knowledge_base.tune import BETAS, sensitivity, tune
from distill.knowledge_base.vote import mixed, neighbour_vote, neighbour_weights, softmax
from distill.vectors import unit

VECTORS = clusters(700, 24)
QUERIES = clusters(50, 24, seed=1)


@pytest.mark.parametrize("codec", CODECS)
def test_the_graph_finds_the_nearest(codec):
    index = NeighbourIndex.build(VECTORS, IndexSettings(codec=codec))
    assert (len(index), index.dimension) == (700, 24)
    rows, cosines = index.search(QUERIES, 10)
    true = np.sort(QUERIES @ VECTORS.T, axis=1)[:, :-11:-1]
    assert np.abs(cosines - true).max() < {"float32": 1e-5, "float16": 1e-3, "int8": 0.02}[codec]
    assert np.array_equal(rows, np.argsort(-(QUERIES @ index.vectors().T), axis=1)[:, :10])


def test_a_neighbour_that_the_graph_does_not_find_has_no_weight():
    index = NeighbourIndex.build(VECTORS[:30], IndexSettings(codec="float32"))
    found = np.array([[4, -1], [7, 2]]), np.array([[0.5, np.finfo(np.float32).min], [0.4, 0.3]], np.float32)
    index._index = SimpleNamespace(ntotal=30, search=lambda queries, k: (found[1].copy(), found[0]))
    rows, cosines = index.search(QUERIES[:2], 2)
    assert rows.tolist() == found[0].tolist()
    assert cosines[0].tolist() == [0.5, -np.inf]
    assert np.array_equal(cosines[1], found[1][1])
    assert neighbour_weights(cosines, 0.1)[0].tolist() == [1, 0]


def test_codecs_keep_vectors_more_or_less_exactly():
    lost = [
        np.abs(NeighbourIndex.build(VECTORS, IndexSettings(codec=codec)).vectors() - VECTORS).max()
        for codec in CODECS
    ]
    assert lost[0] == 0 < lost[1] < 1e-3 < lost[2] < 0.02


def test_the_same_rows_give_the_same_bytes_and_others_do_not():
    data = [NeighbourIndex.build(VECTORS, IndexSettings()).to_bytes() for _ in range(2)]
    assert np.array_equal(*data)
    other = NeighbourIndex.build(VECTORS[::-1].copy(), IndexSettings()).to_bytes()
    assert not np.array_equal(data[0], other)


def test_it_survives_saving_loading_and_appending():
    settings = IndexSettings(m=8, ef_search=64, codec="float32")
    index = NeighbourIndex.build(VECTORS[:500], settings)
    loaded = NeighbourIndex.from_bytes(index.to_bytes().tobytes(), settings)
    for made, again in zip(index.search(QUERIES, 10), loaded.search(QUERIES, 10), strict=True):
        assert np.array_equal(made, again)
    loaded.add(VECTORS[500:])
    assert len(loaded) == 700
    assert np.array_equal(loaded.vectors(), VECTORS)
    # Rows that came later are found as rows that were there from the start.
    rows, cosines = loaded.search(VECTORS[650:], 1)
    assert rows[:, 0].tolist() == list(range(650, 700))
    assert np.allclose(cosines, 1, atol=1e-5)
    assert measure_recall(loaded, QUERIES, 10).recall >= 0.99
    assert len(index) == 500


def test_recall_is_that_of_the_graph():
    index = NeighbourIndex.build(VECTORS, IndexSettings())
    found = measure_recall(index, QUERIES, 10)
    assert (found.queries, found.k) == (50, 10)
    assert found.recall >= 0.99
    assert found.as_near >= found.recall
    # A graph of hardly any links that hardly looks finds less, and is seen to.
    poor = NeighbourIndex.build(clusters(3000, 24), IndexSettings(m=2, ef_construction=2, ef_search=1))
    assert measure_recall(poor, QUERIES, 10).recall < 0.9


def test_rows_to_search_for_are_near_rows_and_no_rows():
    index = NeighbourIndex.build(VECTORS, IndexSettings(codec="float32"))
    moved = moved_rows(index, 60, seed=3)
    assert moved.shape == (60, 24)
    assert np.allclose(np.linalg.norm(moved, axis=1), 1, atol=1e-5)
    nearest = (moved @ VECTORS.T).max(axis=1)
    assert (nearest > 0.9).all()
    assert (nearest < 0.999).all()
    assert np.array_equal(moved, moved_rows(index, 60, seed=3))
    assert not np.array_equal(moved, moved_rows(index, 60, seed=4))


def test_vectors_are_scaled_to_length_one_but_for_zeros():
    scaled = unit(np.array([[3, 4], [0, 0], [1e-30, 0]], dtype=np.float32))
    assert scaled.dtype == np.float32
    assert np.allclose(scaled[:2], [[0.6, 0.8], [0, 0]])
    assert np.isfinite(scaled).all()


def test_rows_of_one_vector_are_as_good_as_each_other():
    same = np.repeat(VECTORS[:2], 40, axis=0)
    found = measure_recall(NeighbourIndex.build(same, IndexSettings()), VECTORS[:2], 10)
    assert found.as_near == 1
    assert found.recall <= 1


def test_more_neighbours_than_rows_are_all_rows():
    index = NeighbourIndex.build(VECTORS[:4], IndexSettings())
    assert index.search(QUERIES, 10)[0].shape == (50, 4)


def test_bytes_of_something_else_are_refused():
    with pytest.raises(ValueError, match="faiss cannot read it"):
        NeighbourIndex.from_bytes(b"not an index at all", IndexSettings())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"m": 1}, "--m 1"),
        ({"ef_search": 0}, "--ef-search 0"),
        ({"m": 10**6}, "--m 1000000: expected 1,024 at most"),
        ({"ef_construction": 10**11}, "at most"),
        ({"codec": "pq"}, "pq"),
    ],
)
def test_settings_out_of_range_are_refused(changes, said):
    with pytest.raises(ConfigError, match=said):
        IndexSettings(**changes)


def test_a_vote_is_the_papers():
    rng = np.random.default_rng(0)
    scores, soft = rng.uniform(-1, 1, (3, 4)), softmax(rng.normal(size=(3, 4, 5)))
    tau, beta = 0.07, 0.3
    student = softmax(rng.normal(size=(3, 5)))
    answer = mixed(student, neighbour_vote(scores, soft, tau), beta)
    for row in range(3):
        raised = [math.exp(score / tau) for score in scores[row]]
        for label in range(5):
            average = sum(w * s[label] for w, s in zip(raised, soft[row], strict=True)) / sum(raised)
            expected = beta * student[row, label] + (1 - beta) * average
            assert answer[row, label] == pytest.approx(expected, abs=1e-12)
    assert np.allclose(answer.sum(axis=1), 1)


def test_a_neighbour_that_is_not_there_has_no_vote():
    scores = np.array([[0.5, -np.inf]], dtype=np.float32)
    assert neighbour_weights(scores, 0.07).tolist() == [[1.0, 0.0]]


def test_a_small_tau_listens_to_the_nearest():
    scores = np.array([[0.9, 0.8]])
    sharp, blunt = (neighbour_weights(scores, tau)[0, 0] for tau in (0.01, 1.0))
    assert sharp > 0.99
    assert 0.5 < blunt < 0.53


def toy() -> tuple[np.ndarray, ...]:
    """Ten texts of label 1: the student is wrong about all, the nearest neighbour right, the others wrong."""
    student = np.tile([0.6, 0.4], (10, 1))
    soft = np.tile([[0.1, 0.9], [1.0, 0.0], [1.0, 0.0]], (10, 1, 1))
    scores = np.tile([0.5, 0.5, 0.5], (10, 1))
    return student, scores, soft, np.ones(10, dtype=np.int64)


def test_tuning_finds_what_neighbours_are_worth():
    found = tune(*toy(), tau=0.07)
    assert (found.best.k, found.best.beta, found.best.accuracy) == (1, 0.0, 1.0)
    assert found.without.accuracy == 0
    assert len(found.tried) == 3 * len(BETAS)
    assert found.best_of(3).accuracy == 0
    assert found.at(1, 1.0).accuracy == 0


def test_of_equal_accuracies_the_surer_is_chosen():
    student, scores, soft, labels = toy()
    found = tune(student, scores, soft, 1 - labels, tau=0.07)
    # All of k = 2, 3 and of the student are right; three neighbours are the surest.
    assert found.best.accuracy == found.without.accuracy == 1
    assert (found.best.k, found.best.beta) == (3, 0.0)
    assert found.best.log_loss < found.without.log_loss


def test_where_neighbours_only_harm_the_student_stays_alone():
    student, scores, soft, labels = toy()
    found = tune(1 - student, scores, 1 - soft[:, :1].repeat(3, axis=1), labels, tau=0.07)
    assert found.best.beta == 1
    assert found.best == found.at(1, 1.0)


def test_the_table_over_k():
    found = tune(*toy(), tau=0.07)
    table = sensitivity(found, (1, 3, 15), 2.0, lambda k: 0.01 * k)
    assert [row.k for row in table] == [0, 1, 3]
    assert [row.accuracy for row in table] == [0, 1, 0]
    # Ten rows of ten won, none, and none: the first cannot be chance.
    assert table[1].lead == lead_interval(np.ones(10, dtype=bool), np.zeros(10, dtype=bool))
    assert table[0].lead == table[2].lead == (0, 0)
    assert [row.seconds for row in table] == pytest.approx([2.0, 0.01, 0.03])
    assert [row.added for row in table] == pytest.approx([0, 0.005, 0.015])


@pytest.mark.parametrize(
    ("won", "lost", "both"), [(0, 0, 5), (7, 0, 0), (0, 3, 9), (9, 4, 87), (30, 11, 500)]
)
def test_a_lead_is_judged_as_the_sign_test_judges_it(won, lost, both):
    ours = np.array([True] * won + [False] * lost + [True] * both)
    others = np.array([False] * won + [True] * lost + [True] * both)
    low, high = lead_interval(ours, others)
    assert low <= (won - lost) / len(ours) <= high
    assert lead_interval(others, ours) == pytest.approx((-high, -low))
    if won + lost:
        # Twice the tail of a fair coin, summed by hand.
        coins, most = won + lost, max(won, lost)
        tail = sum(math.comb(coins, heads) for heads in range(most, coins + 1)) / 2**coins
        assert (low > 0 or high < 0) == (min(1.0, 2 * tail) < 0.05)


def test_more_rows_make_a_lead_surer():
    few, many = (
        lead_interval(np.array([True] * 3 * n + [False] * n), np.array([False] * 3 * n + [True] * n))
        for n in (2, 20)
    )
    assert few[0] < 0 < many[0]
    assert many[1] < few[1]


def hard(count: int) -> np.ndarray:
    """Unit vectors of no order at all: neighbours are hard to find."""
    found = np.random.default_rng(3).normal(size=(count, 96)).astype(np.float32)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def test_a_search_is_as_long_as_the_vectors_ask_for():
    easy = NeighbourIndex.build(VECTORS, IndexSettings())
    assert easy.settings.ef_search is None
    settled = settle_effort(easy, clusters(200, 24, seed=5))
    assert settled is not None
    assert settled.ef_search == easy.settings.ef_search == EFFORTS[0]
    assert settled.recall >= 0.99
    # A graph of few links asks for more, and what was settled on stays with it.
    sparse = NeighbourIndex.build(hard(2000), IndexSettings(m=4, ef_construction=10, codec="float32"))
    queries = hard(2200)[2000:]
    longer = settle_effort(sparse, queries)
    assert longer is not None
    assert longer.ef_search > settled.ef_search
    again = NeighbourIndex.from_bytes(sparse.to_bytes().tobytes(), sparse.settings)
    assert measure_recall(again, queries, 10).recall == longer.recall
    sparse.search_with(EFFORTS[EFFORTS.index(longer.ef_search) - 1])
    assert measure_recall(sparse, queries, 10).recall < min(0.99, longer.recall)


def test_the_nearest_are_looked_for_once(monkeypatch):
    sparse = NeighbourIndex.build(hard(2000), IndexSettings(m=4, ef_construction=10, codec="float32"))
    asked = []
    exact = sparse.exact
    monkeypatch.setattr(sparse, "exact", lambda queries, k: asked.append(k) or exact(queries, k))
    assert settle_effort(sparse, hard(2200)[2000:]).ef_search > EFFORTS[1]
    assert asked == [10]


def test_without_rows_to_measure_on_a_search_is_as_long_as_usual():
    index = NeighbourIndex.build(VECTORS, IndexSettings())
    assert settle_effort(index, clusters(FEWEST_QUERIES - 1, 24, seed=5)) is None
    assert index.settings.ef_search == USUAL_EFFORT
    # What was found out before is better known than that.
    index.search_with(512)
    assert settle_effort(index, QUERIES) is None
    assert index.settings.ef_search == 512
