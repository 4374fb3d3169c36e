"""The transfer and nli suites: reading their files, what is counted and told, and the scores."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from labelled_helpers import (
    SNLI_HEADER,
    model,
    opinion,
    opinions,
    snli_rows,
    subject,
    write,
    write_mrpc,
    write_sick,
    write_sst2,
)

from distill.cli.evaluate import evaluate_command
from distill.errors import DataError
from distill.evaluation import classification, evaluate, loader
from distill.evaluation.classification import ALL, DEV, TEST, TRAIN, f1
from distill.evaluation.nli import load_sick, load_snli
from distill.evaluation.nli import read as read_nli
from distill.evaluation.scores import MeanOutcomes
from distill.evaluation.tasks import NotThereError, Request
from distill.evaluation.transfer import load_transfer
from distill.evaluation.transfer import read as read_transfer


class TestReading:
    def test_a_set_without_split_is_one_part(self, tmp_path):
        write(tmp_path, "senteval_mr", "label\ttext", opinions(40))
        one = load_transfer(tmp_path, "mr")
        assert one is not None
        assert set(one.parts) == {ALL}
        assert one.parts[ALL].texts[:2] == ((opinion(0),), (opinion(1),))
        assert one.parts[ALL].labels[:2] == ("0", "1")
        assert one.notes() == []

    def test_columns_by_name_and_gzip(self, tmp_path):
        rows = "\n".join(f"{i}\t{opinion(i)}\t{i % 2}" for i in range(40))
        (tmp_path / "senteval_cr.tsv.gz").write_bytes(gzip.compress(f"id\ttext\tlabel\n{rows}\n".encode()))
        one = load_transfer(tmp_path, "cr")
        assert one is not None
        assert one.parts[ALL].texts[3] == (opinion(3),)

    def test_a_set_whose_file_is_missing_is_none(self, tmp_path):
        assert load_transfer(tmp_path, "subj") is None
        assert load_sick(tmp_path) is None
        assert load_snli(tmp_path, 0) is None

    def test_the_phrases_of_sst2_unless_sentences_are_asked_for(self, tmp_path):
        write_sst2(tmp_path, "glue_sst2", 40)
        write_sst2(tmp_path, "senteval_sst2_sentences", 20)
        phrases = load_transfer(tmp_path, "sst2")
        sentences = load_transfer(tmp_path, "sst2", sst2_sentences=True)
        assert phrases is not None
        assert sentences is not None
        assert {part: len(rows) for part, rows in phrases.parts.items()} == {TRAIN: 40, DEV: 10, TEST: 12}
        assert len(sentences.parts[TRAIN]) == 20
        assert phrases.remarks == []
        assert "whole sentences only" in sentences.notes()[0]

    def test_where_only_sentences_are_there_they_are_learnt_from_and_a_note_says_so(self, tmp_path):
        write_sst2(tmp_path, "senteval_sst2_sentences", 20)
        one = load_transfer(tmp_path, "sst2")
        assert one is not None
        assert "SST2: learnt from whole sentences only" in one.notes()[0]

    def test_mrpc_learns_from_train_and_val(self, tmp_path):
        write_mrpc(tmp_path)
        one = load_transfer(tmp_path, "mrpc")
        assert one is not None
        assert {part: len(rows) for part, rows in one.parts.items()} == {TRAIN: 30, TEST: 10}

    def test_sick_keeps_its_three_parts(self, tmp_path):
        write_sick(tmp_path)
        one = load_sick(tmp_path)
        assert one is not None
        assert {part: len(rows) for part, rows in one.parts.items()} == {TRAIN: 30, DEV: 9, TEST: 12}
        assert one.parts[TRAIN].labels[:3] == ("ENTAILMENT", "NEUTRAL", "CONTRADICTION")

    def test_a_missing_column_names_found_and_expected(self, tmp_path):
        write(tmp_path, "senteval_mr", "gold\ttext", ["1\ta"])
        with pytest.raises(DataError, match=r"columns gold, text; label not found"):
            load_transfer(tmp_path, "mr")

    def test_a_missing_part_is_named(self, tmp_path):
        write(tmp_path, "senteval_trec", "split\tlabel\ttext", [f"train\t{row}" for row in opinions(40)])
        with pytest.raises(DataError, match=r"no labelled example of split test in 40 rows"):
            load_transfer(tmp_path, "trec")

    @pytest.mark.parametrize("labels", [["1"] * 40, ["1"] * 35 + ["0"] * 5])
    def test_too_little_to_tell_apart_is_refused(self, tmp_path, labels):
        rows = [f"{label}\t{opinion(number)}" for number, label in enumerate(labels)]
        write(tmp_path, "senteval_mr", "label\ttext", rows)
        with pytest.raises(DataError, match=r"MR: expected two labels with at least 10 examples each"):
            load_transfer(tmp_path, "mr")

    def test_no_file_at_all(self, tmp_path):
        with pytest.raises(NotThereError, match=r"senteval_mr.tsv.*glue_sst2.tsv or senteval_sst2"):
            read_transfer(Request((), tmp_path))
        with pytest.raises(NotThereError, match=r"sick.tsv; snli_train.tsv or snli_train100k.tsv"):
            read_nli(Request((), tmp_path))


class TestHonesty:
    def test_unusable_rows_are_skipped_and_counted_by_reason(self, tmp_path):
        bad = ["\ta film", "-\ta film", "-1\ta film", "NaN\ta film", "1\t ", "1"]
        write(tmp_path, "senteval_mr", "label\ttext", opinions(40) + bad)
        one = load_transfer(tmp_path, "mr")
        assert one is not None
        assert len(one.parts[ALL]) == 40
        assert one.skipped == {"no label": 4, "empty text": 1, "wrong number of columns": 1}
        assert one.notes() == [
            "MR: 6 rows skipped (empty text 1, no label 4, wrong number of columns 1)",
        ]

    def test_rows_of_an_unknown_split_are_counted(self, tmp_path):
        rows = [f"train\t{row}" for row in opinions(40)] + [f"test\t{row}" for row in opinions(4, 60)]
        write(tmp_path, "senteval_trec", "split\tlabel\ttext", [*rows, f"extra\t{opinions(1)[0]}"])
        one = load_transfer(tmp_path, "trec")
        assert one is not None
        assert one.skipped == {"of no known split": 1}

    def test_repeated_examples_are_counted_and_stay(self, tmp_path):
        rows = opinions(40)
        contrary = f"1\t{opinion(0)}"
        write(
            tmp_path,
            "senteval_mr",
            "label\ttext",
            [*rows, rows[3], rows[4].replace("the ", "THE  "), contrary],
        )
        one = load_transfer(tmp_path, "mr")
        assert one is not None
        assert len(one.parts[ALL]) == 43
        assert not one.skipped
        assert one.notes() == ["MR: 3 of 43 examples occur before, 1 of them with another label"]

    def test_scored_examples_that_are_learnt_from_are_counted(self, tmp_path):
        learnt = opinions(40)
        rows = [f"train\t{row}" for row in learnt]
        rows += [f"test\t{row}" for row in (learnt[0], learnt[0], learnt[1], *opinions(5, 60))]
        write(tmp_path, "senteval_trec", "split\tlabel\ttext", rows)
        one = load_transfer(tmp_path, "trec")
        assert one is not None
        assert one.notes() == [
            "TREC: test: 1 of 8 examples occur before",
            "TREC: 3 of 8 scored examples are also among those to learn from",
        ]

    def test_a_pair_is_repeated_only_where_both_texts_are(self, tmp_path):
        write_mrpc(tmp_path)
        path = tmp_path / "senteval_mrpc.tsv"
        first = path.read_text(encoding="utf-8").splitlines()[1]
        with path.open("a", encoding="utf-8") as file:
            file.write(
                first.replace(opinion(1), "another one") + "\n" + first.replace("train", "test") + "\n"
            )
        one = load_transfer(tmp_path, "mrpc")
        assert one is not None
        assert one.notes() == ["MRPC: 1 of 11 scored examples are also among those to learn from"]

    def test_a_label_of_one_example_is_named(self, tmp_path):
        write(tmp_path, "senteval_mr", "label\ttext", [*opinions(40), "odd\tsomething else"])
        one = load_transfer(tmp_path, "mr")
        assert one is not None
        assert one.notes() == ["MR: label 'odd' occurs once among the examples to learn from"]

    def test_a_scored_label_that_cannot_be_learnt_counts_as_wrong_and_is_named(self, tmp_path):
        rows = [f"train\t{row}" for row in opinions(40)] + [f"test\t{row}" for row in opinions(8, 60)]
        write(tmp_path, "senteval_trec", "split\tlabel\ttext", [*rows, "test\tnew\tunheard of"])
        task = read_transfer(Request((), tmp_path))
        assert (
            "TREC: 1 scored examples of label 'new', which is not among those to learn from" in task.notes[1]
        )
        score = task.score(subject(task), []).sets["trec"]
        assert score.value == pytest.approx(100 * 8 / 9)
        assert score.items == 9


class TestScores:
    @pytest.fixture
    def data(self, tmp_path) -> Path:
        write(tmp_path, "senteval_mr", "label\ttext", opinions(48))
        write_sst2(tmp_path, "glue_sst2", 40)
        write_mrpc(tmp_path)
        rows = [f"train\t{row}" for row in opinions(40)] + [f"test\t{row}" for row in opinions(8, 60)]
        write(tmp_path, "senteval_trec", "split\tlabel\ttext", rows)
        write_sick(tmp_path)
        write(tmp_path, "snli_train", SNLI_HEADER, snli_rows(90))
        write(tmp_path, "snli_dev", SNLI_HEADER, snli_rows(30, 300))
        return tmp_path

    def test_what_can_be_told_apart_is(self, data):
        result = evaluate(model(), suite="transfer", data=data, bootstrap=0)
        report = result["student"].to_json()
        sets = report["sets"]
        assert isinstance(sets, dict)
        assert list(sets) == ["mr", "sst2", "trec", "mrpc"]
        assert {name: one["items"] for name, one in sets.items()} == {
            "mr": 48,
            "sst2": 12,
            "trec": 8,
            "mrpc": 10,
        }
        assert all(one["measure"] == "accuracy" for one in sets.values())
        assert [sets[name]["score"] for name in ("mr", "sst2", "trec")] == [100, 100, 100]
        assert "f1" in sets["mrpc"]
        assert "f1" not in sets["mr"]
        assert report["sets_scored"] == 4
        assert report["sets_of"] == 7
        assert result.facts["missing"] == ["CR", "SUBJ", "MPQA"]
        assert any(note.startswith("average over 4 of 7 sets; not found: CR") for note in result.notes)
        assert any(note.startswith("student: C chosen: MR ") for note in result.notes)

    def test_nli(self, data):
        result = evaluate(model(), suite="nli", data=data, bootstrap=0)
        sets = result["student"].to_json()["sets"]
        assert isinstance(sets, dict)
        assert list(sets) == ["sicke", "snli"]
        assert {name: one["items"] for name, one in sets.items()} == {"sicke": 12, "snli": 30}
        assert sets["snli"]["score"] == 100
        assert result.facts["missing"] == []
        assert any("SNLI: learnt from 81 pairs of snli_train.tsv, 9 others" in n for n in result.notes)

    def test_outcomes_are_right_or_wrong_for_each_example_in_file_order(self, tmp_path):
        rows = opinions(48)
        wrong = [5, 30]
        for number in wrong:
            rows[number] = f"{1 - number % 2}\t{opinion(number)}"
        write(tmp_path, "senteval_mr", "label\ttext", rows)
        task = read_transfer(Request((), tmp_path))
        score = task.score(subject(task), []).sets["mr"]
        assert isinstance(score.outcomes, MeanOutcomes)
        assert score.outcomes.values.dtype == np.float64
        assert np.flatnonzero(score.outcomes.values == 0).tolist() == wrong
        assert score.value == pytest.approx(100 * 46 / 48)

    def test_the_switch_for_sentences(self, data, monkeypatch):
        write_sst2(data, "senteval_sst2_sentences", 20)
        for stem in ("senteval_mr", "senteval_mrpc", "senteval_trec"):
            (data / f"{stem}.tsv").unlink()
        monkeypatch.setattr(loader, "load_model", lambda *_, **__: model())
        command = [str(data), "--suite", "transfer", "--data", str(data), "--bootstrap", "0", "--json"]
        notes = {}
        for switch in ((), ("--sst2-sentences",)):
            run = CliRunner().invoke(evaluate_command, [*command, *switch], catch_exceptions=False)
            assert run.exit_code == 0, run.output
            notes[switch] = json.loads(run.stdout)["notes"]
        assert any("SST2: learnt from whole sentences only" in note for note in notes["--sst2-sentences",])
        assert not any("whole sentences" in note for note in notes[()])


def test_f1_by_hand():
    gold, predicted = np.array([1, 1, 1, 0, 0]), np.array([1, 1, 0, 1, 0])
    assert f1(gold, predicted, 1) == pytest.approx(100 * 2 / 3)
    assert f1(gold, predicted, 0) == pytest.approx(50)
    assert f1(gold, predicted, 7) is None


def test_a_strength_at_an_end_of_the_grid_is_told():
    assert "end of the grid" in classification._span([classification.STRENGTHS[0]])
    assert "end of the grid" in classification._span([0.0625, classification.STRENGTHS[-1]])
    assert classification._span([0.0625, 0.0156]) == "0.016 to 0.062"
