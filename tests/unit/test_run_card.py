"""The evaluation on a run's model card: what a report says, and nothing else of the card is touched."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from kept_helpers import Bench
from report_helpers import keep, keep_geometry, make_run, report, set_scores

from distill.card import EVALUATION_BEGIN, EVALUATION_END, update_card, with_evaluation
from distill.digests import folder_digest, model_digest
from distill.evaluation.kept import all_kept
from distill.report import rows, writers
from embedcache import fsio

SETS = {"stsb": 60.0, "sickr": 70.0}
MARKED = f"# Mine\r\n\nBefore.\n\n{EVALUATION_BEGIN}\nold\n{EVALUATION_END}\n\nAfter, without an end of line"


def card_of(run: Path, text: str = MARKED) -> Path:
    card = run / "best" / "README.md"
    card.write_bytes(text.encode())
    return card


def test_the_card_says_what_the_report_says(tmp_path):
    run = make_run(tmp_path / "run", sets=SETS)
    keep_geometry(run, 0.3, -2.4)
    card = card_of(run)
    assert update_card(run) is None
    text = card.read_text(encoding="utf-8")
    assert writers.markdown(rows(run), "###", details=False).strip() in text
    assert "### geometry" in text
    assert "| run | 1 | 65.00" in text
    # Main figures with their intervals; the others are in the report.
    assert "[58.50, 61.25]" in text
    assert "pearson" not in text
    # What evaluations note names places of this machine.
    assert str(tmp_path) not in text


def test_a_knowledge_base_makes_no_other_model(tmp_path):
    run = make_run(tmp_path / "run", sets=SETS)
    before = folder_digest(run / "best")
    (run / "best" / "knowledge_base").mkdir()
    (run / "best" / "knowledge_base" / "header.json").write_text("{}")
    assert folder_digest(run / "best") == before
    (run / "best" / "knowledge.json").write_text("{}")
    assert folder_digest(run / "best") != before


def test_only_what_is_between_the_marks_is_changed(tmp_path):
    run = make_run(tmp_path / "run", sets=SETS)
    card = card_of(run)
    before = model_digest(str(run)), folder_digest(run / "best"), set(all_kept(run))
    assert update_card(run) is None
    content = card.read_bytes()
    assert content.startswith(b"# Mine\r\n\nBefore.\n\n" + EVALUATION_BEGIN.encode())
    assert content.endswith(EVALUATION_END.encode() + b"\n\nAfter, without an end of line")
    assert b"old" not in content
    # For whoever keeps evaluations, sweeps or runs pipelines, the student is the same.
    assert (model_digest(str(run)), folder_digest(run / "best"), set(all_kept(run))) == before
    keep(run, "sts", report("run", "model", set_scores({"stsb": 61.0})), None)
    assert update_card(run) is None
    assert b"61.00" in card.read_bytes()
    assert b"65.00" not in card.read_bytes()


@pytest.mark.parametrize("ending", ["", "\n"])
def test_a_card_without_marks_has_the_section_appended_once(tmp_path, ending):
    run = make_run(tmp_path / "run", sets=SETS)
    card = card_of(run, "# Mine" + ending)
    update_card(run)
    first = card.read_text(encoding="utf-8")
    assert first.startswith(f"# Mine\n\n{EVALUATION_BEGIN}\n")
    update_card(run)
    assert card.read_text(encoding="utf-8") == first


@pytest.mark.parametrize(
    "card",
    [
        f"{EVALUATION_BEGIN}\nmine\n",
        f"{EVALUATION_END}\nmine\n",
        f"{EVALUATION_END}\nmine{EVALUATION_BEGIN}\n",
    ],
    ids=["no end", "no begin", "the wrong way round"],
)
def test_half_a_pair_of_marks_costs_nothing_of_the_card(card):
    once = with_evaluation(card, "first")
    assert once.startswith(card)
    assert with_evaluation(once, "second") == once.replace("first", "second")


def test_where_there_is_no_card_or_nothing_to_say_none_is_written(tmp_path):
    run = make_run(tmp_path / "run", sets=SETS)
    assert update_card(run) is None
    assert not (run / "best" / "README.md").exists()
    bare = make_run(tmp_path / "bare")
    card = card_of(bare)
    assert update_card(bare) is None
    assert card.read_bytes() == MARKED.encode()


def test_a_card_that_cannot_be_read_is_told_and_left(tmp_path):
    run = make_run(tmp_path / "run", sets=SETS)
    card = run / "best" / "README.md"
    card.write_bytes(b"\xff\xfe")
    told = update_card(run)
    assert told is not None
    assert str(card) in told
    assert card.read_bytes() == b"\xff\xfe"


class TestEvaluating:
    @pytest.fixture
    def bench(self, tmp_path, monkeypatch) -> Bench:
        return Bench(tmp_path, monkeypatch)

    def test_what_is_kept_is_on_the_card_and_still_good(self, bench):
        card = card_of(bench.run)
        bench.evaluate()
        bench.encoded()
        assert "### sts" in (written := card.read_text(encoding="utf-8"))
        assert "| 2 of 7 sets" not in written
        # The card is no part of the student, so nothing is evaluated anew.
        bench.evaluate()
        assert bench.encoded() == {}
        bench.evaluate(suite="fidelity", data=None)
        assert {"### sts", "### fidelity"} <= set(card.read_text(encoding="utf-8").splitlines())

    def test_without_keeping_the_card_stays_as_it_is(self, bench):
        card = card_of(bench.run)
        bench.evaluate(keep=False)
        assert card.read_bytes() == MARKED.encode()

    def test_a_card_that_cannot_be_written_costs_a_note_only(self, bench, monkeypatch):
        card = card_of(bench.run)

        def refuse(step: str, path: Path) -> None:
            if path.parent == card.parent:
                raise OSError(errno.EROFS, "read-only")

        monkeypatch.setattr(fsio, "on_write_step", refuse)
        result = bench.evaluate()
        (note,) = [note for note in result.notes if str(card) in note]
        assert "read-only" in note
        assert card.read_bytes() == MARKED.encode()
        assert "sts" in all_kept(bench.run)
