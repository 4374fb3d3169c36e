"""Exact search: measures over all orders of ties, and the sets of retrieval and entities."""

from __future__ import annotations

from itertools import pairwise, permutations
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import ndcg_score
from suite_helpers import Counted, write_tsv

from distill.errors import DataError
from distill.evaluation.ranking import ENTITIES, RETRIEVAL, RankedSet, rank, read_entities, read_retrieval
from distill.evaluation.task import NotThereError, SuiteOptions, get_suite

MEASURES = {**RETRIEVAL, **{f"any {name}": measure for name, measure in ENTITIES.items()}}


def ranked(relevant: list[int], gains: list[float], left_out: dict[int, int] | None = None) -> RankedSet:
    return RankedSet("x", ["q"], ["d"], [dict(zip(relevant, gains, strict=True))], left_out=left_out or {})


def by_hand(order: list[int], relevant: list[int], gains: list[float]) -> dict[str, float]:
    places = {document: place for place, document in enumerate(order, 1)}
    gain = dict(zip(relevant, gains, strict=True))
    found = [places[one] for one in relevant]
    dcg = sum(gain[d] / np.log2(places[d] + 1) for d in relevant if places[d] <= 10)
    ideal = sum(g / np.log2(i + 2) for i, g in enumerate(sorted(gains, reverse=True)[:10]))
    scores = {"ndcg@10": dcg / ideal, "mrr": 1 / min(found), "any mrr": 1 / min(found)}
    for k in (1, 5, 10):
        scores[f"recall@{k}"] = float(np.mean([place <= k for place in found]))
        scores[f"any recall@{k}"] = float(min(found) <= k)
    return scores | {"success@1": float(min(found) == 1)}


@pytest.mark.parametrize("seed", range(6))
def test_measures_are_means_over_all_orders_of_tied_documents(seed: int) -> None:
    rng = np.random.default_rng(seed)
    levels = rng.integers(3, size=7)
    documents = np.array([[1.0, level] for level in levels], np.float32)
    relevant = rng.choice(7, size=2, replace=False).tolist()
    gains = [1.0, 3.0]
    (standing,) = rank(ranked(relevant, gains), np.array([[0.2, 1.0]], np.float32), documents)
    orders = [
        list(order)
        for order in permutations(range(7))
        if all(levels[a] >= levels[b] for a, b in pairwise(order))
    ]
    for name, measure in MEASURES.items():
        expected = np.mean([by_hand(order, relevant, gains)[name] for order in orders])
        assert measure(standing) == pytest.approx(expected), name


def test_ndcg_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    queries, documents = (rng.normal(size=(n, 5)).astype(np.float32) for n in (1, 30))
    relevant, gains = [3, 8, 21], [2.0, 1.0, 3.0]
    (standing,) = rank(ranked(relevant, gains), queries, documents)
    truth = np.zeros((1, 30))
    truth[0, relevant] = gains
    cosines = queries @ (documents / np.linalg.norm(documents, axis=1, keepdims=True)).T
    assert RETRIEVAL["ndcg@10"](standing) == pytest.approx(ndcg_score(truth, cosines, k=10))


def judged(folder: Path, queries: list, corpus: list, qrels: list) -> None:
    write_tsv(folder / "a_queries.tsv", "query_id text", queries)
    write_tsv(folder / "a_corpus.tsv", "doc_id text", corpus)
    write_tsv(folder / "a_qrels.tsv", "query_id doc_id score", qrels)


def test_a_document_with_the_id_of_the_query_is_not_ranked_unless_it_is_relevant(tmp_path: Path) -> None:
    corpus = [("1", "one"), ("2", "two"), ("3", "three")]
    judged(
        tmp_path, [("1", "q one"), ("3", "q three")], corpus, [("1", "2", 1), ("3", "3", 2), ("3", "9", 1)]
    )
    (one,) = read_retrieval(tmp_path)
    assert one.left_out == {0: 0}
    assert list(one.gains[1]) == [2]
    result = get_suite("retrieval").run(Counted(), tmp_path, SuiteOptions())
    assert list(result.figures["a"].others) == [name for name in RETRIEVAL if name != "ndcg@10"]


def test_judgements_that_cannot_be_used_are_counted(tmp_path: Path) -> None:
    qrels = [("1", "2", 1), ("1", "2", 1), ("9", "2", 1), ("1", "1", "x"), ("2", "8", 1), ("3", "2", 0)]
    queries = [("1", "a"), ("2", "b"), ("3", "c"), ("3", "again"), ("4", " ")]
    judged(tmp_path, queries, [("1", "x"), ("2", "y")], qrels)
    (one,) = read_retrieval(tmp_path)
    assert one.queries == ["a"]
    assert sum(one.skipped.values()) == 7


def test_a_set_that_lacks_a_file_is_an_error(tmp_path: Path) -> None:
    write_tsv(tmp_path / "a_corpus.tsv", "doc_id text", [("1", "x")])
    with pytest.raises(DataError, match=r"a_queries.tsv, a_qrels.tsv"):
        read_retrieval(tmp_path)
    (tmp_path / "a_corpus.tsv").unlink()
    with pytest.raises(NotThereError):
        read_retrieval(tmp_path)


def test_of_captions_the_first_of_a_test_image_asks_for_the_others(tmp_path: Path) -> None:
    rows = [
        ("train", 0, "a", "b", "c"),
        ("test", 1, "d", "e", ""),
        ("test", 2, "g", "h", "i"),
        ("test", 2, "x", "y", "z"),
    ]
    write_tsv(tmp_path / "f_captions3.tsv", "split image_index caption1 caption2 caption3", rows)
    (one,) = read_retrieval(tmp_path)
    assert (one.queries, one.documents) == (["d", "g"], ["e", "h", "i"])
    assert [list(rows) for rows in one.gains] == [[0], [1, 2]]


def test_entities_asks_the_queries_of_the_test_split(tmp_path: Path) -> None:
    write_tsv(
        tmp_path / "er_x_entities.tsv", "entity_id text", [("1", "alpha"), ("2", "beta"), ("3", "gamma")]
    )
    rows = [
        ("test", "q1", "a", "1, 2"),
        ("train", "q2", "b", "2"),
        ("test,train", "q3", "c", "3"),
        ("test", "q4", "d", "9"),
    ]
    write_tsv(tmp_path / "er_x_queries.tsv", "split query_id text gold_entity_ids", rows)
    (one,) = read_entities(tmp_path)
    assert (one.queries, [list(rows) for rows in one.gains]) == (["a", "c"], [[0, 1], [2]])
    result = get_suite("entities").run(Counted(), tmp_path, SuiteOptions())
    assert result.figures["x"].measure == "recall@1"
    (tmp_path / "er_x_entities.tsv").unlink()
    with pytest.raises(DataError, match="er_x_entities"):
        read_entities(tmp_path)
