"""Evaluations of several models: what is encoded, kept, compared with the teacher and told."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from suite_helpers import Counted, model, vectors_of, write_pairs

from distill.errors import DataError
from distill.evaluation import cache, evaluate, evaluate_suites
from distill.evaluation.models import Model, open_model, saved_parameters, weight_bytes
from distill.evaluation.table import render
from distill.evaluation.task import suites
from distill.layout import HELD_OUT
from embedcache.fsio import write_json


@pytest.fixture(autouse=True)
def _home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("home")))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    write_pairs(folder / "stsb_test.tsv")
    write_pairs(folder / "sts12_test.tsv", 30)
    return folder


def run(folder: Path, weights: str = "w") -> Model:
    """Return the student of a run in memory."""
    folder.mkdir(exist_ok=True)
    found = model(folder.name)
    found.run, found.identity = folder, lambda: weights
    return found


def teacher(identity: str | None = "contract t") -> Model:
    found = model("teacher", 6)
    found.identity = lambda: identity
    return found


def test_students_stand_beside_their_teacher_with_retention_and_intervals(data: Path) -> None:
    found = evaluate([model("a"), model("b")], data=data, teacher=teacher())
    assert [(facts.name, facts.role) for facts, _ in found.models] == [
        ("teacher", "teacher"),
        ("a", "student"),
        ("b", "student"),
    ]
    share = found.retention("a")
    if found["teacher"].average > 0:
        assert share is not None
        assert share.value == pytest.approx(100 * found["a"].average / found["teacher"].average)
    for figure in found["a"].figures.values():
        assert figure.interval is not None
        assert figure.interval[0] <= figure.value <= figure.interval[1]


def test_no_sentence_is_encoded_twice_over_suites(data: Path) -> None:
    one = model()
    evaluate_suites(one, ["sts", "geometry"], data=data)
    assert len(one.encoder.seen) == len(set(one.encoder.seen))


def test_all_suites_are_those_that_find_their_files(data: Path) -> None:
    found = evaluate_suites(model(), data=data)
    assert [one.suite for one in found] == ["sts", "geometry"]
    assert any("fidelity" in note for note in found[0].notes)
    assert any("latency" in note for note in found[0].notes)
    (data / "sick.tsv").write_text("broken\n")
    with pytest.raises(DataError, match=r"sick\.tsv"):
        evaluate_suites(model(), data=data)


def test_a_runs_evaluation_is_kept_in_its_folder_and_nothing_is_encoded_again(
    tmp_path: Path, data: Path
) -> None:
    first = evaluate(run(tmp_path / "r"), data=data, keep=True)
    again = run(tmp_path / "r")
    second = evaluate(again, data=data, keep=True)
    assert again.encoder.seen == []
    assert second["r"] == first["r"]
    kept = cache.read_kept(tmp_path / "r", "sts")
    assert kept is not None
    outcomes = kept.scored[1].figures["stsb"].outcomes
    assert outcomes is not None
    assert np.array_equal(outcomes.values, first["r"].figures["stsb"].outcomes.values)


@pytest.mark.parametrize("change", ["data", "weights", "dtype", "again", "damage"])
def test_a_kept_evaluation_is_used_only_while_all_that_decides_it_is_the_same(
    tmp_path: Path, data: Path, change: str
) -> None:
    evaluate(run(tmp_path / "r"), data=data, keep=True)
    if change == "data":
        write_pairs(data / "stsb_test.tsv", 25)
    if change == "damage":
        path = cache.kept_path(tmp_path / "r", "sts")
        path.write_text(path.read_text().replace("spearman", "spearmen", 1))
    student = run(tmp_path / "r", "other" if change == "weights" else "w")
    options = (
        {"compute_dtype": "bfloat16"} if change == "dtype" else {"again": True} if change == "again" else {}
    )
    evaluate(student, data=data, keep=True, **options)
    assert student.encoder.seen


def test_options_and_files_of_other_suites_change_nothing(tmp_path: Path, data: Path) -> None:
    evaluate(run(tmp_path / "r"), data=data, keep=True)
    (data / "er_x_entities.tsv").write_text("unread")
    student = run(tmp_path / "r")
    evaluate(student, data=data, keep=True, snli_pairs=9, seed=0)
    assert student.encoder.seen == []


def test_a_teacher_is_kept_by_its_identity_for_all_students(tmp_path: Path, data: Path) -> None:
    evaluate(run(tmp_path / "a"), data=data, teacher=teacher(), keep=True)
    again = teacher()
    found = evaluate([run(tmp_path / "a"), run(tmp_path / "b")], data=data, teacher=again, keep=True)
    assert again.encoder.seen == []
    assert found.teacher == "teacher"
    other = teacher("contract other")
    evaluate(run(tmp_path / "a"), data=data, teacher=other, keep=True)
    assert other.encoder.seen


def test_the_teacher_stays_beside_a_student_that_is_evaluated_by_itself(tmp_path: Path, data: Path) -> None:
    evaluate(run(tmp_path / "a"), data=data, teacher=teacher(), keep=True)
    evaluate(run(tmp_path / "a"), data=data, keep=True)
    kept = cache.read_kept(tmp_path / "a", "sts")
    assert kept is not None
    assert kept.evaluation.teacher == "teacher"


def test_fidelity_reads_what_runs_held_out_and_depends_on_the_teacher(tmp_path: Path) -> None:
    student = run(tmp_path / "r")
    (tmp_path / "r" / HELD_OUT).write_text("".join(f"{json.dumps(f's{i}')}\n" for i in range(20)))
    found = evaluate(student, "fidelity", teacher=teacher(), keep=True)
    assert found["r"].settings["sentences"] == 20
    again = run(tmp_path / "r")
    evaluate(again, "fidelity", teacher=teacher("contract other"), keep=True)
    assert again.encoder.seen
    with pytest.raises(DataError, match="teacher"):
        evaluate(student, "fidelity")


def test_without_keep_nothing_is_written(tmp_path: Path, data: Path) -> None:
    evaluate(run(tmp_path / "r"), data=data, teacher=teacher())
    assert list((tmp_path / "r").iterdir()) == []


def test_a_folder_that_cannot_be_written_costs_a_note(tmp_path: Path, data: Path) -> None:
    student = run(tmp_path / "r")
    cache.kept_path(tmp_path / "r", "sts").mkdir()
    found = evaluate(student, data=data, keep=True)
    assert any("not kept" in note for note in found.notes)


def test_models_of_one_name_are_told_apart(data: Path) -> None:
    one, other = model("same", salt="a"), model("same", salt="b")
    found = evaluate([one, other], data=data, teacher=Model("same", Counted(4)))
    assert len({facts.name for facts, _ in found.models}) == 3


@pytest.mark.parametrize(("bad", "noun"), [(0.0, "zero"), (np.nan, "NaN")])
def test_vectors_without_a_direction_are_an_error_that_names_the_sentence(
    data: Path, bad: float, noun: str
) -> None:
    def encode(texts: list[str]) -> np.ndarray:
        vectors = vectors_of(texts)
        vectors[[text == "left 3" for text in texts]] = bad
        return vectors

    with pytest.raises(DataError, match=f"{noun}.*left 3"):
        evaluate(Model("m", encode), data=data)


@pytest.mark.parametrize(
    ("options", "noun"),
    [
        ({"suite": "stss"}, "did you mean sts"),
        ({"data": "nowhere"}, "nowhere"),
        ({"limit": 3}, "limit"),
        ({"cache": "c"}, "--teacher"),
    ],
)
def test_what_cannot_be_meant_is_an_error(data: Path, options: dict, noun: str) -> None:
    with pytest.raises(DataError, match=noun):
        evaluate(model(), **({"data": data} | options))


@pytest.mark.parametrize("name", ["no-such-model", "./nowhere", "runs/none/x"])
def test_a_model_that_does_not_exist_is_an_error(name: str) -> None:
    from embedcache.errors import EmbedCacheError

    with pytest.raises((DataError, EmbedCacheError), match=name.rpartition("/")[0] or name):
        open_model(name)


def test_every_suite_names_the_files_it_reads_or_reads_sentences() -> None:
    for suite in suites().values():
        assert suite.summary
        assert suite.files or suite.needs_teacher
        assert (suite.items is not None) == (suite.name not in ("geometry", "latency", "fidelity"))


def test_sizes_are_read_from_the_files(tiny_teacher: Path, loaded_teacher) -> None:
    from distill.students.build import count_parameters

    assert saved_parameters(tiny_teacher) == count_parameters(loaded_teacher.model)
    assert weight_bytes(tiny_teacher) == sum(
        path.stat().st_size for path in tiny_teacher.rglob("*.safetensors")
    )


def test_a_cached_teacher_stores_what_it_encodes(tmp_path: Path, tiny_teacher: Path, data: Path) -> None:
    import embedcache

    (tmp_path / "t.txt").write_text("a\nb\n")
    embedcache.build(tmp_path / "t.txt", teacher=tiny_teacher, cache=tmp_path / "c")
    first = open_model(f"cache:{tmp_path / 'c'}")
    figures = evaluate(first, data=data)
    assert first.encoded > 0
    second = open_model(f"cache:{tmp_path / 'c'}#tiny")
    assert evaluate(second, data=data)["tiny"] == figures["tiny"]
    assert (second.encoded, second.recalled) == (0, first.encoded)


def test_tables_and_json_show_every_model_and_set(tmp_path: Path, data: Path) -> None:
    from rich.console import Console

    found = evaluate_suites(
        [run(tmp_path / "a"), model("b")], ["sts", "geometry"], data=data, teacher=teacher()
    )
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(render(found))
    text = console.export_text()
    for wanted in ("a", "b", "teacher (teacher)", "STS12", "STS-B", "average", "retention", "95 % interval"):
        assert wanted in text
    write_json(tmp_path / "out.json", found[0].to_json())
    facts = json.loads((tmp_path / "out.json").read_text())
    assert [one["name"] for one in facts["models"]] == ["teacher", "a", "b"]
    assert "outcomes" not in facts["models"][0]["figures"]["stsb"]
