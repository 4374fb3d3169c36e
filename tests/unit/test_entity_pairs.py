"""What may be learnt from the sets of the entities suite: never what a test query says."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from suite_helpers import write_tsv

from distill.cli.main import cli
from distill.data.triples import read_triples
from distill.errors import DataError
from distill.evaluation.catalogues import read_entity_pairs, write_entity_pairs
from distill.evaluation.ranking import read_entities
from distill.evaluation.task import NotThereError

QUERIES = "split | query_id | text | gold_entity_ids"
ENTITIES = "entity_id | text"


def write_set(folder: Path, stem: str, header: str, *rows: str) -> Path:
    columns = header.replace(" | ", " ")
    return write_tsv(folder / f"{stem}.tsv", columns, [row.split(" | ") for row in rows])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    write_set(folder, "er_sky_entities", ENTITIES, "E | the east", "N | the north", "F | the east")
    write_set(
        folder,
        "er_sky_queries",
        QUERIES,
        "train | a | sunrise | E,F",
        "valid | b | cold | N,E",
        "test | c | Where it dawns | E",
        "train,test | d | up | N",
    )
    return folder


def test_each_query_has_a_pair_with_every_right_text(data):
    found = read_entity_pairs(data)
    # Both of sunrise's entities are called "the east".
    assert found.pairs == [("sunrise", "the east"), ("cold", "the north"), ("cold", "the east")]
    assert found.texts == ["the east", "the north", "sunrise", "cold"]
    assert found.sets == {"sky": {"queries": 2, "entities": 3, "of the split test": 2}}


def test_nothing_that_the_suite_asks_is_learnt_from(data):
    asked = set(read_entities(data)[0].queries)
    assert asked == {"Where it dawns", "up"}
    assert asked.isdisjoint(read_entity_pairs(data).texts)


def test_a_query_with_the_text_of_a_test_query_of_any_set_is_left_out(data):
    write_set(data, "er_sea_entities", ENTITIES, "K | kelp", "S | salt")
    write_set(
        data,
        "er_sea_queries",
        QUERIES,
        "train | a | where it dawns! | K",
        "train | b | UP | S",
        "test | c | x | S",
    )
    found = read_entity_pairs(data)
    assert found.sets["sea"] == {"entities": 2, "of the split test": 1, "with the text of a test query": 2}
    assert found.texts == ["kelp", "salt", "the east", "the north", "sunrise", "cold"]


def test_queries_without_a_text_or_an_entity_are_counted(data):
    rows = ("train | a |  | E", "train | b | lost | X", "train | c | found | X,N", "train | d | bare | ")
    write_set(data, "er_sky_queries", QUERIES, *rows, "test | e | up | N")
    found = read_entity_pairs(data)
    assert found.pairs == [("found", "the north")]
    assert found.sets["sky"]["empty or without an entity"] == 3


def test_sets_without_a_test_split_are_refused(data):
    write_set(data, "er_sky_queries", QUERIES, "train | a | sunrise | E", " | b | cold | N")
    with pytest.raises(DataError, match=r"er_sky_queries\.tsv has no query of the split test"):
        read_entity_pairs(data)


def test_sets_with_nothing_to_learn_from_are_refused(data):
    write_set(data, "er_sky_queries", QUERIES, "test | a | sunrise | E")
    with pytest.raises(DataError, match="no query to learn from"):
        read_entity_pairs(data)


def test_a_folder_without_sets_is_named(tmp_path):
    with pytest.raises(NotThereError, match=r"er_NAME_queries\.tsv"):
        read_entity_pairs(tmp_path)


def test_what_is_written_can_be_trained_on(data, tmp_path):
    found = read_entity_pairs(data)
    write_entity_pairs(found, tmp_path / "deep" / "learn")
    pairs = read_triples(tmp_path / "deep" / "learn" / "pairs.tsv")
    assert list(zip(*pairs.columns, strict=True)) == found.pairs
    assert not pairs.skipped
    lines = (tmp_path / "deep" / "learn" / "texts.tsv").read_text(encoding="utf-8").splitlines()
    assert lines == ["text", *found.texts]


def test_the_command_says_what_it_wrote_and_left_out(data, tmp_path):
    words = ["data", "pairs", str(data), "--to", str(tmp_path / "learn")]
    told = CliRunner().invoke(cli, words)
    assert told.exit_code == 0
    assert told.output.splitlines()[0] == "sky: 2 queries, 3 entities; left out: 2 of the split test"
    assert "pairs.tsv: 3 pairs" in told.output
    assert "texts.tsv: 4 texts" in told.output
    first = (tmp_path / "learn" / "pairs.tsv").read_bytes()
    assert CliRunner().invoke(cli, words).exit_code == 0
    assert (tmp_path / "learn" / "pairs.tsv").read_bytes() == first
