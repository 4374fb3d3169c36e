"""What of the test sets was trained on or chosen by: told with the figures, counted as a hand would count."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from distill_helpers import TEXTS, small_run

from distill.cli.main import cli
from distill.errors import DataError
from distill.evaluation.kept import read_kept
from distill.evaluation.old_contamination import Overlap, Seen, describe, pairs_in
from distill.evaluation.old_init import evaluate
from distill.evaluation.suites import SUITES
from distill.evaluation.tasks import Request
from distill.evaluation.training_texts import file_texts, selection_data, training_texts

pytest_plugins = ["distill_fixtures"]

HEADER = "subset\tscore\tsentence1\tsentence2\n"
NEW = [f"a sentence that nobody has seen, number {number}" for number in range(8)]


def loud(text: str) -> str:
    """The same sentence in other letters, blanks and marks."""
    return f"  {text.upper()} !?"


def write_pairs(path: Path, pairs: list[tuple[str, str]]) -> Path:
    rows = "".join(f"s\t{number % 5}\t{left}\t{right}\n" for number, (left, right) in enumerate(pairs))
    path.write_text(HEADER + rows, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Test files: of STS-B two sentences and one whole pair were trained on, of STS12 nothing."""
    data = tmp_path_factory.mktemp("data")
    write_pairs(
        data / "stsb_test.tsv",
        [(loud(TEXTS[0]), TEXTS[1]), (TEXTS[1], NEW[0]), (NEW[1], NEW[2]), (NEW[3], NEW[4])],
    )
    write_pairs(data / "sts12_test.tsv", [(NEW[0], NEW[1]), (NEW[5], NEW[6]), (NEW[2], NEW[7])])
    return data


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, built_cache: Path, folder: Path) -> Path:
    """A run whose checkpoint was chosen on a pair of STS12's test set, sides turned round, and two others."""
    place = tmp_path_factory.mktemp("run")
    dev = write_pairs(place / "dev.tsv", [(loud(NEW[1]), NEW[0]), (NEW[0], NEW[6]), (TEXTS[5], TEXTS[6])])
    return small_run(built_cache, place / "run", dev=str(dev)).folder


def of(result: Any) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(json.dumps(result.to_json()["models"][-1]))
    return facts


SETS = {
    ("sts", "x"): [("A dog, running.", "The cat"), ("the  CAT!", "a bird"), ("sun", "moon")],
    ("transfer", "y"): [("don't go",), ("go",), ("go",)],
}


class TestOverlap:
    def test_counts_by_hand(self):
        overlap = Overlap(SETS)
        overlap.meet(["a dog running", "nothing"])
        overlap.meet(["The cat.", "do n't go", "the"])
        assert overlap.seen() == {
            # a dog running, the cat, a bird, sun, moon; only the first pair has both its sides.
            ("sts", "x"): Seen(sentences=5, sentences_seen=2, pairs=3, pairs_seen=1),
            ("transfer", "y"): Seen(sentences=2, sentences_seen=1, pairs=0, pairs_seen=0),
        }

    def test_figures_and_words(self):
        pairs, single = Seen(5, 2, 3, 1), Seen(4, 0, 0, 0)
        assert pairs.to_json() == {
            "sentences": 5,
            "sentences_seen": 2,
            "sentences_share": 0.4,
            "pairs": 3,
            "pairs_seen": 1,
            "pairs_share": 0.333333,
        }
        assert single.to_json()["pairs"] is None
        assert single.to_json()["pairs_share"] is None
        words = describe({"x": pairs, "y": single})
        assert words == ("x 2 of 5 sentences (40.0 %), both sides of 1 of 3 pairs (33.3 %); nothing of y")

    def test_a_share_that_rounds_to_nothing_is_not_nothing(self):
        assert (
            describe({"x": Seen(10_000, 1, 50, 0)})
            == "x 1 of 10000 sentences (< 0.1 %), both sides of no pair"
        )

    def test_pairs_count_whichever_side_comes_first(self):
        items = SETS["sts", "x"]
        assert pairs_in(items, [("the cat", "a dog running"), ("sun", "sun"), ("a bird", "the dog")]) == 1
        assert pairs_in([("one",)], [("one", "one")]) == 0


@pytest.mark.parametrize("suite", ["sts", "sts-multilingual", "transfer", "nli", "retrieval", "entities"])
def test_suites_of_sets_say_what_they_consist_of(suite):
    import importlib

    from distill.evaluation.set_items import HasTestItems

    module = importlib.import_module(f"distill.evaluation.{SUITES[suite].module}")
    made = module.read.__annotations__["return"]
    kind = getattr(module, made) if isinstance(made, str) else made
    assert issubclass(kind, HasTestItems)


def test_transfer_looks_for_the_examples_whose_answers_count(tmp_path):
    rows = ["split\tlabel\ttext"] + [
        f"{split}\t{'AB'[n % 2]}\t{split} {n}" for split in ("train", "test") for n in range(30)
    ]
    (tmp_path / "senteval_trec.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    task = SUITES["transfer"].read(Request((), tmp_path))
    items = task.test_items()["trec"]  # type: ignore[attr-defined]
    assert {text for (text,) in items} == {f"test {n}" for n in range(30)}


def test_a_run_is_told_what_it_has_seen_and_what_it_was_chosen_on(run, folder):
    result = evaluate(run, data=folder, beside_teacher=False, bootstrap=0)
    facts = of(result)
    assert facts["contamination"]["stsb"] == {
        "sentences": 7,
        "sentences_seen": 2,
        "sentences_share": 0.285714,
        "pairs": 4,
        "pairs_seen": 1,
        "pairs_share": 0.25,
    }
    assert facts["contamination"]["sts12"]["sentences_seen"] == 0
    assert facts["trained_on"] == [{"name": "corpus texts", "texts": len(set(TEXTS))}]
    assert facts["selected_on"] == [{"set": "sts12", "file": "dev.tsv", "pairs": 1, "of": 3}]
    notes = " | ".join(result.notes)
    assert "stsb 2 of 7 sentences (28.6 %), both sides of 1 of 4 pairs (25.0 %); nothing of sts12" in notes
    assert "SELECTED ON TEST PAIRS" in notes
    assert "1 of 3 pairs of sts12 (33.3 %)" in notes


def test_a_few_pairs_in_common_are_told_without_alarm(run, tmp_path):
    others = [(f"left {number}", f"right {number}") for number in range(19)]
    write_pairs(tmp_path / "sts13_test.tsv", [(NEW[0], NEW[1]), *others])
    result = evaluate(run, data=tmp_path, beside_teacher=False, bootstrap=0)
    assert of(result)["selected_on"] == [{"set": "sts13", "file": "dev.tsv", "pairs": 1, "of": 20}]
    (note,) = (note for note in result.notes if "its checkpoint was chosen on dev.tsv" in note)
    assert "1 of 20 pairs of sts13 (5.0 %); such figures are a little too good" in note
    assert "SELECTED" not in note


def test_marks_are_kept_and_nothing_is_looked_for_again(run, folder, tmp_path, monkeypatch):
    own = tmp_path / "copy"
    shutil.copytree(run, own)
    first = of(evaluate(own, data=folder, beside_teacher=False, keep=True))
    kept = read_kept(own, "sts")
    assert kept is not None
    assert kept.result["models"][-1]["selected_on"] == first["selected_on"]
    monkeypatch.setattr("distill.evaluation.origin.training_texts", lambda run: 1 / 0)
    again = evaluate(own, data=folder, beside_teacher=False, keep=True)
    assert of(again)["contamination"] == first["contamination"]
    assert any("seen in training" in note for note in again.notes)


def test_it_can_be_left_out(run, folder, monkeypatch):
    monkeypatch.setattr("distill.evaluation.origin.training_texts", lambda run: 1 / 0)
    result = evaluate(run, data=folder, beside_teacher=False, bootstrap=0, contamination=False)
    assert "contamination" not in of(result)
    assert not any("seen in training" in note for note in result.notes)
    # What chose the checkpoint needs no search, and is always told.
    assert [mark["set"] for mark in of(result)["selected_on"]] == ["sts12"]
    assert any("SELECTED ON TEST PAIRS" in note for note in result.notes)
    command = ["eval", str(run), "--data", str(folder), "--no-contamination", "--bootstrap", "0", "--again"]
    shown = CliRunner().invoke(cli, [*command, "--json"])
    assert shown.exit_code == 0, shown.output
    assert "contamination" not in shown.stdout


def test_marks_that_an_earlier_evaluation_did_not_look_for_are_kept_by_the_next(run, folder, tmp_path):
    own = tmp_path / "copy"
    shutil.copytree(run, own, ignore=shutil.ignore_patterns("eval-*"))

    def kept() -> dict[str, Any]:
        return read_kept(own, "sts").result["models"][-1]

    options: dict[str, Any] = {"data": folder, "beside_teacher": False, "keep": True, "bootstrap": 0}
    evaluate(own, contamination=False, **options)
    assert "contamination" not in kept()
    assert [mark["set"] for mark in kept()["selected_on"]] == ["sts12"]
    again = evaluate(own, **options)
    assert any("--again" in note for note in again.notes)
    assert (
        kept()["contamination"]
        == of(again)["contamination"]
        == of(evaluate(run, **{**options, "keep": False}))["contamination"]
    )
    assert sum("seen in training" in note for note in again.notes) == 1
    # And they stay where the next does not look.
    before = (own / "eval-sts.json").read_bytes()
    evaluate(own, contamination=False, **options)
    assert (own / "eval-sts.json").read_bytes() == before


def test_what_could_not_be_found_out_is_looked_for_again(run, folder, tmp_path):
    own = tmp_path / "copy"
    shutil.copytree(run, own, ignore=shutil.ignore_patterns("eval-*"))
    record, config = (own / "run.json").read_text(), (own / "config.yaml").read_text()
    (own / "run.json").write_text(json.dumps({**json.loads(record), "cache": str(tmp_path / "gone")}))
    parsed = yaml.safe_load(config)
    parsed["evaluation"]["data"] = str(tmp_path / "gone.tsv")
    (own / "config.yaml").write_text(yaml.safe_dump(parsed))
    options: dict[str, Any] = {"data": folder, "beside_teacher": False, "keep": True, "bootstrap": 0}
    first = evaluate(own, **options)
    assert sum("is not known" in note for note in first.notes) == 2
    assert read_kept(own, "sts").result["models"][-1]["selected_on"] is None
    second = evaluate(own, **options)
    assert sum("is not known" in note for note in second.notes) == 2
    (own / "run.json").write_text(record)
    (own / "config.yaml").write_text(config)
    third = evaluate(own, **options)
    assert not any("is not known" in note for note in third.notes)
    kept = read_kept(own, "sts")
    assert kept.result["models"][-1]["contamination"]["stsb"]["sentences_seen"] == 2
    assert [mark["set"] for mark in kept.result["models"][-1]["selected_on"]] == ["sts12"]
    assert not any("is not known" in note for note in kept.model.notes)


def test_of_another_model_the_corpus_is_named(run, folder, tmp_path):
    best = tmp_path / "student"
    shutil.copytree(run / "best", best)
    assert "contamination" not in of(evaluate(best, data=folder, bootstrap=0))
    corpus = tmp_path / "corpus.txt.gz"
    corpus.write_bytes(gzip.compress(f"{loud(NEW[5])}\nsomething else\n{NEW[6]}\n".encode()))
    command = ["eval", str(best), "--data", str(folder), "--corpus", str(corpus), "--bootstrap", "0"]
    shown = CliRunner().invoke(cli, [*command, "--json"])
    assert shown.exit_code == 0, shown.output
    (facts,) = json.loads(shown.stdout)["models"]
    assert (
        facts["contamination"]["sts12"]["sentences_seen"],
        facts["contamination"]["sts12"]["pairs_seen"],
    ) == (
        2,
        1,
    )
    assert facts["trained_on"] == [{"name": "corpus.txt.gz", "texts": 3}]
    assert facts["selected_on"] == []
    refused = CliRunner().invoke(cli, [*command, "--no-contamination"])
    assert refused.exit_code != 0
    with pytest.raises(DataError, match="runs say themselves"):
        evaluate(run, data=folder, corpus=corpus)


def test_what_is_gone_is_told_and_does_not_cost_the_score(run, folder, tmp_path):
    own = tmp_path / "moved"
    shutil.copytree(run, own)
    record = json.loads((own / "run.json").read_text())
    (own / "run.json").write_text(json.dumps({**record, "cache": str(tmp_path / "gone")}))
    config = yaml.safe_load((own / "config.yaml").read_text())
    config["evaluation"]["data"] = str(tmp_path / "gone.tsv")
    (own / "config.yaml").write_text(yaml.safe_dump(config))
    result = evaluate(own, data=folder, beside_teacher=False, bootstrap=0)
    assert of(result)["contamination"] is None
    assert of(result)["average"] is not None
    notes = " | ".join(result.notes)
    assert "contamination is not known" in notes
    assert "whether its checkpoint was chosen on test pairs is not known" in notes
    with pytest.raises(DataError, match="its cache"):
        training_texts(own)


def test_a_corpus_or_development_file_that_has_changed_is_not_taken_for_the_same(run, folder, tmp_path):
    own = tmp_path / "changed"
    shutil.copytree(run, own)
    record = json.loads((own / "run.json").read_text())
    record["corpus"]["digest"] = "0" * 64
    record["dev"]["sha256"] = "0" * 64
    (own / "run.json").write_text(json.dumps(record))
    notes = " | ".join(evaluate(own, data=folder, beside_teacher=False, bootstrap=0).notes)
    assert "corpus 'texts'" in notes
    assert "has changed" in notes
    assert "SELECTED" not in notes


def test_only_rows_that_the_run_saw_count(run, tmp_path):
    own = tmp_path / "limited"
    shutil.copytree(run, own)
    config = yaml.safe_load((own / "config.yaml").read_text())
    config["training"]["limit"] = 50
    (own / "config.yaml").write_text(yaml.safe_dump(config))
    (texts,) = training_texts(own)
    (everything,) = training_texts(run)
    assert [text for block in texts.stream() for text in block] == list(dict.fromkeys(TEXTS))[:50]
    assert texts.count == 50
    assert texts.key != everything.key
    assert sum(len(block) for block in everything.stream()) == everything.count == len(set(TEXTS))


def test_a_fine_tuned_student_has_seen_the_texts_of_both_stages(run, tmp_path):
    triples = tmp_path / "triples.tsv"
    triples.write_text(
        "anchor\tpositive\nfirst text\tsecond text\nthird text\tfourth text\n", encoding="utf-8"
    )
    own = tmp_path / "stage2"
    own.mkdir()
    start = {"spec": str(run), "run": str(run)}
    record = {"version": 1, "kind": "finetune", "start": start, "corpus": {"name": "triples", "rows": 2}}
    (own / "run.json").write_text(json.dumps(record))
    (own / "config.yaml").write_text(yaml.safe_dump({"start": str(run), "triples": str(triples)}))
    before, now = training_texts(own)
    assert before.name == "corpus texts"
    assert [text for block in now.stream() for text in block] == [
        "first text",
        "third text",
        "second text",
        "fourth text",
    ]
    assert [path.name for path, _ in selection_data(own)] == ["dev.tsv"]
    triples.write_text("anchor\tpositive\na\tb\nc\td\ne\tf\n", encoding="utf-8")
    with pytest.raises(DataError, match="has 3 rows, and had 2"):
        training_texts(own)


def test_texts_of_a_folder_of_files(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    texts = file_texts(tmp_path / "a.txt")
    assert (texts.name, texts.count) == ("a.txt", 2)
    assert [text for block in texts.stream() for text in block] == ["one", "two"]
