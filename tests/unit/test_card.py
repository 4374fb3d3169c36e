"""The model card: everything a record says, and the evaluations between their marks."""

from __future__ import annotations

import errno
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from report_helpers import CONTRACT, keep, keep_geometry, make_run, sts
from suite_helpers import model, write_pairs

from distill.card import BEGIN, END, render_card, update_card, with_evaluation, write_card
from distill.digests import folder_digest, model_digest
from distill.evaluation import evaluate
from distill.evaluation.model_kinds import open_model
from distill.evaluation.result import Evaluation
from distill.record import CorpusRecord, RunRecord, TeacherRecord, TrainResult
from distill.report import rows, writers
from embedcache import fsio
from embedcache.errors import StorageError

SETS = {"stsb": 60.0, "sickr": 70.0}
MARKED = f"# Mine\r\n\nBefore.\n\n{BEGIN}\nold\n{END}\n\nAfter, without an end of line"
SETTINGS = {"student": {"spec": "org/small-model"}, "optimizer": {"lr": 0.0002}, "training": {"where": None}}


def record(**changes: Any) -> RunRecord:
    teacher = TeacherRecord(name="big", spec="org/teacher", contract_id="1", contract=CONTRACT)
    result = TrainResult(
        steps=10, total_steps=10, best_step=8, final_loss=0.1, seconds=3725.0, rows_per_second=9.0
    )
    facts = {
        "identity": "i",
        "seeds": [7],
        "setting": "s",
        "teachers": [teacher],
        "rows": 19_000,
        "corpus": CorpusRecord(name="captions", rows=20_000, digest="ab12"),
        "student": "org/small-model",
        "parameters": 17_389_824,
        "loss": "mse",
        "scores": {"dev_spearman": 0.876543},
        "result": result,
    }
    return RunRecord(**(facts | changes))


def card(**changes: Any) -> str:
    return render_card(record(**changes), SETTINGS, 384)


def front_matter(text: str) -> dict[str, Any]:
    opening, head, _ = text.split("---\n", 2)
    assert opening == ""
    return yaml.safe_load(head)


def test_front_matter_is_valid_on_the_hub():
    head = front_matter(card())
    assert (head["library_name"], head["pipeline_tag"]) == ("sentence-transformers", "sentence-similarity")
    assert {"distilled", "embedcache"} <= set(head["tags"])
    assert front_matter(card(labels=["yes", "no"]))["pipeline_tag"] == "text-classification"
    assert "distilled" not in front_matter(card(teachers=[]))["tags"]


@pytest.mark.parametrize(
    ("student", "base"),
    [
        ("org/small-model", "org/small-model"),
        ("layers:0,2,5", "org/teacher"),
        *((one, None) for one in ("/data/models/small", "./small", "small", "a/b/c", "../x/y")),
    ],
)
def test_the_base_model_is_the_hub_id_that_weights_started_from(student, base, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert front_matter(card(student=student)).get("base_model") == base
    if base == student:
        (tmp_path / base).mkdir(parents=True)
        assert "base_model" not in front_matter(card(student=student))


def test_every_fact_is_on_the_card_and_none_breaks_its_table():
    text = card(corpus=CorpusRecord(name="two\r\nlines | x", rows=1, digest="d"))
    assert "| name | two lines \\| x |" in text.splitlines()
    lines = {
        "| made from | org/small-model |",
        "| parameters | 17,389,824 |",
        "| dimension | 384 |",
        "| pooling | mean |",
        "| prompt | none |",
        "| trained on | 19000 |",
        "| digest | ab12 |",
        "| loss | mse |",
        "| seed | 7 |",
        "| optimizer.lr | 0.0002 |",
        "| dev_spearman | 87.6543 |",
        "| training time | 1 h 2 min |",
        "# Sentence encoder distilled from org/teacher",
    }
    assert lines <= set(card().splitlines())


def test_unknown_facts_are_left_out():
    bare = card(result=None, scores={})
    assert "training time" not in bare
    assert "No scores were taken." in bare


def test_every_teacher_is_named_with_its_contract():
    other = TeacherRecord(
        name="second", spec="/gone/x", contract_id="2", contract={"pooling": "cls"}, share=0.5
    )
    text = card(teachers=[*record().teachers, other])
    assert "distilled from org/teacher and second" in text
    assert text.index("| pooling | mean |") < text.index("| pooling | cls |")
    assert "/gone" not in text


def test_a_new_card_has_a_place_for_the_evaluation(tmp_path):
    write_card(tmp_path, record(), SETTINGS, 384)
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    before, place, after = re.split(f"{BEGIN}|{END}", text)
    assert with_evaluation(text, "figures") == f"{before}{BEGIN}\n\nfigures\n\n{END}{after}"
    assert place.strip().startswith("## Evaluation")
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file"):
        write_card(tmp_path / "file", record(), SETTINGS, 384)


def run_with_card(run: Path, text: str = MARKED) -> Path:
    place = run / "best" / "README.md"
    place.write_bytes(text.encode())
    return place


def test_the_report_stands_between_the_marks_and_all_else_stays(tmp_path):
    run = make_run(tmp_path / "run", sets=SETS)
    keep_geometry(run, 0.3, -2.4)
    place = run_with_card(run)
    before = model_digest(str(run)), folder_digest(run / "best")
    assert update_card(run) is None
    content = place.read_bytes()
    assert writers.markdown(rows(run), "###", details=False).strip() in content.decode()
    assert b"65.00" in content
    assert str(tmp_path) not in content.decode()
    assert content.startswith(b"# Mine\r\n\nBefore.\n\n" + BEGIN.encode())
    assert content.endswith(END.encode() + b"\n\nAfter, without an end of line")
    assert b"old" not in content
    # The card is not part of the student: evaluations stay valid.
    assert (model_digest(str(run)), folder_digest(run / "best")) == before
    keep(run, "sts", sts({"stsb": 61.0}), None)
    assert update_card(run) is None
    assert b"61.00" in place.read_bytes()
    assert b"65.00" not in place.read_bytes()


def test_weights_are_read_once_while_their_file_is_the_same(tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr("distill.digests.sha256_file", lambda path: read.append(path) or "digest")
    run = make_run(tmp_path / "run")
    for expected in (1, 1):
        folder_digest(run / "best")
        assert len(read) == expected
    (run / "best" / "model.safetensors").write_bytes(b"others")
    folder_digest(run / "best")
    assert len(read) == 2


def test_a_knowledge_base_makes_no_other_model(tmp_path):
    run = make_run(tmp_path / "run", sets=SETS)
    before = folder_digest(run / "best")
    (run / "best" / "knowledge_base").mkdir()
    (run / "best" / "knowledge_base" / "header.json").write_text("{}")
    assert folder_digest(run / "best") == before
    (run / "best" / "knowledge.json").write_text("{}")
    assert folder_digest(run / "best") != before


@pytest.mark.parametrize(
    "text",
    ["# Mine", "# Mine\n", f"{BEGIN}\nmine\n", f"{END}\nmine\n", f"{END}\nmine{BEGIN}\n"],
    ids=["no marks", "a line", "no end", "no begin", "the wrong way round"],
)
def test_without_a_pair_of_marks_the_section_is_appended_once(text):
    once = with_evaluation(text, "first")
    assert once.startswith(text)
    assert with_evaluation(once, "second") == once.replace("first", "second")


def test_without_a_card_or_an_evaluation_nothing_is_written(tmp_path):
    run = make_run(tmp_path / "run", sets=SETS)
    assert update_card(run) is None
    assert not (run / "best" / "README.md").exists()
    bare = make_run(tmp_path / "bare")
    place = run_with_card(bare)
    assert update_card(bare) is None
    assert place.read_bytes() == MARKED.encode()


def evaluated(run: Path, data: Path, **options: Any) -> Evaluation:
    """Evaluate the run with a model in memory in place of its student."""
    student = model(run.name)
    student.run, student.identity = run, open_model(run).identity
    return evaluate(student, data=data, bootstrap=0, contamination=False, beside_teacher=False, **options)


def test_an_evaluation_that_is_kept_is_on_the_card_and_stays_valid(tmp_path, monkeypatch):
    run, data = make_run(tmp_path / "run"), tmp_path / "data"
    data.mkdir()
    write_pairs(data / "stsb_test.tsv")
    place = run_with_card(run)
    evaluated(run, data, keep=False)
    assert place.read_bytes() == MARKED.encode()

    def refuse(step: str, path: Path) -> None:
        if path.parent == place.parent:
            raise OSError(errno.EROFS, "read-only")

    with monkeypatch.context() as patch:
        patch.setattr(fsio, "on_write_step", refuse)
        assert any(str(place) in note for note in evaluated(run, data, keep=True).notes)
    assert place.read_bytes() == MARKED.encode()
    evaluated(run, data, keep=True, again=True)
    assert "### sts" in place.read_text(encoding="utf-8")
    assert any("--again" in note for note in evaluated(run, data, keep=True).notes)
