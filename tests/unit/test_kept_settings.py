"""What makes a kept evaluation another one: only what its own suite reads and uses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from evaluation_helpers import read_task, write_rows
from kept_helpers import HEADER, HELD_OUT, PAIRS, Bench
from labelled_helpers import SNLI_HEADER, snli_rows, write

from distill.cli.evaluate import evaluate_command
from distill.errors import DataError
from distill.evaluation import evaluate_suites
from distill.evaluation.kept import read_kept


def write_snli(folder: Path) -> None:
    write(folder, "snli_train", SNLI_HEADER, snli_rows(90))
    write(folder, "snli_dev", SNLI_HEADER, snli_rows(30, 300))


@pytest.fixture
def bench(tmp_path, monkeypatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def invoke(bench: Bench, *words: str):
    command = [str(bench.run), "--data", str(bench.data), "--bootstrap", "0", *words]
    return CliRunner().invoke(evaluate_command, command)


def test_options_of_one_suite_leave_the_evaluations_of_others(bench):
    write_snli(bench.data)
    bench.evaluate()
    before = read_kept(bench.run, "sts").digest
    bench.encoded()
    found = evaluate_suites(
        bench.run,
        suites=["sts", "fidelity", "nli"],
        data=bench.data,
        limit=11,
        snli_pairs=60,
        seed=3,
        keep=True,
        bootstrap=0,
    )
    assert any("eval-sts.json" in note for note in found[0].notes)
    assert read_kept(bench.run, "sts").digest == before
    settings = {suite: json.loads(read_kept(bench.run, suite).digest["settings"]) for suite in ("sts", "nli")}
    assert settings == {"sts": {"compute_dtype": "float32"}, "nli": {"compute_dtype": "float32", "seed": 3}}


def test_options_of_a_suite_make_its_own_evaluation_anew(bench):
    write_snli(bench.data)
    asked: list[tuple[dict[str, Any], bool]] = [
        ({"suite": "nli"}, True),
        # Ninety pairs are fewer than are drawn by default.
        ({"suite": "nli", "snli_pairs": 0}, False),
        ({"suite": "nli", "snli_pairs": 60}, True),
        ({"suite": "nli", "snli_pairs": 60, "seed": 1}, True),
        ({"suite": "fidelity", "data": None}, True),
        ({"suite": "fidelity", "data": None}, False),
        ({"suite": "fidelity", "data": None, "seed": 1}, True),
        ({"suite": "fidelity", "data": None, "seed": 1, "limit": len(HELD_OUT) - 1}, True),
    ]
    for settings, anew in asked:
        bench.evaluate(**settings)
        assert bool(bench.encoded()) == anew, settings


def test_a_file_for_another_suite_changes_nothing(bench):
    bench.evaluate()
    bench.encoded()
    write_snli(bench.data)
    write_rows(bench.data, "notes", "anything", "at all")
    bench.evaluate()
    assert bench.encoded() == {}
    write_rows(bench.data, "sts13_test", HEADER, *PAIRS)
    bench.evaluate()
    assert bench.encoded()["first"] > 0


def test_other_labels_of_the_same_sentences_are_other_data(bench):
    bench.evaluate()
    bench.encoded()
    write_rows(bench.data, "stsb_test", HEADER, *(row.replace("3.0", "3.5") for row in PAIRS))
    bench.evaluate()
    assert bench.encoded()["first"] > 0


def test_suites_name_the_files_they_read(tmp_path):
    write_rows(
        tmp_path, "sick", "subset | score | sentence1 | sentence2", "test | 1 | a | b", "test | 2 | c | d"
    )
    write_rows(tmp_path, "x_corpus", "doc_id | text", "d1 | a text", "d2 | b text")
    write_rows(tmp_path, "x_queries", "query_id | text", "q1 | a")
    write_rows(tmp_path, "x_qrels", "query_id | doc_id | score", "q1 | d1 | 1")
    write_rows(tmp_path, "er_y_queries", "split | query_id | text | gold_entity_ids", "test | q | a | e")
    write_rows(tmp_path, "er_y_entities", "entity_id | text", "e | an entity")
    write_rows(tmp_path, "stsb_test", HEADER, *PAIRS)
    write_rows(
        tmp_path, "stsb_mt_de", "split | score | sentence1 | sentence2", *(f"test{row[1:]}" for row in PAIRS)
    )

    def names(suite: str) -> set[str]:
        return {Path(path).name.removesuffix(".tsv") for path in read_task(suite, tmp_path).files}

    assert names("sts") == {"sick", "stsb_test"}
    assert names("retrieval") == {"x_corpus", "x_queries", "x_qrels"}
    assert names("entities") == {"er_y_queries", "er_y_entities"}
    assert names("geometry") == names("latency") == {"stsb_test"}
    assert names("sts-multilingual") == {"stsb_mt_de", "stsb_test"}


@pytest.mark.parametrize("words", [("--snli-pairs", "9"), ("--snli-pairs", "15000"), ("--sst2-sentences",)])
def test_an_option_for_a_suite_that_is_not_asked_for_is_refused_by_name(bench, words):
    refused = invoke(bench, *words)
    assert isinstance(refused.exception, DataError)
    suite = "nli" if words[0] == "--snli-pairs" else "transfer"
    assert f"{words[0]} is for the {suite} suite, found sts" in str(refused.exception)
    assert bench.encoded() == {}
    # All suites are asked for.
    assert invoke(bench, *words, "--suite", "all").exit_code == 0
    assert invoke(bench).exit_code == 0
