"""Rows of a report and their forms: grouped, averaged, marked; no run is left out silently."""

from __future__ import annotations

import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from report_helpers import TEACHER_SETS, keep, keep_latency, make_run, some_runs, sts
from rich.console import Console

from distill.cli.main import cli
from distill.errors import DataError
from distill.report import Row, rows, writers
from distill.report.charts import front, picture, read_curves
from distill.report.page import page
from distill.report.rows import row_names
from distill.report.tables import of_suite, papers, summary

SETS = {"stsb": 60.0, "sickr": 70.0}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report") / "sweep"
    some_runs(folder)
    return folder


@pytest.fixture(scope="module")
def found(place: Path) -> list[Row]:
    return rows(place)


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    """Runs of which something is wrong, beside two that are as they should be."""
    place = tmp_path_factory.mktemp("odd")
    for loss, threads in (("l2", 2), ("ckd", 2), ("mse", 8)):
        keep_latency(make_run(place / loss, loss=loss, sets=SETS), 2.0, threads)
    shutil.copytree(place / "l2", place / "z-copy")
    make_run(place / "bare", tau=1)
    make_run(place / "other-items", tau=2, sets={"stsb": 99.0})
    make_run(place / "alone", tau=3, sets=SETS, teacher_sets=None)
    for number, content in enumerate(("{", "[]")):
        (make_run(place / f"record-{number}") / "run.json").write_text(content, encoding="utf-8")
    (make_run(place / "damaged", tau=4, sets=SETS) / "eval-sts.json").write_text("{", encoding="utf-8")
    run = make_run(place / "weights", tau=5, sets=SETS)
    (run / "best" / "model.safetensors").write_bytes(b"other weights")
    return rows([place, make_run(place.parent / "elsewhere", tau=6, sets=SETS, draws=0)])


def named(found: list[Row], name: str) -> Row:
    return next(row for row in found if row.name == name)


def cells(found: list[Row], name: str) -> dict[str, str]:
    table = summary(found)
    return dict(zip(table.columns, next(row for row in table.cells if row[0] == name), strict=True))


def test_runs_that_differ_in_the_seed_alone_are_one_row(found):
    l2 = named(found, "l2")
    assert ([run.name for run in l2.runs], l2.seeds) == (["l2-seed0", "l2-seed1"], (0, 1))
    score = l2.suites["sts"].sets["stsb"]
    assert (score.mean, score.n, score.std) == (pytest.approx(60.9), 2, pytest.approx(2**0.5))
    # The interval of one seed says nothing of the others.
    assert score.interval is None
    retention = l2.suites["sts"].retention
    whole = sum(TEACHER_SETS.values()) / 3
    assert retention.mean == pytest.approx(100 * (59.4333 + 60.1) / 2 / whole, abs=1e-3)
    assert retention.interval is None
    assert named(found, "ckd-tau").suites["sts"].retention.interval is not None
    assert l2.selection.mean == pytest.approx(71.5)


def test_teachers_stand_first_then_students_the_best_before_others(found):
    assert [row.name for row in found] == ["minilm-l6", "ckd-tau", "l2", "mse-cut"]
    teacher = found[0]
    assert teacher.is_teacher
    assert teacher.suites["sts"].sets["stsb"].mean == TEACHER_SETS["stsb"]
    assert teacher.suites["sts"].retention is None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mse-cut", "not finished"),
        ("mse-cut", "no figures on sts"),
        ("ckd-tau", "chosen on 50 of 60 pairs of stsb"),
        ("ckd-tau", "12 of 120 sentences"),
    ],
)
def test_a_row_carries_its_caveats(found, name, words):
    assert any(words in note for note in named(found, name).notes)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bare", "distill eval"),
        ("record-0", "run.json"),
        ("record-1", "run.json"),
        ("damaged", "eval-sts.json"),
        ("weights", "eval-sts.json"),
        ("other-items", "other items"),
        ("mse", "left out of latency"),
        ("alone", "no retention"),
        ("l2, z-copy", "not in the mean"),
        ("elsewhere", "no figures on latency"),
    ],
)
def test_a_run_of_which_something_is_wrong_is_a_row_that_says_so(odd, name, words):
    row = named(odd, name)
    assert any(words in note for note in row.notes)
    headline = row.headline("sts")
    assert (headline is None) == (name not in ("mse", "alone", "l2, z-copy", "elsewhere"))
    assert name != "alone" or row.suites["sts"].retention is None
    # Counted twice, a run would make the deviation small.
    assert headline is None or headline.n == 1


def test_speeds_are_those_of_the_latency_suite_on_one_machine(odd, found):
    assert named(odd, "mse").speed is None
    assert cells(odd, "ckd")["sentences/s"] == "500"
    assert "latency" not in summary(odd).columns
    assert "sentences/s" not in summary(found).columns


@pytest.mark.parametrize(
    ("folders", "names"),
    [
        ([["a/mse-seed0", "a/mse-seed1"], ["a/ckd"]], ["mse", "ckd"]),
        ([["mse/seed0", "mse/seed1"], ["ckd/seed0"]], ["mse", "seed0"]),
        ([["a/mse"], ["b/mse"]], ["a/mse", "b/mse"]),
        ([["a/mse-seed0", "a/copy"]], ["copy, mse"]),
        ([["x/a/mse"], ["y/a/mse"]], ["x/a/mse", "y/a/mse"]),
    ],
)
def test_rows_are_named_by_their_folders(folders, names):
    assert row_names([[Path("runs", one) for one in group] for group in folders]) == names


def test_a_folder_without_a_run_or_an_evaluation_is_refused(place, tmp_path):
    for places, suites in ((tmp_path, ()), (tmp_path / "nowhere", ()), (place, ("nli",))):
        with pytest.raises(DataError):
            rows(places, suites)
    assert list(named(rows(place, ["geometry"]), "l2").suites) == ["geometry"]


def test_a_papers_figure_is_of_the_recipe_that_the_run_was_started_with(tmp_path):
    for recipe, expected in (
        (None, False),
        ("congen/bert-tiny", True),
        ("congen/bert-mini", False),  # another student's
        ("gone/recipe", False),
    ):
        run = make_run(tmp_path / f"of-{recipe}".replace("/", "-"), loss="congen", recipe=recipe, sets=SETS)
        assert (rows(run)[-1].paper is not None) == expected
    keep(run := make_run(tmp_path / "some", loss="congen", recipe="congen/bert-tiny"), "sts", sts(SETS), None)
    assert rows(run)[-1].paper is not None
    keep(run, "sts", replace(sts(SETS), missing=("sts12",)), None)
    assert rows(run)[-1].paper is None


def test_a_papers_figure_stands_with_the_settings_that_differ_beside_its_own_suite_alone(found, tmp_path):
    paper = named(found, "l2").paper
    assert (paper.recipe, paper.figure, paper.teacher) == ("congen/bert-tiny", 73.32, 78.9)
    assert ("training.epochs", "20", "1") in paper.differences
    assert not any(key == "student.dropout" for key, _, _ in paper.differences)
    assert cells(found, "l2")["paper"] == "73.32"
    assert "training.epochs 1 (recipe 20)" in writers.markdown(found)
    assert named(found, "mse-cut").paper is None
    recipe = {"student": "compact:e=64,layers=2", "recipe": "simtde/entities-64"}
    other = rows(make_run(tmp_path / "r", loss="simtde", sets=SETS, **recipe))
    assert other[-1].paper.about.suite == "entities"
    assert not {"paper", "paper's retention"} & set(summary(other).columns)
    assert papers(other).cells[0][3] == "100.09 %"


def test_all_forms_have_the_same_figures(found):
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(writers.terminal(found, details=True))
    forms = [console.export_text(), writers.markdown(found), page(found)]
    value = json.loads(json.dumps(writers.json(found)))
    assert [row["name"] for row in value["rows"]] == [row.name for row in found]
    for row, raw in zip(found, value["rows"], strict=True):
        for suite, scores in row.suites.items():
            assert raw["suites"][suite]["sets"].keys() == scores.sets.keys()
        if (score := row.headline("sts")) is not None:
            assert raw["suites"]["sts"]["headline"]["mean"] == score.mean
            interval = "" if score.interval is None else "[{:.2f}, {:.2f}]".format(*score.interval)
            for form in forms:
                assert f"{score.mean:.2f}" in form
                assert interval in form
    for form in forms:
        assert all(note in re.sub(r"\s+", " ", form) for note in ("not finished", "2.00"))


def test_suites_without_a_headline_are_tables_too(found):
    table = of_suite(found, "geometry")
    assert {"alignment", "uniformity"} <= set(table.columns)
    assert [row[0] for row in table.cells] == ["minilm-l6 (teacher)", "ckd-tau", "l2"]


def test_markdown_takes_texts_literally():
    text = "a | b\n*c* `d` <e> _f_ g_h [i](j)"
    assert writers.inline(text) == r"a \| b \*c\* \`d\` \<e\> \_f\_ g_h [i]\(j)"


def test_the_front_holds_the_unbeaten_rows():
    points = [(1.0, 50.0), (2.0, 70.0), (3.0, 60.0), (4.0, 80.0)]
    assert front(points, low_cost=True) == [(1.0, 50.0), (2.0, 70.0), (4.0, 80.0)]
    assert front(points, low_cost=False) == [(4.0, 80.0)]


def test_a_picture_stands_by_itself(found):
    text = picture(found)
    assert text == picture(found)
    assert "var(--" not in text
    assert "<text" not in text
    with pytest.raises(DataError):
        picture(found[-1:])


def test_a_torn_line_of_metrics_costs_that_line_alone(tmp_path):
    run = make_run(tmp_path / "run")
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"step": 11, "lo')
    curves = read_curves(run)
    assert set(curves) == {"loss", "dev_spearman"}
    assert [step for step, _ in curves["loss"]] == list(range(1, 11))


@pytest.mark.parametrize(
    ("words", "start"),
    [
        (["--out", "r.json"], "{"),
        (["--out", "r.svg"], "<?xml"),
        (["--out", "r.md"], "# "),
        (["--out", "r.txt", "--format", "details"], "sts"),
    ],
)
def test_the_command_writes_the_format_of_the_ending_or_the_option(place, tmp_path, words, start):
    out = tmp_path / words[1]
    result = CliRunner().invoke(cli, ["report", str(place), "--out", str(out), *words[2:]])
    assert result.exit_code == 0, result.output
    assert out.read_text(encoding="utf-8").strip().startswith(start)


def test_the_command_prints_a_ranking_and_refuses_other_endings(place, tmp_path):
    result = CliRunner().invoke(cli, ["report", str(place)])
    assert result.exit_code == 0, result.output
    assert result.output.index("ckd-tau") < result.output.index("mse-cut")
    result = CliRunner().invoke(cli, ["report", str(place), "--out", str(tmp_path / "r.png")])
    assert result.exit_code == 2
