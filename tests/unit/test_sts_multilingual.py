"""The sts-multilingual suite: pairs in other languages and across two."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from evaluation_helpers import letters_model, read_task, score_task, write_rows
from rich.console import Console
from scipy.stats import pearsonr, spearmanr

from distill.errors import DataError
from distill.evaluation import evaluate
from distill.evaluation.tasks import NotThereError

MT = "split | score | sentence1 | sentence2"
ENGLISH = "subset | score | sentence1 | sentence2"
STS17 = "score | sentence1 | sentence2"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_rows(tmp_path, "stsb_test", ENGLISH, "s | 5.000 | a dog | the dog", "s | 2.5 | a cat | a bird")
    write_rows(
        tmp_path,
        "stsb_mt_de",
        MT,
        *(
            "train | 1 | nicht | dies",
            "test | 5.0 | ein Hund | der Hund",
            "test | 2.50 | eine Katze | ein Vogel",
        ),
    )
    write_rows(tmp_path, "stsb_mt_es", MT, "test | 5 | un perro | el perro", "test | 2.5 | un gato | un ave")
    return tmp_path


def pairs(task) -> dict[str, list[tuple[str, str]]]:
    return {one.name: list(zip(one.left, one.right, strict=True)) for one in task.sets}


def test_languages_are_paired_with_themselves_and_across(data):
    found = pairs(read_task("sts-multilingual", data))
    assert list(found) == [
        "stsb_mt_de-de",
        "stsb_mt_es-es",
        "stsb_mt_en-de",
        "stsb_mt_en-es",
        "stsb_mt_de-es",
    ]
    assert found["stsb_mt_de-de"] == [("ein Hund", "der Hund"), ("eine Katze", "ein Vogel")]
    assert found["stsb_mt_en-de"] == [("a dog", "der Hund"), ("a cat", "ein Vogel")]
    assert found["stsb_mt_de-es"] == [("ein Hund", "el perro"), ("eine Katze", "un ave")]


def test_without_english_the_others_are_paired(data):
    (data / "stsb_test.tsv").unlink()
    assert list(pairs(read_task("sts-multilingual", data))) == [
        "stsb_mt_de-de",
        "stsb_mt_es-es",
        "stsb_mt_de-es",
    ]


def test_english_alone_is_the_sts_suite(data):
    for name in ("de", "es"):
        (data / f"stsb_mt_{name}.tsv").unlink()
    with pytest.raises(NotThereError, match=r"sts17_LANG1-LANG2\.tsv and stsb_mt_LANG\.tsv"):
        read_task("sts-multilingual", data)


def test_the_pairs_of_the_field_come_in_its_order_and_the_absent_are_named(data):
    for pair in ("nl-en", "en-de", "ar-ar"):
        write_rows(data, f"sts17_{pair}", STS17, f"1 | {pair} | b", "3 | c | d")
    task = read_task("sts-multilingual", data)
    assert list(pairs(task))[:3] == ["sts17_ar-ar", "sts17_en-de", "sts17_nl-en"]
    assert task.facts["missing"] == ["en-en", "es-es", "en-ar", "en-es", "en-tr", "en-fr"]
    assert any("not found: EN-EN, ES-ES, EN-AR" in note for note in task.notes)


def test_figures_are_those_of_scipy_and_each_family_has_its_average_told(tmp_path):
    rows = ("1 | aaa | xyz", "3 | abba | baab", "4.5 | cow | crow", "2 | moon | month")
    write_rows(tmp_path, "sts17_en-tr", STS17, *rows)
    write_rows(tmp_path, "stsb_mt_fr", MT, *(f"test | {row}" for row in rows))
    task = read_task("sts-multilingual", tmp_path)
    notes: list[str] = []
    scores = score_task(task, letters_model(), notes)
    model = letters_model()
    cosines = []
    for row in rows:
        _, left, right = row.split(" | ")
        a, b = model.encode([left, right]).astype(float)
        cosines.append(a @ b / ((a @ a) * (b @ b)) ** 0.5)
    gold = [1, 3, 4.5, 2]
    score = scores.sets["sts17_en-tr"]
    assert score.value == pytest.approx(100 * spearmanr(gold, cosines).statistic)
    assert score.others == {"pearson": pytest.approx(100 * pearsonr(gold, cosines).statistic)}
    assert (score.label, scores.sets["stsb_mt_fr-fr"].label) == ("STS17 EN-TR", "STS-B FR-FR")
    assert (len(scores.sets), scores.sets_of) == (2, 9)
    assert len(notes) == 1
    assert f"{score.value:.2f} over 1 sets of STS 2017" in notes[0]


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (("test | 5 | un | deux",), "has 2 rows, .* 1: not aligned"),
        (("test | 5 | un | deux", "test | 2.6 | trois | quatre"), "1 scores .* differ, first in row 2"),
        (("test | 5 | un | deux", "test | 2.5 | trois", "test | 2.5 | a | b"), "1 rows with a wrong number"),
    ],
    ids=["other number of rows", "another score", "a ragged row"],
)
def test_files_that_are_not_aligned_are_not_paired_and_it_is_said(data, rows, why):
    (data / "stsb_mt_es.tsv").unlink()
    (data / "stsb_mt_de.tsv").unlink()
    write_rows(data, "stsb_mt_fr", MT, *rows)
    task = read_task("sts-multilingual", data)
    assert list(pairs(task)) == ["stsb_mt_fr-fr"]
    assert any(re.search(f"no translated STS-B EN-FR: .*{why}", note) for note in task.notes)


def test_a_row_without_a_score_in_one_language_is_skipped_and_the_others_stay_aligned(data):
    write_rows(
        data,
        "stsb_mt_es",
        MT,
        *("test |  | un perro | el perro", "test | 2.5 | un gato | un ave"),
    )
    task = read_task("sts-multilingual", data)
    found = pairs(task)
    assert found["stsb_mt_en-es"] == [("a cat", "un ave")]
    assert found["stsb_mt_de-es"] == [("eine Katze", "un ave")]
    assert any("STS-B EN-ES: 1 rows skipped (no score 1)" in note for note in task.notes)


def test_unusable_rows_and_repeated_pairs_are_counted(tmp_path):
    write_rows(
        tmp_path,
        "sts17_en-ar",
        STS17,
        *("1 | a | b", "1 | a | b", "nan | c | d", "x | c | d", "2 |  | d", "2 | e", "3 | fff | fg"),
    )
    task = read_task("sts-multilingual", tmp_path)
    assert task.sets[0].scores == (1.0, 1.0, 3.0)
    assert task.sets[0].skipped == {
        "no score": 1,
        "score is not a number": 1,
        "empty sentence": 1,
        "wrong number of columns": 1,
    }
    assert "pairs that occur before in their file, each counts: STS17 EN-AR 1 (1 the same)" in task.notes
    assert score_task(task, letters_model()).sets["sts17_en-ar"].skipped == 4


def test_many_sets_are_listed_one_a_line_and_fit_into_a_terminal(data):
    write_rows(data, "stsb_mt_fr", MT, "test | 5 | un chien | le chien", "test | 2.5 | un chat | une pie")
    result = evaluate(letters_model(), suite="sts-multilingual", data=data)
    output = io.StringIO()
    Console(file=output, width=80).print(result.table())
    lines = output.getvalue().splitlines()
    scores = result.to_json()["models"][0]["sets"]
    assert len(scores) == 9
    for name, score in scores.items():
        label = f"STS-B {name.rpartition('_')[2].upper()}"
        (line,) = (line for line in lines if label in line and "│" in line)
        assert f"{score['score']:.2f}" in line
        assert f"{score['pearson']:.2f}" in line


def test_a_set_without_a_scored_pair_and_a_missing_column_are_refused(tmp_path):
    write_rows(tmp_path, "sts17_en-ar", STS17, " | a | b")
    with pytest.raises(DataError, match=r"no scored pair for STS17 EN-AR \(skipped: no score 1\)"):
        read_task("sts-multilingual", tmp_path)
    write_rows(tmp_path, "sts17_en-ar", "score | left | right", "1 | a | b")
    with pytest.raises(DataError, match="sentence1, sentence2 not found"):
        read_task("sts-multilingual", tmp_path)
