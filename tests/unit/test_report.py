"""What a report says of runs: grouped, averaged, marked, and nothing that is not known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from distill_helpers import HELD_OUT, TEXTS, small_run
from report_helpers import TEACHER_SETS, keep, keep_latency, make_run, report, set_scores, some_runs

from distill.cli.main import cli
from distill.errors import DataError
from distill.evaluation import kept as kept_module
from distill.evaluation.bootstrap import with_intervals
from distill.evaluation.fidelity import score_fidelity
from distill.evaluation.geometry import score_geometry
from distill.evaluation.options import BOOTSTRAP
from distill.evaluation.scores import SetScores
from distill.evaluation.sts import StsTask
from distill.evaluation.sts import read as read_sts
from distill.evaluation.tasks import Request
from distill.recipe import recipes
from distill.report import Report, collect_report
from distill.report.markdown import inline, render_markdown
from distill.report.neighbours import make_examples
from distill.report.students import student_key
from distill.report.tables import further_table, summary_table
from embedcache.fsio import read_sealed_json

pytest_plugins = ["distill_fixtures"]

SETS = {"stsb": 60.0, "sickr": 70.0}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report") / "sweep"
    some_runs(folder)
    return folder


@pytest.fixture(scope="module")
def found(place: Path) -> Report:
    return collect_report(place, queries=0)


def test_runs_that_differ_in_the_seed_alone_are_one_student(found):
    students = {student.name: student for student in found.students}
    assert list(students) == ["bert-tiny ckd", "bert-tiny l2", "bert-tiny mse"]
    l2 = students["bert-tiny l2"]
    assert (list(l2.runs), list(l2.seeds)) == (["l2-seed0", "l2-seed1"], [0, 1])
    score = l2.suites["sts"].sets["stsb"].score
    assert (score.mean, score.std, score.n) == (60.9, pytest.approx(2**0.5, abs=1e-4), 2)
    assert l2.suites["sts"].sets["stsb"].interval == (59.4, 62.15)
    teacher = sum(TEACHER_SETS.values()) / 3
    assert l2.suites["sts"].retention is not None
    assert l2.suites["sts"].retention.mean == pytest.approx(100 * (59.4333 + 60.1) / 2 / teacher, abs=1e-3)
    assert l2.dev is not None
    assert l2.dev.mean == pytest.approx(71.5)


def test_the_best_comes_first_and_what_is_not_known_last(found):
    assert [student.key for student in found.students] == ["A", "B", "C"]
    assert found.students[0].suites["sts"].headline.mean == pytest.approx(65.8667, abs=1e-4)
    assert "sts" not in found.students[2].suites
    assert not next(run for run in found.runs if run.student == "C").finished


def test_the_teacher_is_told_once(found):
    (teacher,) = found.teachers
    assert (teacher.key, teacher.name) == ("T", "minilm-l6")
    assert teacher.suites["sts"].sets["stsb"].score.mean == TEACHER_SETS["stsb"]
    assert teacher.suites["geometry"].others["alignment"].mean == pytest.approx(0.2, abs=0.02)
    assert {student.teacher for student in found.students} == {"T"}


def test_selection_and_contamination_are_marked(found):
    first, second, third = found.students
    chosen, seen = first.marks
    assert "chosen on 50 of the 60 test pairs of stsb" in chosen
    assert "stsb 12 of 120 sentences" in seen
    assert "sickr" not in seen
    assert second.marks == []
    assert third.marks == ["mse-cut is not finished"]


@pytest.mark.parametrize(("pairs", "said"), [(4, "a little too good"), (6, "no test result")])
def test_a_few_pairs_are_told_apart_from_many(tmp_path, pairs, said):
    facts = {"selected_on": [{"set": "stsb", "file": "pairs.tsv", "pairs": pairs, "of": 60}]}
    run = make_run(tmp_path / "run", sets=SETS, facts=facts)
    (mark,) = collect_report(run, queries=0).students[0].marks
    assert mark.startswith(f"its checkpoint was chosen on {pairs} of the 60 test pairs of stsb")
    assert mark.endswith(f"its figure there is {said}")


def speeds(found: Report) -> dict[str, float | None]:
    return {
        model.key: None if model.sentences_per_second is None else model.sentences_per_second.mean
        for model in found.models
    }


def test_speeds_are_those_of_the_latency_suite_where_every_student_was_timed(tmp_path):
    runs = [make_run(tmp_path / loss, loss=loss, sets=SETS, speed=900.0) for loss in ("l2", "mse")]
    keep_latency(runs[0], 2.0)
    half = collect_report(tmp_path, queries=0)
    assert (half.timed, speeds(half)) == (False, {"T": 300.4, "A": 900.0, "B": 900.0})
    assert "encoded a second while the model was evaluated" in render_markdown(half)
    assert any("not evaluated on latency: mse" in line for line in half.missing)
    keep_latency(runs[1], 4.0)
    # A run that was never evaluated has no speed to be timed.
    make_run(tmp_path / "ckd", loss="ckd", finished=False)
    whole = collect_report(tmp_path, queries=0)
    assert (whole.timed, speeds(whole)) == (True, {"T": 125.0, "A": 500.0, "B": 250.0, "C": None})
    assert whole.to_json()["timed"] is True
    assert "one sentence at a time on a CPU" in render_markdown(whole)
    assert not any("different machines" in note for note in whole.notes)


def test_a_teacher_that_was_not_timed_has_no_speed_beside_students_that_were(tmp_path):
    run = make_run(tmp_path / "run", sets=SETS)
    keep_latency(run, 2.0, teacher=False)
    assert speeds(collect_report(run, queries=0)) == {"T": None, "A": 500.0}


def test_timings_of_different_machines_are_told(tmp_path):
    for threads, loss in ((2, "l2"), (8, "mse")):
        keep_latency(make_run(tmp_path / loss, loss=loss, sets=SETS), 2.0, threads)
    (note,) = collect_report(tmp_path, queries=0).notes
    assert "different machines: some CPU, 2 threads; some CPU, 8 threads" in note


def test_the_recipe_that_a_run_was_started_with_wins_over_the_nearest(tmp_path, monkeypatch):
    mine = {"loss": "congen", "seed": 1}

    def paper_of(name: str, recipe: str | None) -> str:
        found = collect_report(make_run(tmp_path / name, recipe=recipe, **mine), queries=0)
        assert found.runs[0].facts.get("recipe") == recipe
        return found.students[0].paper.recipe

    there = recipes()
    like = there["congen/bert-tiny"]
    # Of two recipes of this student and loss, this one has less that the run does otherwise.
    near = like.model_copy(update={"name": "near/bert-tiny", "config": {**like.config, "optimizer": {}}})
    monkeypatch.setattr("distill.report.paper.recipes", lambda: {**there, near.name: near})
    assert paper_of("nameless", None) == "near/bert-tiny"
    assert paper_of("named", "congen/bert-tiny") == "congen/bert-tiny"
    # One of another student has no figure for this one, nor has one that is gone.
    assert paper_of("elsewhere", "congen/bert-mini") == "near/bert-tiny"
    assert paper_of("gone", "gone/recipe") == "near/bert-tiny"


def test_the_papers_figure_stands_with_what_was_done_otherwise(found):
    paper = found.students[1].paper
    assert paper is not None
    assert (paper.recipe, paper.figure, paper.teacher) == ("congen/bert-tiny", 73.32, 78.9)
    assert ("training.epochs", "20", "1") in paper.differences
    assert not any(key == "student.dropout" for key, _, _ in paper.differences)
    # ConGen's table has no row for mse, DistilCSE none for this student.
    assert found.students[2].paper is None


def simtde(folder: Path, **settings) -> Path:
    return make_run(folder, loss="simtde", student="compact:e=64,layers=2", **settings)


def summary_of(*runs: Path) -> dict[str, dict[str, str]]:
    table = summary_table(collect_report(runs, queries=0))
    return {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}


def test_a_papers_figure_stands_beside_those_of_its_own_suite_alone(tmp_path):
    run = simtde(tmp_path / "sts", sets=SETS)
    paper = collect_report(run, queries=0).students[0].paper
    assert (paper.recipe, paper.suite, paper.relative) == ("simtde/entities-64", "entities", True)
    # Recall@1 in per cent of a teacher's is nothing to hold a Spearman correlation against.
    row = summary_of(run)["A"]
    assert row["paper"] == "–"  # noqa: RUF001
    assert "paper's retention" not in row
    assert "Paper:" not in summary_table(collect_report(run, queries=0)).caption
    assert "| A | simtde/entities-64 | entities | 100.09 % | 100.00 % |" in render_markdown(
        collect_report(run, queries=0)
    )


def test_a_figure_in_per_cent_of_the_teachers_stands_beside_the_retention(tmp_path):
    run, plain = simtde(tmp_path / "er"), make_run(tmp_path / "l2")
    for folder, figure in ((run, 70.63), (plain, 60.0)):
        beside = report("minilm-l6", "teacher", set_scores({"cities": 70.85}))
        keep(folder, "entities", report(folder.name, "model", set_scores({"cities": figure})), beside)
    rows = summary_of(run, plain)
    (own,) = [row for row in rows.values() if "simtde" in row["model"]]
    assert (own["entities"], own["paper's retention"], own["paper"]) == ("70.63", "100.09 %", "–")  # noqa: RUF001
    assert own["retention"].startswith("99.69 %")
    # ConGen's figures for the other student are of another suite.
    (other,) = [row for row in rows.values() if "l2" in row["model"]]
    assert (other["paper's retention"], other["paper"]) == ("–", "–")  # noqa: RUF001
    assert rows["T"]["paper's retention"] == "–"  # noqa: RUF001


def test_of_two_recipes_that_of_an_evaluated_suite_comes_first(tmp_path, monkeypatch):
    there = recipes()
    like = there["simtde/entities-64"]
    # It departs from the run in more than the other, but its figures are of what was measured.
    of_sts = like.model_copy(
        update={
            "name": "far/e64",
            "about": like.about.model_copy(update={"suite": "sts", "relative": False}),
            "config": {**like.config, "optimizer": {"lr": 0.5, "warmup": 0.5}},
        }
    )
    monkeypatch.setattr("distill.report.paper.recipes", lambda: {**there, of_sts.name: of_sts})
    assert collect_report(simtde(tmp_path / "no"), queries=0).students[0].paper.recipe == like.name
    run = simtde(tmp_path / "sts", sets=SETS)
    assert collect_report(run, queries=0).students[0].paper.recipe == "far/e64"
    assert summary_of(run)["A"]["paper"] == "100.09"


def test_what_was_not_evaluated_is_told_with_how_to(found):
    assert "not evaluated on sts: mse-cut; run: distill eval RUN --suite sts --data DIR" in found.missing
    assert any("fidelity" in line and "l2-seed0, l2-seed1" in line for line in found.missing)


def test_curves_and_pairs_are_those_of_the_files(found):
    run = found.runs[1]
    assert run.name == "l2-seed0"
    assert run.loss_curve[0] == (1, 3.0)
    assert run.dev_curve[-1] == (10, 66.0)
    assert found.pairs is not None
    assert found.pairs.label == "STS-B"
    assert list(found.pairs.cosines) == ["T", "A", "B"]
    assert all(len(cosines) == len(found.pairs.gold) == 60 for cosines in found.pairs.cosines.values())


def test_json_is_the_report(found):
    value = json.loads(json.dumps(found.to_json()))
    assert value["format"] == 1
    assert value["students"][1]["suites"]["sts"]["sets"]["stsb"]["score"]["mean"] == 60.9
    assert value["runs"][0]["teachers"][0][1]["pooling"] == "mean"


def test_markdown_has_the_tables_and_the_marks(found):
    text = render_markdown(found)
    assert "| B | bert-tiny l2 | T | 59.77 ± 0.47 |" in text
    assert "60.90 ± 1.41 [59.40, 62.15]" in text
    assert "chosen on 50 of the 60 test pairs" in text
    assert "tau: 0.05" in text
    assert "## Not known" in text


def test_markdown_takes_texts_literally():
    assert inline("a | b\n<i>") == r"a \| b \<i\>"
    assert inline("eval_sts _x_ [a](b)") == r"eval_sts \_x\_ [a]\(b)"


def test_settings_that_vary_are_in_the_names(tmp_path):
    for tau in (0.05, 0.1):
        make_run(tmp_path / f"r{tau}", loss="ckd", tau=tau)
    names = [student.name for student in collect_report(tmp_path, queries=0).students]
    assert sorted(names) == ["bert-tiny ckd tau=0.05", "bert-tiny ckd tau=0.1"]


def test_a_seed_that_is_there_twice_is_told(tmp_path):
    runs = [make_run(tmp_path / name, sets=SETS) for name in ("one", "two")]
    found = collect_report(runs, queries=0)
    (student,) = found.students
    assert student.seeds == [0]
    assert student.suites["sts"].headline.n == 1
    assert "two: not in a mean over seeds, it is of the same settings and seed as one" in found.notes


def test_an_average_over_fewer_sets_is_not_mixed_with_the_others(tmp_path):
    fewer = {"stsb": SETS["stsb"]}
    runs = [make_run(tmp_path / str(seed), seed=seed, sets=SETS) for seed in (0, 1)]
    runs.append(make_run(tmp_path / "2", seed=2, sets=fewer, teacher_sets={"stsb": 82.0}))
    found = collect_report(runs, queries=0)
    (student,) = found.students
    assert student.suites["sts"].headline is not None
    assert student.suites["sts"].headline.n == 2
    assert any("2: left out of sts, evaluated on stsb (60), most runs on" in line for line in found.missing)


def test_an_evaluation_of_another_student_is_not_used(tmp_path):
    run = make_run(tmp_path / "run", sets=SETS)
    (run / "best" / "model.safetensors").write_bytes(b"trained anew")
    found = collect_report(run, queries=0)
    assert found.suites == []
    assert any("is of another student" in line for line in found.missing)


def test_a_damaged_evaluation_is_told_and_not_used(tmp_path):
    run = make_run(tmp_path / "run", sets=SETS)
    place = run / "eval-sts.json"
    place.write_text(place.read_text(encoding="utf-8").replace("60.0", "90.0"), encoding="utf-8")
    found = collect_report(run, queries=0)
    assert found.suites == []
    assert any("eval-sts.json cannot be read" in line for line in found.missing)


def test_what_is_kept_is_read_once(tmp_path, monkeypatch):
    run = make_run(tmp_path / "run", sets=SETS)
    (run / "eval-nli.json").write_text("{}", encoding="utf-8")
    read: list[str] = []

    def read_and_note(place, largest):
        read.append(place.name)
        return read_sealed_json(place, largest)

    monkeypatch.setattr(kept_module, "read_sealed_json", read_and_note)
    found = collect_report(run, queries=0)
    assert sorted(read) == ["eval-nli.json", "eval-sts.json"]
    assert any("eval-nli.json cannot be read" in line for line in found.missing)


def test_without_a_teacher_beside_it_there_is_no_retention(tmp_path):
    run = make_run(tmp_path / "run", sets=SETS, teacher_sets=None)
    found = collect_report(run, queries=0)
    assert found.students[0].suites["sts"].retention is None
    assert found.teachers[0].suites == {}
    assert any("no retention" in line for line in found.missing)


def test_a_run_without_a_teacher_may_have_been_evaluated_beside_one(tmp_path):
    run = make_run(tmp_path / "run", sets=SETS)
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**record, "teacher": None, "teachers": []}))
    found = collect_report(run, queries=0)
    assert (found.teachers, found.students[0].teacher) == ([], None)
    assert found.students[0].suites["sts"].retention is not None
    assert list(found.pairs.cosines) == ["A"]


def bare_scores() -> SetScores:
    return with_intervals(set_scores(SETS), 0)


def test_intervals_that_were_not_kept_are_drawn(tmp_path):
    run = make_run(tmp_path / "run")
    keep(run, "sts", report("run", "model", bare_scores()), None)
    (student,) = collect_report(run, queries=0).students
    assert student.suites["sts"].interval is not None
    low, high = student.suites["sts"].sets["stsb"].interval
    assert 0 < low < high < 100


def test_intervals_of_other_draws_are_drawn_again_and_those_of_the_same_are_not(tmp_path, monkeypatch):
    few = with_intervals(bare_scores(), 40)
    other = with_intervals(bare_scores(), BOOTSTRAP, seed=3)
    whole = with_intervals(bare_scores(), BOOTSTRAP)
    assert few.average_interval != whole.average_interval != other.average_interval
    for place, scores in enumerate((few, other, whole)):
        run = make_run(tmp_path / f"run{place}", tau=place / 10)
        keep(run, "sts", report(f"run{place}", "model", scores), None)
    shown = {one.name: one.suites["sts"] for one in collect_report(tmp_path, queries=0).students}
    assert len(shown) == 3
    low, high = whole.average_interval
    assert {one.interval for one in shown.values()} == {(round(low, 4), round(high, 4))}

    def refuse(*_: object) -> None:
        raise AssertionError("drawn again")

    monkeypatch.setattr("distill.evaluation.bootstrap._taken", refuse)
    assert collect_report(tmp_path / "run2", queries=0).students[0].suites["sts"].interval is not None
    with pytest.raises(AssertionError, match="drawn again"):
        collect_report(tmp_path / "run0", queries=0)


def test_geometry_kept_without_intervals_has_them_drawn(tmp_path):
    rng = np.random.default_rng(4)
    vectors = rng.standard_normal((80, 6)).astype(np.float32)
    scores = score_geometry(vectors, vectors[:40], vectors[:40] + vectors[40:] / 4)
    assert scores.intervals == {}
    run = make_run(tmp_path / "run")
    keep(run, "geometry", report("run", "model", scores), None)
    keep(run, "fidelity", report("run", "model", score_fidelity(vectors, vectors + vectors[::-1])), None)
    (student,) = collect_report(run, queries=0).students
    shape, likeness = student.suites["geometry"], student.suites["fidelity"]
    assert set(shape.intervals) == {"alignment", "uniformity", "anisotropy"}
    assert set(likeness.intervals) == {"cosine.mean", "cosine.p05", "similarity_spearman"}
    for figures in (shape, likeness):
        for name, (low, high) in figures.intervals.items():
            assert low < figures.others[name].mean < high, name


def test_every_measure_is_in_markdown_and_json_with_its_interval(found):
    value = found.to_json()
    (two,) = [one for one in value["students"] if len(one["runs"]) == 2]
    stsb = two["suites"]["sts"]["sets"]["stsb"]
    # The mean of both runs, and of the ends of their intervals.
    assert stsb["others"]["pearson"]["mean"] == pytest.approx(58.9)
    assert stsb["intervals"]["pearson"] == pytest.approx((57.4, 60.15))
    low, high = two["suites"]["geometry"]["intervals"]["alignment"]
    assert (low, high) == pytest.approx((0.295, 0.325))
    markdown = render_markdown(found)
    assert "### Further measures of sts" in markdown
    assert "58.90 ± 1.41 [57.40, 60.15]" in markdown
    assert "0.3050 ± 0.0071 [0.2950, 0.3250]" in markdown
    assert "0.8000 [0.7900, 0.8100]" in markdown


def test_a_set_without_further_measures_has_no_column_among_them(found):
    (model,) = found.teachers
    figures = model.suites["sts"]
    bare = {**figures.sets, "sts12": replace(figures.sets["sts12"], others={}, intervals={})}
    alone = replace(model, suites={"sts": replace(figures, sets=bare)})
    table = further_table(replace(found, teachers=[alone], students=[]), "sts")
    assert table.columns == ["", "model", "measure", "STS-B", "SICK-R"]
    none = {name: replace(one, others={}) for name, one in figures.sets.items()}
    alone = replace(model, suites={"sts": replace(figures, sets=none)})
    assert further_table(replace(found, teachers=[alone], students=[]), "sts") is None


def test_retention_has_an_interval_where_the_teacher_was_drawn_alike(found):
    (two,) = [one for one in found.students if len(one.runs) == 2]
    figures = two.suites["sts"]
    low, high = figures.retention_interval
    assert low < figures.retention.mean < high
    row = next(row for row in summary_table(found).rows if row[0] == two.key)
    assert f"% [{low:.2f}, {high:.2f}]" in row[5]
    assert found.teachers[0].suites["sts"].retention_interval is None
    assert found.to_json()["students"][0]["suites"]["sts"]["retention_interval"] is not None


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_damaged_record_is_named(tmp_path, content):
    run = make_run(tmp_path / "run")
    (run / "run.json").write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match="run"):
        collect_report(run, queries=0)


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(DataError, match="holds no run"):
        collect_report(tmp_path, queries=0)
    with pytest.raises(DataError, match="no folder"):
        collect_report(tmp_path / "nowhere", queries=0)


def test_a_torn_line_of_metrics_costs_that_line_alone(tmp_path):
    run = make_run(tmp_path / "run")
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"step": 11, "lo')
    assert len(collect_report(run, queries=0).runs[0].loss_curve) == 10


def test_letters_never_end_and_are_never_the_teachers():
    keys = [student_key(place) for place in range(80)]
    assert len(set(keys)) == 80
    assert keys[:2] == ["A", "B"]
    assert not any(key.startswith("T") for key in keys)


def test_neighbours_are_the_nearest_and_marked_where_the_teacher_has_them():
    texts = ["north", "north-east", "east", "south"]
    angles = {"T": [90, 45, 0, 270], "A": [90, 20, 60, 270]}
    vectors = {
        key: np.array([[np.cos(a), np.sin(a)] for a in np.radians(values)], dtype=np.float32)
        for key, values in angles.items()
    }
    found = make_examples(texts, vectors, "T", queries=4, source="here")
    north = next(query for query in found.queries if query.text == "north")
    assert [one.text for one in north.nearest["T"]] == ["north-east", "east", "south"]
    assert [one.text for one in north.nearest["A"]] == ["east", "north-east", "south"]
    assert north.nearest["T"][0].cosine == pytest.approx(np.cos(np.pi / 4), abs=1e-4)
    assert all(one.shared for one in north.nearest["A"])
    assert found == make_examples(texts, vectors, "T", queries=4, source="here")


def test_neighbours_the_teacher_does_not_have_are_not_marked():
    rng = np.random.default_rng(0)
    texts = [str(number) for number in range(40)]
    vectors = {key: rng.normal(size=(40, 8)).astype(np.float32) for key in "TA"}
    found = make_examples(texts, vectors, "T", queries=10, source="here")
    shared = [one.shared for query in found.queries for one in query.nearest["A"]]
    assert any(shared) != all(shared)
    with pytest.raises(DataError, match="not as many"):
        make_examples(texts[:5], vectors, "T", queries=1, source="here")


def test_the_command_writes_what_the_ending_says(place, tmp_path):
    out = tmp_path / "report.json"
    result = CliRunner().invoke(cli, ["report", str(place), "--out", str(out), "--neighbours", "0"])
    assert result.exit_code == 0, result.output
    assert json.loads(out.read_text(encoding="utf-8"))["students"][0]["key"] == "A"
    result = CliRunner().invoke(cli, ["report", str(place), "--neighbours", "0", "--suite", "geometry"])
    assert result.exit_code == 0, result.output
    assert "alignment" in result.output
    assert "(spearman)" not in result.output
    picture = tmp_path / "report.png"
    result = CliRunner().invoke(cli, ["report", str(place), "--out", str(picture), "--neighbours", "0"])
    assert result.exit_code == 2
    assert "ends in .html, .htm, .md, .json, .svg, or --format" in result.output
    assert not picture.exists()


def test_what_is_missing_is_evaluated_where_data_is_given_and_kept(built_cache, tmp_path, monkeypatch):
    run = small_run(built_cache, tmp_path / "run")
    data = tmp_path / "data"
    data.mkdir()
    # Every other sentence stands beside itself.
    pairs = [
        (one, TEXTS[place + 60 * (place % 2)], 5 * (place % 2 == 0)) for place, one in enumerate(TEXTS[:60])
    ]
    lines = [f"x\t{score}\t{left}\t{right}" for left, right, score in pairs]
    text = "\n".join(["subset\tscore\tsentence1\tsentence2", *lines]) + "\n"
    (data / "stsb_test.tsv").write_text(text, encoding="utf-8")
    read = 0

    def counted(request: Request) -> StsTask:
        nonlocal read
        read += 1
        return read_sts(request)

    monkeypatch.setattr("distill.evaluation.sts.read", counted)
    found = collect_report(run.folder, data=data, suites=["sts", "fidelity", "nli"], queries=2, device="cpu")
    (student,) = found.students
    assert set(student.suites) == {"sts", "fidelity"}
    assert student.suites["sts"].sets["stsb"].items == 60
    assert found.teachers[0].suites["sts"].sets["stsb"].items == 60
    assert any("nli" in line for line in found.missing)
    assert read == 1
    assert found.examples is not None
    assert found.examples.sentences == HELD_OUT
    assert [list(query.nearest) for query in found.examples.queries] == [["T", "A"]] * 2
    held_out = [json.loads(line) for line in (run.folder / "held_out.txt").read_text().splitlines()]
    assert {query.text for query in found.examples.queries} <= set(held_out)

    def refuse(*_: object) -> None:
        raise AssertionError("a model was loaded although everything is kept")

    monkeypatch.setattr("distill.evaluation.loader.load_model", refuse)
    again = collect_report(run.folder, suites=["sts", "fidelity"], queries=0)
    assert again.students[0].suites["sts"].headline == student.suites["sts"].headline
    assert again.students[0].suites["fidelity"] == student.suites["fidelity"]
