"""Kept evaluations: what a run's folder keeps is not encoded for again, unless something has changed."""

from __future__ import annotations

import errno
import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner
from evaluation_helpers import write_rows
from kept_helpers import HEADER, HELD_OUT, PAIRS, Bench

from distill.cli.evaluate import evaluate_command
from distill.evaluation import evaluate, evaluate_suites
from distill.evaluation.comparison import compare
from distill.evaluation.kept import all_kept, place_of, read_kept
from distill.evaluation.scores import PairOutcomes, SetScores
from embedcache import fsio
from embedcache.fsio import read_sealed_json, write_sealed_json


@pytest.fixture
def bench(tmp_path, monkeypatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def facts_of(result) -> dict[str, object]:
    """The result without what says how it came about."""
    facts = result.to_json()
    return {key: facts[key] for key in ("suite", "models", "missing", "data")}


def test_the_same_again_encodes_nothing_and_says_so(bench):
    first = bench.evaluate()
    assert set(bench.encoded()) == {"first", "big"}
    again = bench.evaluate()
    assert bench.encoded() == {}
    for new, old in zip(again.to_json()["models"], first.to_json()["models"], strict=True):
        assert new == old
    assert [report.role for report in again.models] == ["teacher", "model"]
    note = next(note for note in again.notes if "--again" in note)
    assert "eval-sts.json" in note
    assert not any("--again" in note for note in first.notes)


def test_nothing_is_kept_or_used_unless_asked_for(bench):
    bench.evaluate(keep=False)
    assert not place_of(bench.run, "sts").exists()
    bench.evaluate()
    bench.encoded()
    bench.evaluate(keep=False)
    assert set(bench.encoded()) == {"first", "big"}


def test_again_evaluates_anew(bench):
    bench.evaluate()
    bench.encoded()
    result = bench.evaluate(again=True)
    assert set(bench.encoded()) == {"first", "big"}
    assert not any("--again" in note for note in result.notes)


@pytest.mark.parametrize(
    "change",
    [
        lambda bench: (bench.run / "best" / "model.safetensors").write_bytes(b"other weights"),
        lambda bench: write_rows(bench.data, "stsb_test", HEADER, *PAIRS[1:]),
        lambda bench: write_rows(bench.data, "sts13_test", HEADER, *PAIRS),
        lambda bench: {"compute_dtype": "bfloat16"},
    ],
    ids=["the student", "a set", "one more set", "the number format"],
)
def test_what_decides_the_figures_has_changed(bench, change):
    bench.evaluate()
    bench.encoded()
    settings = change(bench)
    bench.evaluate(**(settings if isinstance(settings, dict) else {}))
    assert bench.encoded()["first"] > 0


def test_a_card_beside_the_weights_changes_nothing(bench):
    bench.evaluate()
    bench.encoded()
    (bench.run / "best" / "README.md").write_text("A card.", encoding="utf-8")
    bench.evaluate()
    assert bench.encoded() == {}


def test_only_the_suite_that_is_new_is_encoded_for(bench):
    bench.evaluate()
    bench.encoded()
    results = evaluate_suites(bench.run, suites=["sts", "fidelity"], data=bench.data, keep=True, bootstrap=0)
    assert [result.suite for result in results] == ["sts", "fidelity"]
    assert bench.encoded() == {"big": len(HELD_OUT), "first": len(HELD_OUT)}
    assert sorted(all_kept(bench.run)) == ["fidelity", "sts"]


def test_another_teacher_is_evaluated_beside_a_student_that_is_not(bench):
    first = bench.evaluate()
    bench.encoded()
    other = bench.evaluate(teacher="org/other")
    assert set(bench.encoded()) == {"other"}
    assert other.models[1].scores.headline == pytest.approx(first.models[1].scores.headline)
    assert [report.name for report in other.models] == ["other", "first"]
    # That pair is what is kept from now on.
    bench.evaluate(teacher="org/other")
    assert bench.encoded() == {}


def test_likeness_to_another_teacher_is_another_figure(bench):
    settings = {"suite": "fidelity", "data": None}
    bench.evaluate(**settings)
    bench.encoded()
    bench.evaluate(**settings)
    assert bench.encoded() == {}
    bench.evaluate(**settings, teacher="org/other")
    assert set(bench.encoded()) == {"first", "other"}


def test_a_student_by_itself_is_kept_without_a_teacher(bench):
    alone = bench.evaluate(beside_teacher=False)
    assert [report.role for report in alone.models] == ["model"]
    assert set(bench.encoded()) == {"first"}
    both = bench.evaluate()
    assert set(bench.encoded()) == {"big"}
    assert both.models[1].retention is not None
    assert read_kept(bench.run, "sts").teacher.report.name == "big"


@pytest.mark.parametrize("again", [True, False])
def test_a_comparison_leaves_the_teacher_that_stood_there(bench, again):
    first = bench.evaluate()
    before = read_kept(bench.run, "sts")
    bench.encoded()
    compare(bench.run, "org/other", data=bench.data, draws=100, again=again)
    assert set(bench.encoded()) == ({"first", "other"} if again else {"other"})
    after = read_kept(bench.run, "sts")
    assert after.teacher.report.to_json() == before.teacher.report.to_json()
    assert after.teacher_digest == before.teacher_digest
    assert [model["name"] for model in after.result["models"]] == ["big", "first"]
    assert after.result["teacher"] == "big"
    assert after.result["models"][1]["retention"] == before.result["models"][1]["retention"] is not None
    # So nothing has to be encoded for it again.
    second = bench.evaluate()
    assert bench.encoded() == {}
    assert second.models[1].retention == first.models[1].retention


def test_the_teacher_of_other_data_goes_with_them(bench):
    bench.evaluate()
    write_rows(bench.data, "stsb_test", HEADER, *PAIRS[1:])
    compare(bench.run, "org/other", data=bench.data, draws=100, again=True)
    kept = read_kept(bench.run, "sts")
    assert kept.teacher is None
    assert [model["name"] for model in kept.result["models"]] == ["first"]


def test_models_without_a_folder_of_their_own_stand_beside_kept_ones(bench):
    bench.evaluate()
    bench.encoded()
    result = evaluate([bench.run, "org/other"], data=bench.data, keep=True, bootstrap=0)
    assert set(bench.encoded()) == {"other"}
    assert [report.name for report in result.models] == ["big", "first", "other"]


def test_a_run_that_moved_keeps_its_name_apart_from_another(bench):
    bench.evaluate()
    twin = bench.run.parent.parent / "others" / "first"
    (twin / "best").mkdir(parents=True)
    (twin / "run.json").write_text("{}", encoding="utf-8")
    result = evaluate([bench.run, twin], data=bench.data, keep=True, bootstrap=0)
    assert [report.name for report in result.models] == ["big", "first", str(twin)]


def test_a_run_of_a_taken_name_has_one_name_in_all_suites_though_one_of_them_is_kept(bench):
    twin = bench.run.parent.parent / "others" / "first"
    shutil.copytree(bench.run, twin)
    evaluate(twin, data=bench.data, keep=True, bootstrap=0)
    results = evaluate_suites(
        [bench.run, twin], suites=["sts", "fidelity"], data=bench.data, keep=True, bootstrap=0
    )
    for result in results:
        assert [report.name for report in result.models] == ["big", "first", str(twin)]


def test_a_run_that_held_nothing_out_is_scored_by_all_other_suites(bench):
    (bench.run / "held_out.txt").unlink()
    results = evaluate_suites(bench.run, data=bench.data, keep=True, bootstrap=0)
    assert [result.suite for result in results] == ["sts", "geometry"]
    assert any("left out" in note and "the run held no sentences out" in note for note in results[0].notes)


def test_runs_that_held_out_other_sentences_are_scored_by_all_other_suites(bench):
    other = bench.run.parent / "second"
    shutil.copytree(bench.run, other)
    (other / "held_out.txt").write_text("".join(f'"other {number}"\n' for number in range(12)))
    bench.seen["second"] = Counter()
    results = evaluate_suites([bench.run, other], data=bench.data, keep=True, bootstrap=0)
    assert [result.suite for result in results] == ["sts", "geometry"]
    assert any("held out different sentences" in note for note in results[0].notes)


def test_single_outcomes_are_kept_with_the_figures(bench):
    result = bench.evaluate(bootstrap=50)
    kept = read_kept(bench.run, "sts")
    assert kept is not None
    scores, own = kept.model.report.scores, result.models[1].scores
    assert isinstance(scores, SetScores)
    assert list(scores.sets) == list(own.sets) == ["sts12", "stsb"]
    for name, one in scores.sets.items():
        assert isinstance(one.outcomes, PairOutcomes)
        assert one.outcomes.gold.tolist() == own.sets[name].outcomes.gold.tolist()
        assert one.outcomes.predicted.tolist() == own.sets[name].outcomes.predicted.tolist()
        assert one.interval == own.sets[name].interval
        assert one.to_json() == own.sets[name].to_json()
    assert kept.teacher.report.scores.average == pytest.approx(result.models[0].scores.average)
    assert kept.scores == {
        "average": round(own.average, 4),
        **{name: round(one.value, 4) for name, one in own.sets.items()},
    }
    assert [model["name"] for model in kept.result["models"]] == ["big", "first"]


def test_a_run_among_others_is_kept_by_itself(bench):
    evaluate([bench.run, "org/other"], data=bench.data, keep=True, bootstrap=0)
    assert [model["name"] for model in read_kept(bench.run, "sts").result["models"]] == ["big", "first"]


def test_intervals_are_drawn_again_from_what_is_kept(bench):
    assert bench.evaluate(bootstrap=0).models[1].scores.average_interval is None
    bench.encoded()
    assert bench.evaluate(bootstrap=50).models[1].scores.average_interval is not None
    assert bench.evaluate(bootstrap=0).models[1].scores.average_interval is None
    assert bench.encoded() == {}


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes().replace(b"apple", b"apples") + b" "),
        lambda path: path.write_text("{}", encoding="utf-8"),
        lambda path: write_sealed_json(path, {**read_sealed_json(path), "version": 99}),
        lambda path: write_sealed_json(
            path, {**read_sealed_json(path), "model": {"class": "subprocess:Popen", "args": ["true"]}}
        ),
    ],
    ids=["changed", "something else", "of another version", "another class"],
)
def test_what_cannot_be_read_is_evaluated_anew(bench, damage):
    bench.evaluate()
    bench.encoded()
    damage(place_of(bench.run, "sts"))
    assert read_kept(bench.run, "sts") is None
    told = "first: eval-sts.json was kept and cannot be read; it is made anew"
    assert told in bench.evaluate().notes
    assert told not in bench.evaluate().notes
    assert bench.encoded()["first"] > 0
    assert read_kept(bench.run, "sts") is not None


def test_a_narrower_evaluation_does_not_take_the_place_of_a_wider_one(bench):
    bench.evaluate()
    wide = place_of(bench.run, "sts").read_bytes()
    (bench.data / "sts12_test.tsv").unlink()
    narrow = bench.evaluate()
    assert list(narrow["first"].to_json()["sets"]) == ["stsb"]
    assert any("not kept, because eval-sts.json has sts12 as well" in note for note in narrow.notes)
    assert place_of(bench.run, "sts").read_bytes() == wide
    # Of other weights it is of no use any more.
    (bench.run / "best" / "model.safetensors").write_bytes(b"other weights")
    assert not any("not kept" in note for note in bench.evaluate().notes)
    assert set(read_kept(bench.run, "sts").scores) == {"average", "stsb"}


def test_a_folder_that_cannot_be_written_costs_a_note_only(bench, monkeypatch):
    def refuse(step: str, path: Path) -> None:
        if path.parent == bench.run:
            raise OSError(errno.EROFS, "read-only")

    monkeypatch.setattr(fsio, "on_write_step", refuse)
    result = bench.evaluate()
    assert any("not kept" in note and "read-only" in note for note in result.notes)
    assert not place_of(bench.run, "sts").exists()
    assert result.models[1].scores.headline is not None


class TestCommand:
    def invoke(self, bench, *words: str):
        arguments = [str(bench.run), "--data", str(bench.data), "--bootstrap", "0", *words]
        return CliRunner().invoke(evaluate_command, arguments, catch_exceptions=False)

    def test_it_keeps_and_uses_and_again_does_not(self, bench):
        assert self.invoke(bench).exit_code == 0
        assert bench.encoded()["first"] > 0
        shown = self.invoke(bench)
        assert bench.encoded() == {}
        assert "--again evaluates anew" in " ".join(shown.stdout.split())
        self.invoke(bench, "--again")
        assert bench.encoded()["first"] > 0

    def test_one_suite_is_an_object_and_several_are_a_list(self, bench, tmp_path):
        one = json.loads(self.invoke(bench, "--json").stdout)
        assert one["suite"] == "sts"
        out = tmp_path / "all.json"
        words = ("--suite", "fidelity", "--suite", "sts", "--json", "--out", str(out))
        several = json.loads(self.invoke(bench, *words).stdout)
        assert [result["suite"] for result in several["results"]] == ["fidelity", "sts"]
        assert several == json.loads(out.read_text(encoding="utf-8"))

    def test_all_takes_every_suite_whose_files_are_there(self, bench):
        found = json.loads(self.invoke(bench, "--suite", "all", "--json").stdout)
        suites = [result["suite"] for result in found["results"]]
        assert {"sts", "fidelity"} <= set(suites)
        # There is nothing to read for the one, and the other takes minutes.
        assert not {"transfer", "latency"} & set(suites)
        notes = found["results"][0]["notes"]
        assert any("left out" in note and "transfer" in note for note in notes)
        assert any("only when they are named" in note and "latency" in note for note in notes)
        # Sentences that suites share are encoded once.
        assert max(bench.seen["first"].values()) == 1

    def test_all_stands_alone(self, bench):
        refused = self.invoke(bench, "--suite", "all", "--suite", "sts")
        assert refused.exit_code == 2
        assert "give it alone" in refused.output

    def test_one_table_shows_several_suites(self, bench):
        shown = self.invoke(bench, "--suite", "sts", "--suite", "fidelity").stdout
        assert shown.count("size and speed") == 1
        assert "sts: models" in shown
        assert "fidelity: models" in shown
        assert "note: sts: average over 2 of 7 sets" in shown

    def test_settings_for_sentences_do_not_keep_other_suites_from_running(self, bench):
        found = self.invoke(bench, "--suite", "sts", "--suite", "fidelity", "--limit", "5", "--json")
        sts, fidelity = json.loads(found.stdout)["results"]
        assert fidelity["sentences"] == 5
        assert sts["models"][0]["sets"]["stsb"]["items"] == len(PAIRS)
