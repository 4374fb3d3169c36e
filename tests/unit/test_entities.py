"""The entities suite: queries against a catalogue."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from evaluation_helpers import model_of, read_task, score_task, write_rows

from distill.errors import DataError
from distill.evaluation.tasks import NotThereError

VECTORS = {
    "ask east": [1.0, 0.0],
    "ask north": [0.0, 1.0],
    "ask west": [-1.0, 0.0],
    "east": [1.0, 0.1],
    "north": [0.1, 1.0],
    "west": [-1.0, 0.0],
}
QUERIES = "split | query_id | text | gold_entity_ids"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_rows(tmp_path, "er_sky_entities", "entity_id | text", "E | east", "N | north", "W | west")
    write_rows(
        tmp_path,
        "er_sky_queries",
        QUERIES,
        "train | a | of no interest | E",
        "test | b | ask east | E",
        "test,train | c | ask north | W,N",
        "valid,test | d | ask west | N",
    )
    return tmp_path


def test_any_right_entity_counts_and_only_the_test_split_is_asked(data):
    task = read_task("entities", data)
    score = score_task(task, model_of(VECTORS)).sets["sky"]
    assert (score.measure, score.items) == ("recall@1", 3)
    # "ask west" finds north second.
    assert score.outcomes.values.tolist() == [1, 1, 0]
    assert score.value == pytest.approx(200 / 3)
    assert score.others == pytest.approx(
        {"recall@5": 100, "recall@10": 100, "mrr": 100 * np.mean([1, 1, 0.5])}
    )
    assert "of no interest" not in task.texts()
    assert any("2 of the queries are in train or valid as well" in note for note in task.notes)


def test_without_a_test_split_all_queries_are_asked_and_it_is_said(data):
    write_rows(data, "er_sky_queries", QUERIES, " | b | ask east | E", "train | c | ask north | N")
    task = read_task("entities", data)
    assert len(task.sets[0].queries) == 2
    assert any("no query is of the split test, so all are asked" in note for note in task.notes)


def test_queries_that_cannot_be_answered_are_left_out_and_counted(data):
    write_rows(
        data,
        "er_sky_queries",
        QUERIES,
        *("test | b | ask east | E", "test | b | ask north | N", "test | c |  | E", "test | d | ask west | "),
        *("test | e | ask west | X, Y", "test | f | ask north | N,X", "train | g |  | E"),
    )
    task = read_task("entities", data)
    assert task.sets[0].queries == ["ask east", "ask north"]
    assert task.sets[0].skipped == {
        "repeated id of a query": 1,
        "empty query": 1,
        "query without a relevant document": 1,
        "query whose relevant documents are all absent": 1,
        "relevant document that is absent": 1,
    }
    assert any("sky: 5 rows skipped" in note for note in task.notes)


def test_entities_with_one_text_are_tied_and_told(data):
    write_rows(data, "er_sky_entities", "entity_id | text", "E | east", "F | east", "N | north", "W | west")
    task = read_task("entities", data)
    assert score_task(task, model_of(VECTORS)).sets["sky"].outcomes.values[0] == pytest.approx(0.5)
    assert any("1 documents with the text of an earlier one" in note for note in task.notes)


def test_repeated_queries_are_told_and_count(data):
    write_rows(data, "er_sky_queries", QUERIES, "test | b | ask east | E", "test | c | ask east | E")
    task = read_task("entities", data)
    assert any("1 queries with the text of an earlier one" in note for note in task.notes)
    assert score_task(task, model_of(VECTORS)).sets["sky"].items == 2


def test_a_catalogue_that_is_not_there_is_named(data):
    (data / "er_sky_entities.tsv").unlink()
    with pytest.raises(DataError, match=r"not er_sky_entities\.tsv, its catalogue"):
        read_task("entities", data)


def test_a_missing_column_is_named(data):
    write_rows(data, "er_sky_queries", "split | query_id | text", "test | b | ask east")
    with pytest.raises(DataError, match="gold_entity_ids not found"):
        read_task("entities", data)


def test_an_empty_catalogue_is_refused(data):
    write_rows(data, "er_sky_entities", "entity_id | text", "E | ")
    with pytest.raises(DataError, match=r"holds no entity \(skipped: empty entity 1\)"):
        read_task("entities", data)


def test_a_folder_without_catalogues_is_not_there(tmp_path):
    with pytest.raises(NotThereError, match=r"er_NAME_queries\.tsv"):
        read_task("entities", tmp_path)
