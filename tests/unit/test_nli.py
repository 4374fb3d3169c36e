"""SNLI: which pairs are drawn and held out, what is said of it, and how a number of pairs reaches it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from kept_helpers import Bench
from labelled_helpers import SNLI_HEADER, model, snli_rows, write, write_sick

from distill.cli.evaluate import evaluate_command
from distill.errors import DataError
from distill.evaluation import loader
from distill.evaluation.classification import DEV, TEST, TRAIN
from distill.evaluation.kept import read_kept
from distill.evaluation.labelled import Examples
from distill.evaluation.nli import draw, load_snli
from distill.evaluation.nli import read as read_nli
from distill.evaluation.tasks import SNLI_PAIRS, Request


def premises_of(examples: Examples) -> Counter[str]:
    """How many pairs each premise has."""
    return Counter(texts[0] for texts in examples.texts)


def uneven(premises: int = 60) -> Examples:
    """Premises of one to five pairs each, which do not stand together."""
    pairs = [(f"premise {n}", f"hypothesis {n} {k}") for n in range(premises) for k in range(1 + n % 5)]
    order = np.random.default_rng(0).permutation(len(pairs)).tolist()
    return Examples(tuple(pairs[place] for place in order), tuple(f"label {place}" for place in order))


def write_snli(folder: Path, learnt: int = 90) -> None:
    write(folder, "snli_train", SNLI_HEADER, snli_rows(learnt))
    write(folder, "snli_dev", SNLI_HEADER, snli_rows(30, 300))


class TestDraw:
    @pytest.mark.parametrize("pairs", [1, 7, 50, 120])
    def test_whole_premises_as_many_pairs_as_asked_for_or_a_few_more(self, pairs):
        everything = uneven()
        drawn = draw(everything, pairs, seed=0)
        assert pairs <= len(drawn) < pairs + 5
        whole = premises_of(everything)
        assert all(count == whole[premise] for premise, count in premises_of(drawn).items())

    def test_pairs_keep_their_labels_and_the_order_of_the_file(self):
        everything = uneven()
        drawn = draw(everything, 50, seed=0)
        places = [everything.texts.index(texts) for texts in drawn.texts]
        assert places == sorted(places)
        assert drawn.labels == tuple(everything.labels[place] for place in places)

    def test_the_seed_decides_which(self):
        first, again, other = (draw(uneven(), 50, seed) for seed in (0, 0, 1))
        assert first == again
        assert set(premises_of(first)) != set(premises_of(other))

    def test_the_order_of_the_file_does_not(self):
        everything = uneven()
        turned = Examples(everything.texts[::-1], everything.labels[::-1])
        assert set(draw(turned, 50, 0).texts) == set(draw(everything, 50, 0).texts)

    def test_more_than_there_are_is_all(self):
        assert draw(uneven(), 10_000, seed=0) == uneven()


class TestPairs:
    def loaded(self, folder: Path, **settings: int):
        one = load_snli(folder, **{"seed": 0, **settings})
        assert one is not None
        return one

    def test_so_many_are_learnt_from_and_chosen_with_and_a_note_says_so(self, tmp_path):
        write_snli(tmp_path)
        one = self.loaded(tmp_path, pairs=30)
        learnt, held = len(one.parts[TRAIN]), len(one.parts[DEV])
        assert (learnt, held) == (27, 3)
        assert one.notes()[0].startswith(
            "SNLI: learnt from 27 pairs of snli_train.tsv, 3 others chose C "
            "(of 90; --snli-pairs 0 takes all); scored on snli_dev.tsv"
        )
        assert len(one.parts[TEST]) == 30

    @pytest.mark.parametrize("pairs", [0, 90, 91, SNLI_PAIRS])
    def test_all_are_taken_and_the_note_does_not_speak_of_a_draw(self, tmp_path, pairs):
        write_snli(tmp_path)
        one = self.loaded(tmp_path, pairs=pairs)
        assert len(one.parts[TRAIN]) + len(one.parts[DEV]) == 90
        assert not any("--snli-pairs" in note for note in one.notes())

    def test_what_is_scored_does_not_depend_on_the_draw(self, tmp_path):
        write_snli(tmp_path)
        sets = [self.loaded(tmp_path, pairs=30, seed=seed) for seed in (0, 1)]
        assert sets[0].parts[TEST] == sets[1].parts[TEST]
        assert sets[0].parts[TRAIN] != sets[1].parts[TRAIN]

    def test_no_premise_of_the_drawn_is_learnt_from_and_held_out(self, tmp_path):
        write_snli(tmp_path)
        one = self.loaded(tmp_path, pairs=60)
        assert not set(premises_of(one.parts[TRAIN])) & set(premises_of(one.parts[DEV]))

    def test_the_default_leaves_most_of_a_large_file_out(self, tmp_path):
        write_snli(tmp_path, SNLI_PAIRS + 600)
        one = self.loaded(tmp_path)
        assert len(one.parts[TRAIN]) + len(one.parts[DEV]) == SNLI_PAIRS

    def test_the_command_hands_the_number_on(self, tmp_path, monkeypatch):
        write_snli(tmp_path)
        monkeypatch.setattr(loader, "load_model", lambda *_, **__: model())
        command = [str(tmp_path), "--suite", "nli", "--data", str(tmp_path), "--bootstrap", "0", "--json"]
        told = {}
        for words in ((), ("--snli-pairs", "30"), ("--snli-pairs", "0")):
            run = CliRunner().invoke(evaluate_command, [*command, *words], catch_exceptions=False)
            assert run.exit_code == 0, run.output
            notes = json.loads(run.stdout)["notes"]
            told[words] = next(note for note in notes if note.startswith("SNLI: learnt"))
        assert "learnt from 27 pairs" in told["--snli-pairs", "30"]
        assert told[()] == told["--snli-pairs", "0"]
        assert "learnt from 81 pairs" in told[()]

    def test_fewer_than_none_is_refused(self, tmp_path):
        run = CliRunner().invoke(evaluate_command, [str(tmp_path), "--snli-pairs", "-1"])
        assert run.exit_code == 2
        assert "-1 is not in the range x>=0" in run.output

    def test_an_evaluation_kept_with_another_number_is_made_anew(self, tmp_path, monkeypatch):
        bench = Bench(tmp_path, monkeypatch)
        write_snli(bench.data)

        def encoded_for(pairs: int) -> bool:
            bench.evaluate(suite="nli", snli_pairs=pairs, bootstrap=0)
            return bool(bench.encoded())

        assert [encoded_for(pairs) for pairs in (30, 30, 60, 60, 30)] == [True, False, True, False, True]
        kept = read_kept(bench.run, "nli")
        assert kept is not None
        assert any("learnt from 27 pairs" in note for note in kept.result["notes"])


class TestReading:
    def test_the_test_file_is_scored_where_it_is_there(self, tmp_path):
        for stem in ("snli_train100k", "snli_dev_tokenized", "snli_test"):
            write(tmp_path, stem, SNLI_HEADER, snli_rows(60, 0 if "train" in stem else 300))
        one = load_snli(tmp_path, 0)
        assert one is not None
        assert "scored on snli_test.tsv" in one.notes()[0]
        (tmp_path / "snli_test.tsv").unlink()
        again = load_snli(tmp_path, 0)
        assert again is not None
        assert "scored on snli_dev_tokenized.tsv (no snli_test.tsv is there)" in again.notes()[0]

    def test_the_whole_training_file_is_preferred(self, tmp_path):
        write(tmp_path, "snli_train100k", SNLI_HEADER, snli_rows(60))
        write(tmp_path, "snli_train", SNLI_HEADER, snli_rows(90))
        write(tmp_path, "snli_dev", SNLI_HEADER, snli_rows(30, 300))
        one = load_snli(tmp_path, 0)
        assert one is not None
        assert len(one.parts[TRAIN]) + len(one.parts[DEV]) == 90
        assert len(one.parts[TEST]) == 30

    def test_no_premise_is_learnt_from_and_held_out(self, tmp_path):
        write(tmp_path, "snli_train", SNLI_HEADER, snli_rows(120))
        write(tmp_path, "snli_dev", SNLI_HEADER, snli_rows(30, 300))
        one = load_snli(tmp_path, 0)
        assert one is not None
        premises = {part: {texts[0] for texts in one.parts[part].texts} for part in (TRAIN, DEV)}
        assert not premises[TRAIN] & premises[DEV]
        assert len(premises[DEV]) == 4
        assert len(one.parts[TRAIN]) + len(one.parts[DEV]) == 120

    def test_the_seed_decides_what_is_held_out(self, tmp_path):
        write(tmp_path, "snli_train", SNLI_HEADER, snli_rows(120))
        write(tmp_path, "snli_dev", SNLI_HEADER, snli_rows(30, 300))
        held = []
        for seed in (0, 0, 1):
            one = load_snli(tmp_path, seed)
            assert one is not None
            held.append(one.parts[DEV].texts)
        assert held[0] == held[1] != held[2]

    def test_training_pairs_without_a_file_to_score_are_a_missing_set(self, tmp_path):
        write_sick(tmp_path)
        write(tmp_path, "snli_train", SNLI_HEADER, snli_rows(60))
        task = read_nli(Request((), tmp_path))
        assert [one.name for one in task.sets] == ["sicke"]
        assert "average over 1 of 2 sets; not found: SNLI" in task.notes[0]


def test_too_few_pairs_are_the_options_fault_and_not_the_files(tmp_path):
    write_snli(tmp_path)
    with pytest.raises(DataError, match="found --snli-pairs 1: give more, or 0 for all 90"):
        load_snli(tmp_path, 0, 1)


def test_one_premise_alone_leaves_nothing_to_learn_from(tmp_path):
    write(tmp_path, "snli_train", SNLI_HEADER, [f"neutral\tone premise\t{n}" for n in range(5)])
    write(tmp_path, "snli_dev", SNLI_HEADER, snli_rows(6))
    with pytest.raises(DataError, match="SNLI: expected two labels"):
        load_snli(tmp_path, 0)
