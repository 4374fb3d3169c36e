"""Answers with neighbours: a tiny student and its base, from the folder to the command line."""

from __future__ import annotations

import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from knowledge_base_helpers import HELD, LABELS, TEXTS, contracts, head, make_cache, make_run, sentiment
from scipy.special import softmax

from distill import RetrievalAugmentedClassifier
from distill.cli.main import cli
from distill.errors import ConfigError, DataError
from distill.layout import BEST, KNOWLEDGE_BASE
from distill.reaugkd.classifier import DEFAULT_BETA, DEFAULT_K, open_encoder, score_labels
from distill.reaugkd.index import IndexSettings
from distill.reaugkd.knowledge_base import KnowledgeBase
from distill.reaugkd.student import build_base, open_student_folder
from distill.reaugkd.tune import BETAS, lead_interval, try_settings, tune
from distill.vectors import unit
from embedcache.errors import InputError
from embedcache.pairs import join_pair
from embedcache.testing import sentences, tiny_encoder

FRESH = sentences(40, seed=91, longest=9)
CPU = {"device": "cpu", "threads": 1}
MACHINE = ("--device", "cpu", "--threads", "1")


def make_student(folder: Path, texts=TEXTS) -> Path:
    """A run whose tiny student has a knowledge base with texts."""
    cache = make_cache(folder / "cache", texts)
    run = make_run(folder / "run", cache, contracts()[1])
    tiny_encoder(run / BEST, dimension=8, layers=1, normalize=False)
    head().write(run / BEST)
    build_base(run, cache.folder, texts=True, settings=IndexSettings(codec="float32"))
    return run


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_student(tmp_path_factory.mktemp("made"))


@pytest.fixture
def run(made, tmp_path):
    return Path(shutil.copytree(made, tmp_path / "run"))


@pytest.fixture
def base(made):
    return KnowledgeBase.read(made / BEST)


def opened(run: Path, **options) -> RetrievalAugmentedClassifier:
    return RetrievalAugmentedClassifier.from_folder(run, **CPU, **options)


def labelled(path: Path, texts, split: str = "dev") -> Path:
    lines = [f"{split}\t{LABELS[label]}\t{text}" for label, text in zip(sentiment(texts), texts, strict=True)]
    path.write_text("\n".join(["split\tlabel\ttext", *lines]) + "\n")
    return path


def command(*words: object, given: str | None = None, code: int = 0):
    done = CliRunner().invoke(cli, [str(word) for word in words], input=given)
    refused = isinstance(done.exception, ConfigError)
    assert (2 if refused else done.exit_code) == code, done.output
    return done


def facts(*words: object) -> dict:
    return json.loads(command(*words, "--json").stdout)


# --- formulas ---


def test_a_vote_is_the_papers(base):
    rng = np.random.default_rng(0)
    rows, cosines = rng.integers(0, len(base), (3, 4)), rng.uniform(-1, 1, (3, 4))
    voted = base.vote((rows, cosines))
    for one in range(3):
        raised = [math.exp(cosine / 0.2) for cosine in cosines[one]]
        for label in range(2):
            soft = base.soft_labels[rows[one], label].astype(float)
            expected = sum(w * s for w, s in zip(raised, soft, strict=True)) / sum(raised)
            assert voted[one, label] == pytest.approx(expected, abs=1e-12)
    assert base.weights(np.array([[0.5, -np.inf]])).tolist() == [[1.0, 0.0]]


def test_an_answer_is_put_together_as_the_paper_says(made, base):
    vectors = open_encoder(open_student_folder(made), base, **CPU)(FRESH)
    student = softmax(head().logits(vectors).astype(float), axis=1)
    cosines = unit(vectors) @ base.index.vectors().T
    nearest = np.argsort(-cosines, axis=1)[:, :5]
    voted = base.vote((nearest, np.take_along_axis(cosines, nearest, axis=1)))
    found = opened(made, k=5, beta=0.3).predict_proba(FRESH)
    assert np.allclose(found, 0.3 * student + 0.7 * voted, atol=1e-5)
    assert not np.allclose(found, student, atol=1e-2)
    alone = opened(made, retrieval=False).predict_proba(FRESH)
    assert np.array_equal(alone, opened(made, beta=1).predict_proba(FRESH))
    assert np.allclose(alone, student)


@pytest.mark.parametrize(
    ("student", "gold", "expected"),
    [
        # The student is wrong, its nearest neighbour right and the second wrong.
        ([0.6, 0.4], 1, (1, 0.0)),
        # Of equal accuracies the lowest log loss wins, then the fewest neighbours, then the largest beta.
        ([0.6, 0.4], 0, (1, 1.0)),
        ([0.0, 1.0], 1, (1, 1.0)),
    ],
)
def test_the_best_k_and_beta_are_found(base, student, gold, expected):
    toy = replace(base, soft_labels=np.array([[0.1, 0.9], [1.0, 0.0]], dtype=np.float32))
    found = np.tile([0, 1], (10, 1)), np.full((10, 2), 0.5, dtype=np.float32)
    trials = try_settings(toy, np.tile(student, (10, 1)), found, np.full(10, gold))
    best = min(trials, key=lambda one: one.rank)
    assert len(trials) == 2 * len(BETAS)
    assert (best.k, best.beta, best.accuracy) == (*expected, 1.0)


@pytest.mark.parametrize(("won", "lost", "both"), [(0, 0, 5), (7, 0, 0), (9, 4, 87), (30, 11, 500)])
def test_a_lead_is_judged_as_the_sign_test_judges_it(won, lost, both):
    ours = np.array([True] * won + [False] * lost + [True] * both)
    others = np.array([False] * won + [True] * lost + [True] * both)
    low, high = lead_interval(ours, others)
    assert low <= (won - lost) / len(ours) <= high
    assert lead_interval(others, ours) == pytest.approx((-high, -low))
    coins = won + lost
    tail = sum(math.comb(coins, n) for n in range(max(won, lost), coins + 1)) / 2**coins
    assert (low > 0 or high < 0) == (min(1.0, 2 * tail) < 0.05)


def test_a_score_is_that_of_its_definitions():
    score = score_labels(np.array([0, 0, 1, 1, 1]), np.array([0, 1, 1, 1, 0]), ["a", "b", "never"])
    assert (score["rows"], score["accuracy"]) == (5, 0.6)
    assert score["matthews"] == pytest.approx((2 * 1 - 1 * 1) / 6)
    assert score["macro_f1"] == pytest.approx((0.5 + 2 / 3) / 2)
    assert score["labels"]["b"] == pytest.approx(
        {"rows": 3, "precision": 2 / 3, "recall": 2 / 3, "f1": 2 / 3}
    )
    assert score["labels"]["never"]["f1"] == 0


# --- the classifier ---


def test_it_is_used_as_scikit_learns_are(made):
    classifier = opened(made)
    predicted = classifier.predict(FRESH)
    assert classifier.classes_.tolist() == list(LABELS)
    assert np.array_equal(predicted, classifier.classes_[classifier.predict_proba(FRESH).argmax(axis=1)])
    assert classifier.score(FRESH, predicted) == 1
    assert classifier.predict_proba([]).shape == (0, 2)
    assert classifier.neighbours([]) == []
    for texts, labels in ((FRESH[:1], ["awful"]), (FRESH[:2], ["bad"]), ([], []), (FRESH[:3], "bad")):
        with pytest.raises(DataError):
            classifier.score(texts, labels)
    for texts in (FRESH[0], [3], [None], [("a", "b", "c")]):
        with pytest.raises(DataError):
            classifier.predict(texts)


def test_neighbours_are_the_texts_that_the_answer_is_made_of(made):
    classifier = opened(made, k=5, beta=0)
    (near,) = classifier.neighbours(FRESH[:1])
    kept = [text for text in TEXTS if text not in HELD]
    assert [one.text for one in near] == [kept[one.row] for one in near]
    assert [one.cosine for one in near] == sorted((one.cosine for one in near), reverse=True)
    assert [one.label for one in near] == [LABELS[number] for number in sentiment([o.text for o in near])]
    assert sum(one.weight for one in near) == pytest.approx(1)
    good = sum(one.weight * (one.probability if one.label == "good" else 1 - one.probability) for one in near)
    assert classifier.predict_proba(FRESH[:1])[0, 1] == pytest.approx(good, abs=1e-5)
    assert len(classifier.neighbours(FRESH[:1], 2)[0]) == 2


def test_pairs_are_given_and_come_back_as_two_texts(tmp_path):
    run = make_student(tmp_path, [join_pair(text, f"the second of {text}") for text in FRESH])
    classifier, first, second = opened(run), *FRESH[:2]
    pair = classifier.vectors([(first, second)])
    assert np.array_equal(pair, classifier.vectors([join_pair(first, second)]))
    assert not np.allclose(pair, classifier.vectors([(second, first)]), atol=1e-2)
    near = classifier.neighbours([(first, "another")], 1)[0][0]
    assert near.text == (FRESH[near.row], f"the second of {FRESH[near.row]}")
    (tmp_path / "pairs.tsv").write_text(f"text\ttext2\n{first}\tanother\n")
    words = ("--text", "text", "--text2", "text2", "--neighbours", 1, *MACHINE)
    assert " | ".join(near.text) in command("predict", run, tmp_path / "pairs.tsv", *words).stdout


def test_a_classifier_of_single_texts_takes_no_pairs_and_the_reverse(run):
    replace(head(), reads="texts").write(run / BEST)
    with pytest.raises(InputError, match="found a pair"):
        opened(run).predict([(FRESH[0], FRESH[1])])
    replace(head(), reads="pairs").write(run / BEST)
    for ask in (lambda: opened(run).predict(FRESH), lambda: tune(run, **CPU)):
        with pytest.raises(InputError, match="found a single text"):
            ask()


def test_a_model_without_a_base_is_a_plain_classifier(run):
    for settings in ({"k": 0}, {"beta": 1.5}):
        with pytest.raises(ConfigError, match="expected"):
            opened(run, **settings)
    shutil.rmtree(run / BEST / KNOWLEDGE_BASE)
    plain = opened(run)
    assert np.allclose(plain.predict_proba(FRESH).sum(axis=1), 1)
    for ask in (lambda: plain.neighbours(FRESH[:1]), lambda: opened(run, k=3)):
        with pytest.raises(ConfigError, match="knowledge base"):
            ask()


# --- k and beta ---


def test_k_and_beta_are_chosen_on_held_out_rows_and_then_used(run):
    before = opened(run)
    assert (before.k, before.beta) == (DEFAULT_K, DEFAULT_BETA)
    choice = tune(run, **CPU)
    assert choice.chosen.rows == len(HELD)
    after = opened(run)
    assert after.base.header.chosen == choice.chosen
    assert (after.k, after.beta) == (choice.chosen.k, choice.chosen.beta)
    assert after.score(HELD, [LABELS[n] for n in sentiment(HELD)]) == pytest.approx(choice.chosen.accuracy)
    assert choice.chosen.without == pytest.approx(choice.table[0].accuracy)
    assert choice.chosen.accuracy >= choice.chosen.without
    assert [row.k for row in choice.table] == [0, 5, 10, 15, 20]
    assert all(row.seconds > 0 and row.best_accuracy >= row.accuracy for row in choice.table)
    assert (choice.recall, choice.exact_accuracy) == (1, choice.chosen.accuracy)


def test_rows_of_the_base_and_of_a_test_set_do_not_choose(run, tmp_path):
    mixed = labelled(tmp_path / "mixed.tsv", [*FRESH[:12], *TEXTS[20:30]])
    choice = tune(run, data=mixed, **CPU)
    assert (choice.chosen.rows, choice.in_base) == (12, 10)
    with pytest.raises(DataError, match="0 of 10"):
        tune(run, data=labelled(tmp_path / "seen.tsv", TEXTS[20:30]), **CPU)
    for of in ({"data": mixed, "rows": ("split=test",)}, {"data": mixed.rename(tmp_path / "films_test.tsv")}):
        with pytest.raises(ConfigError, match="test set"):
            tune(run, **of, **CPU)


# --- commands ---


def test_the_commands_of_a_base(run, tmp_path):
    cache = make_cache(tmp_path / "cache")
    built = facts("kb", "build", run, "--cache", cache.folder, "--overwrite", "--codec", "int8")
    assert (built["added"], built["held_out"], built["recall"]) == (46, 14, None)
    more = make_cache(tmp_path / "more", [*FRESH, *TEXTS[20:22]], name="more")
    assert "40 added, 86 in the base" in command("kb", "add", run, "--cache", more.folder).stdout
    for words in ("films (46), more (40)", "codec int8", "not chosen yet"):
        assert words in command("kb", "info", run).stdout
    assert "14 rows of corpus 'films' held out" in command("kb", "tune", run, *MACHINE).stdout
    assert "chosen on 14 rows" in command("kb", "info", run).stdout
    assert [row["k"] for row in facts("kb", "tune", run, *MACHINE)["table"]] == [0, 5, 10, 15, 20]
    command("kb", "tune", run, "--rows", "split=dev", code=2)


def test_the_command_scores_and_writes_answers(run, tmp_path):
    file, out = labelled(tmp_path / "films.tsv", FRESH), tmp_path / "answers.jsonl"
    ask = ("predict", run, file, "--text", "text", *MACHINE)
    said = command(*ask, "--label", "label", "--rows", "split=dev", "--neighbours", 2, "--out", out).stdout
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["text"] for row in rows] == FRESH
    assert [row["gold"] for row in rows] == [LABELS[number] for number in sentiment(FRESH)]
    assert all(len(row["neighbours"]) == 2 for row in rows)
    right = 100 * np.mean([row["gold"] == row["label"] for row in rows])
    assert f"with retrieval: {right:.2f} % of 40 right" in said
    assert "k 10, beta 0.5 (not chosen on any rows)" in said
    out = tmp_path / "answers.tsv"
    command(*ask, "--no-retrieval", "--out", out)
    lines = [line.split("\t") for line in out.read_text().splitlines()]
    assert lines[0] == ["text", "label", "student", "p(bad)", "p(good)"]
    assert [len(line) for line in lines] == [5] * 41
    command(*ask, "--out", tmp_path / "x.csv", code=2)
    command(*ask, "--no-retrieval", "--k", 3, code=2)


def test_answers_to_standard_input_are_printed(run):
    done = command("predict", run, "--neighbours", 1, *MACHINE, given="a fine film\n\nanother\n")
    lines = done.stdout.splitlines()
    assert [line.split("\t")[-1] for line in lines[::2]] == ["a fine film", "another"]
    assert re.match(r"  0\.\d{3}\t(good|bad) 0\.98\d\d\t", lines[1])
    assert "left out: 1 empty" in done.stderr


def test_a_score_on_rows_that_chose_or_that_are_in_the_base_is_refused_or_marked(run, tmp_path):
    tune(run, **CPU)

    def ask(texts, *words: object) -> tuple[object, ...]:
        return ("predict", run, labelled(tmp_path / "rows.tsv", texts), "--label", "label", *MACHINE, *words)

    command(*ask(HELD), code=2)
    assert "chosen_on" not in facts(*ask(HELD, "--no-retrieval"))
    by_hand = facts(*ask(HELD, "--k", 5, "--beta", 0.5))
    assert (by_hand["chosen_on"], by_hand["chosen"]) == (0, None)
    found = facts(*ask([*HELD, *FRESH, *TEXTS[20:27]]))
    assert (found["chosen_on"], found["in_base"], found["chosen"]["rows"]) == (len(HELD), 7, len(HELD))
