"""Training data from the sets of the entities suite never holds a test query."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from suite_helpers import write_tsv

from distill.cli.main import cli
from distill.data.triples import read_triples
from distill.errors import DataError
from distill.evaluation.catalogues import read_entity_pairs
from distill.evaluation.ranking import read_entities
from distill.evaluation.task import NotThereError

SKY = [
    ("train", "a", "sunrise", "E,F"),
    ("valid", "b", "cold", "N,E"),
    ("test", "c", "Where it dawns", "E"),
    ("train,test", "d", "up", "N"),
]


def write_queries(folder: Path, name: str, rows: list[tuple[str, ...]]) -> None:
    write_tsv(folder / f"er_{name}_queries.tsv", "split query_id text gold_entity_ids", rows)


def write_entities(folder: Path, name: str, rows: list[tuple[str, str]]) -> None:
    write_tsv(folder / f"er_{name}_entities.tsv", "entity_id text", rows)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    write_entities(folder, "sky", [("E", "the east"), ("N", "the north"), ("F", "the east")])
    write_queries(folder, "sky", SKY)
    return folder


def test_each_query_that_the_suite_does_not_ask_has_a_pair_with_every_right_text(data):
    found = read_entity_pairs(data)
    # Both of sunrise's entities are called "the east".
    assert found.pairs == [("sunrise", "the east"), ("cold", "the north"), ("cold", "the east")]
    assert found.texts == ["the east", "the north", "sunrise", "cold"]
    assert found.sets == {"sky": {"queries": 2, "entities": 3, "of the split test": 2}}
    assert set(read_entities(data)[0].queries).isdisjoint(found.texts)


def test_a_query_with_the_text_of_a_test_query_of_any_set_is_left_out(data):
    write_entities(data, "sea", [("K", "kelp"), ("S", "salt")])
    rows = [("train", "a", "where it dawns!", "K"), ("train", "b", "UP", "S"), ("test", "c", "x", "S")]
    write_queries(data, "sea", rows)
    found = read_entity_pairs(data)
    assert found.sets["sea"] == {"entities": 2, "of the split test": 1, "with the text of a test query": 2}
    assert found.texts == ["kelp", "salt", "the east", "the north", "sunrise", "cold"]


def test_queries_without_a_text_or_an_entity_are_counted(data):
    rows = [("train", "a", "", "E"), ("train", "b", "lost", "X"), ("train", "c", "found", "X,N")]
    write_queries(data, "sky", [*rows, ("train", "d", "bare", ""), ("test", "e", "up", "N")])
    found = read_entity_pairs(data)
    assert found.pairs == [("found", "the north")]
    assert found.sets["sky"]["empty or without an entity"] == 3


def test_sets_without_a_test_split_or_without_others_are_refused(data, tmp_path):
    write_queries(data, "sky", SKY[:2])
    with pytest.raises(DataError, match=r"er_sky_queries\.tsv has no query of the split test"):
        read_entity_pairs(data)
    write_queries(data, "sky", SKY[2:])
    with pytest.raises(DataError, match="no query to learn from"):
        read_entity_pairs(data)
    with pytest.raises(NotThereError, match=r"er_NAME_queries\.tsv"):
        read_entity_pairs(tmp_path)


def test_the_command_writes_training_files(data, tmp_path):
    words = ["data", "pairs", str(data), "--to", str(tmp_path / "deep" / "learn")]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 0
    assert result.output.splitlines()[0] == "sky: 2 queries, 3 entities; left out: 2 of the split test"
    pairs, found = read_triples(tmp_path / "deep" / "learn" / "pairs.tsv"), read_entity_pairs(data)
    assert list(zip(*pairs.columns, strict=True)) == found.pairs
    lines = (tmp_path / "deep" / "learn" / "texts.tsv").read_text(encoding="utf-8").splitlines()
    assert lines == ["text", *found.texts]
