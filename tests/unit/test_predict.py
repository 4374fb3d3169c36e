"""A classifier that asks its knowledge base: a real (tiny) student, from the folder to the command line."""

from __future__ import annotations

import json
import re
import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from knowledge_base_helpers import HELD, LABELS, TEXTS, contracts, head, make_cache, make_run, sentiment
from sklearn.metrics import matthews_corrcoef

from distill import RetrievalAugmentedClassifier
from distill.classification.rows import LabelledRows
from distill.cli.main import cli
from distill.errors import ConfigError, DataError
from distill.knowledge_base.asked import Asked
from distill.knowledge_base.base import read_base
from distill.knowledge_base.build import build_base
from distill.knowledge_base.choose import choose
from distill.knowledge_base.effort import EFFORTS
from distill.knowledge_base.index import IndexSettings
from distill.knowledge_base.recall import Recall
from distill.knowledge_base.vote import mixed, neighbour_vote, softmax
from distill.layout import BEST
from distill.prediction import predict
from distill.retrieval_classifier import DEFAULT_BETA, DEFAULT_K, student_encoder
from distill.vectors import unit
from embedcache.errors import InputError
from embedcache.pairs import join_pair
from embedcache.testing import sentences, tiny_encoder

FRESH = sentences(40, seed=91, longest=9)
"""Texts that are in no base and were not held out."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose tiny student has a knowledge base with texts; not to be changed."""
    folder = tmp_path_factory.mktemp("made")
    cache = make_cache(folder / "cache")
    run = make_run(folder / "run", cache, contracts()[1])
    shutil.rmtree(run / BEST)
    tiny_encoder(run / BEST, dimension=8, layers=1, normalize=False)
    head().write(run / BEST)
    build_base(run, cache.folder, texts=True, settings=IndexSettings(codec="float32"))
    return run


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """A copy of that run, to be changed."""
    return Path(shutil.copytree(made, tmp_path / "run"))


def asking(run: Path, file: Path) -> tuple[object, ...]:
    """What to type to have labelled rows of a file answered and scored."""
    return "predict", run, file, "--text", "text", "--label", "label", "--device", "cpu"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Labelled rows, some of them of another split."""
    path = tmp_path / "films.tsv"
    rows = [f"dev\t{LABELS[label]}\t{text}" for label, text in zip(sentiment(FRESH), FRESH, strict=True)]
    path.write_text("\n".join(["split\tlabel\ttext", *rows, "train\tbad\tnot asked for"]) + "\n")
    return path


def command(*arguments: object, fails: bool = False) -> str:
    done = CliRunner().invoke(cli, [str(one) for one in arguments])
    assert (done.exit_code != 0) == fails, done.output
    if fails:
        return f"{done.output}{done.exception}"
    return done.stdout


def command_errors(*arguments: object) -> str:
    """What a command that works writes beside its output."""
    done = CliRunner().invoke(cli, [str(one) for one in arguments], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stderr.strip()


def test_an_answer_is_put_together_as_the_paper_says(made):
    classifier = RetrievalAugmentedClassifier.from_folder(made, k=5, beta=0.3, device="cpu", threads=1)
    base = read_base(made / BEST)
    vectors = student_encoder(made / BEST, "cpu", 1)(FRESH)
    student = softmax(head().logits(vectors))
    cosines = unit(vectors) @ base.index.vectors().T
    nearest = np.argsort(-cosines, axis=1)[:, :5]
    voted = neighbour_vote(np.take_along_axis(cosines, nearest, axis=1), base.soft_labels[nearest], 0.2)
    found = classifier.predict_proba(FRESH)
    assert np.allclose(found, mixed(student, voted, 0.3), atol=1e-5)
    assert np.allclose(found.sum(axis=1), 1)
    assert not np.allclose(found, student, atol=1e-2)
    assert not np.allclose(found, voted, atol=1e-2)


def test_it_is_used_as_scikit_learns_are(made):
    classifier = RetrievalAugmentedClassifier.from_folder(made, device="cpu", threads=1)
    assert classifier.classes_.tolist() == list(LABELS)
    predicted = classifier.predict(FRESH)
    assert predicted.tolist() == classifier.classes_[classifier.predict_proba(FRESH).argmax(axis=1)].tolist()
    assert classifier.score(FRESH, predicted) == 1
    wrong = [LABELS[1 - LABELS.index(label)] for label in predicted]
    assert classifier.score(FRESH, wrong) == 0
    assert classifier.predict_proba([]).shape == (0, 2)
    with pytest.raises(DataError, match="'awful'"):
        classifier.score(FRESH[:1], ["awful"])
    for texts, labels in ((FRESH[:2], ["bad"]), (FRESH[:2], ["bad"] * 3), ([], []), (FRESH[:1], "bad")):
        with pytest.raises(DataError, match="expected a label for each, and one at least"):
            classifier.score(texts, labels)


def test_a_classifier_of_single_texts_takes_no_pairs(run, file):
    replace(head(), reads="texts").write(run / BEST)
    classifier = RetrievalAugmentedClassifier.from_folder(run, device="cpu", threads=1)
    assert len(classifier.predict(FRESH[:2])) == 2
    with pytest.raises(InputError, match="taught on texts, found a pair"):
        classifier.predict([(FRESH[0], FRESH[1])])
    replace(head(), reads="pairs").write(run / BEST)
    said = command("predict", run, file, "--text", "text", "--label", "label", fails=True)
    assert "taught on pairs, found a single text" in said
    with pytest.raises(InputError, match="taught on pairs"):
        choose(run, keep=False, device="cpu", threads=1)


def test_two_texts_are_a_pair(made):
    classifier = RetrievalAugmentedClassifier.from_folder(made, device="cpu", threads=1)
    first, second = FRESH[:2]
    pair = classifier.vectors([(first, second)])
    assert np.array_equal(pair, classifier.vectors([join_pair(first, second)]))
    assert not np.allclose(pair, classifier.vectors([(second, first)]), atol=1e-2)
    assert not np.allclose(pair, classifier.vectors([f"{first} {second}"]), atol=1e-2)


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (FRESH[0], "one text given"),
        ([3], "3 is no text"),
        ([None], "None is no text"),
        ([("a", "b", "c")], "for a pair a tuple of two"),
    ],
)
def test_what_is_no_list_of_texts_is_refused(made, texts, words):
    classifier = RetrievalAugmentedClassifier.from_folder(made, device="cpu", threads=1)
    with pytest.raises(DataError, match=words):
        classifier.predict(texts)


def test_neighbours_that_are_pairs_come_as_two_texts(tmp_path):
    pairs = [join_pair(text, f"the second of {text}") for text in FRESH]
    cache = make_cache(tmp_path / "cache", pairs)
    run = make_run(tmp_path / "run", cache, contracts()[1])
    shutil.rmtree(run / BEST)
    tiny_encoder(run / BEST, dimension=8, layers=1, normalize=False)
    head().write(run / BEST)
    build_base(run, cache.folder, texts=True)
    classifier = RetrievalAugmentedClassifier.from_folder(run, device="cpu", threads=1)
    near = classifier.neighbours([(FRESH[0], "another")], 1)[0][0]
    assert near.text == (FRESH[near.row], f"the second of {FRESH[near.row]}")
    line = f"text\ttext2\n{FRESH[0]}\tanother\n"
    (tmp_path / "pairs.tsv").write_text(line)
    asked = ("--text", "text", "--text2", "text2", "--neighbours", 1, "--device", "cpu")
    printed = command("predict", run, tmp_path / "pairs.tsv", *asked)
    assert f"{near.text[0]} | {near.text[1]}" in printed


def test_without_retrieval_it_is_the_student_alone(made):
    alone = RetrievalAugmentedClassifier.from_folder(made, retrieval=False, device="cpu", threads=1)
    whole = RetrievalAugmentedClassifier.from_folder(made, beta=1, device="cpu", threads=1)
    voted = RetrievalAugmentedClassifier.from_folder(made, beta=0, device="cpu", threads=1)
    assert np.array_equal(alone.predict_proba(FRESH), whole.predict_proba(FRESH))
    assert not np.allclose(alone.predict_proba(FRESH), voted.predict_proba(FRESH), atol=1e-2)
    with pytest.raises(ConfigError, match="no knowledge base"):
        alone.neighbours(FRESH[:1])


def test_a_model_without_a_base_is_a_plain_classifier(run):
    shutil.rmtree(run / BEST / "knowledge_base")
    plain = RetrievalAugmentedClassifier.from_folder(run / BEST, device="cpu", threads=1)
    assert plain.base is None
    assert np.allclose(plain.predict_proba(FRESH).sum(axis=1), 1)
    with pytest.raises(ConfigError, match="k and beta are of a knowledge base"):
        RetrievalAugmentedClassifier.from_folder(run, k=3)


def test_neighbours_are_the_texts_that_spoke(made):
    classifier = RetrievalAugmentedClassifier.from_folder(made, k=5, beta=0, device="cpu", threads=1)
    (near,) = classifier.neighbours(FRESH[:1])
    kept = [text for text in TEXTS if text not in HELD]
    assert [one.text for one in near] == [kept[one.row] for one in near]
    assert sum(one.weight for one in near) == pytest.approx(1)
    assert [one.cosine for one in near] == sorted((one.cosine for one in near), reverse=True)
    assert [one.label for one in near] == [LABELS[number] for number in sentiment([o.text for o in near])]
    # They are all of the answer where the student itself counts for nothing.
    spoken = sum(
        one.weight * (one.probability if one.label == "good" else 1 - one.probability) for one in near
    )
    assert classifier.predict_proba(FRESH[:1])[0, 1] == pytest.approx(spoken, abs=1e-5)
    assert len(classifier.neighbours(FRESH[:1], 2)[0]) == 2


@pytest.mark.parametrize("settings", [{"k": 0}, {"beta": 1.5}, {"beta": -0.1}])
def test_settings_out_of_range_are_refused(made, settings):
    with pytest.raises(ConfigError, match="expected"):
        RetrievalAugmentedClassifier.from_folder(made, device="cpu", **settings)


def test_k_and_beta_are_chosen_on_held_out_rows_and_then_used(run):
    before = RetrievalAugmentedClassifier.from_folder(run, device="cpu", threads=1)
    assert (before.k, before.beta) == (DEFAULT_K, DEFAULT_BETA)
    choice = choose(run, device="cpu", threads=1)
    after = RetrievalAugmentedClassifier.from_folder(run, device="cpu", threads=1)
    assert (after.k, after.beta) == (choice.chosen.k, choice.chosen.beta)
    labels = [LABELS[number] for number in sentiment(HELD)]
    assert after.score(HELD, labels) == pytest.approx(choice.chosen.accuracy)
    assert choice.chosen.accuracy >= choice.chosen.without
    assert (choice.chosen.rows, choice.in_base) == (len(HELD), 0)
    # What is given by hand goes before what was chosen.
    assert RetrievalAugmentedClassifier.from_folder(run, k=7, device="cpu").k == 7
    assert [row.k for row in choice.table] == [0, 5, 10, 15, 20]
    assert all(row.seconds > 0 for row in choice.table)
    lead = choice.tuning.best.right.astype(int) - choice.tuning.without.right
    assert lead.mean() == pytest.approx(choice.chosen.accuracy - choice.chosen.without)
    assert choice.chosen.lead == choice.tuning.lead(choice.tuning.best)
    assert after.base.chosen == choice.chosen


def test_a_choice_can_be_looked_at_without_being_kept(run):
    choose(run, keep=False, device="cpu", threads=1)
    assert read_base(run / BEST).chosen is None


def test_rows_of_the_base_do_not_choose(run, tmp_path):
    path = tmp_path / "mixed.tsv"
    mixed_rows = [*FRESH[:12], *TEXTS[20:30]]
    labels = [LABELS[number] for number in sentiment(mixed_rows)]
    path.write_text("label\ttext\n" + "".join(f"{a}\t{b}\n" for a, b in zip(labels, mixed_rows, strict=True)))
    choice = choose(run, data=path, device="cpu", threads=1)
    assert (choice.chosen.rows, choice.in_base) == (12, 10)
    path.write_text(
        "label\ttext\n" + "".join(f"{a}\t{b}\n" for a, b in zip(labels[12:], TEXTS[20:30], strict=True))
    )
    with pytest.raises(DataError, match="10 of which stand in the knowledge base"):
        choose(run, data=path, device="cpu", threads=1)


def test_a_test_split_does_not_choose(run, file):
    with pytest.raises(ConfigError, match=r"^--rows: split=test .*test set; what is chosen on them makes"):
        choose(run, data=file, rows=("split=test",), device="cpu")
    test_file = shutil.copy(file, file.with_name("films_test.tsv"))
    with pytest.raises(ConfigError, match=r"--data: films_test\.tsv looks like a test set"):
        choose(run, data=test_file, device="cpu")


@pytest.mark.parametrize(
    "options",
    [("--rows", "split=dev"), ("--text", "text"), ("--label", "label"), ("--format", "tsv")],
    ids=lambda options: options[0],
)
def test_options_of_a_file_are_refused_where_none_is_given(run, options):
    assert "give --data FILE" in command("kb", "tune", run, *options, fails=True)
    assert read_base(run / BEST).chosen is None


def test_a_file_and_the_cache_of_the_run_are_not_both_read(run, file):
    with pytest.raises(ConfigError, match="leave one of them out"):
        choose(run, data=file, cache=run.parent / "cache", device="cpu")


def test_the_command_scores_writes_and_says_what_was_chosen(run, file, tmp_path):
    out = tmp_path / "answers.jsonl"
    told = command(
        "predict", run, file, "--text", "text", "--label", "label", "--rows", "split=dev", "--neighbours", 2,
        "--out", out, "--device", "cpu", "--threads", 1,
    )  # fmt: skip
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [row["text"] for row in rows] == FRESH
    assert [row["gold"] for row in rows] == [LABELS[number] for number in sentiment(FRESH)]
    right = np.mean([row["gold"] == row["label"] for row in rows])
    assert f"{100 * right:.2f} % of 40 right" in told
    assert "k 10, beta 0.5 (never tuned)" in told
    assert "retrieval added" in told
    assert all(len(row["neighbours"]) == 2 for row in rows)
    assert command("predict", run, file, "--text", "text", "--no-retrieval", "--out", out, "--device", "cpu")
    assert "neighbours" not in json.loads(out.read_text(encoding="utf-8").splitlines()[0])


def test_what_a_process_does_once_is_no_part_of_the_time(made, monkeypatch):
    base = read_base(made / BEST)
    calls = []
    now = 0.0

    def pass_by(seconds):
        nonlocal now
        now += seconds
        return now

    # Every look at the clock takes a moment, and nothing else takes time but the first answer.
    monkeypatch.setattr(time, "perf_counter", lambda: pass_by(0.001))

    def encode(texts):
        calls.append(list(texts))
        if len(calls) == 1:
            pass_by(5.0)
        return np.ones((len(texts), 8), dtype=np.float32)

    classifier = RetrievalAugmentedClassifier(encode, head(), base)
    read = LabelledRows("rows", FRESH, [""] * len(FRESH))
    found = predict(classifier, read, labelled=False)
    assert calls == [FRESH[:1], FRESH]
    assert found.warm_up_seconds >= 5 > found.encode_seconds > 0
    assert 0 < found.search_seconds < 5
    assert len(found.probabilities) == len(FRESH)


def test_the_first_answer_is_told_apart(run, file):
    ask = ("predict", run, file, "--text", "text", "--device", "cpu", "--threads", 1)
    facts = json.loads(command(*ask, "--json"))
    assert facts["warm_up_seconds"] > 0
    assert re.search(r"; a first answer, which is not counted, took \d+\.\d\d s$", command_errors(*ask))


def test_blank_lines_are_no_texts(run):
    done = CliRunner().invoke(cli, ["predict", str(run), "--device", "cpu"], input="\n \n")
    assert isinstance(done.exception, InputError)
    assert "every row was skipped: 2 empty" in str(done.exception)


def test_rows_that_cannot_choose_are_told(run, tmp_path):
    path = tmp_path / "more.tsv"
    rows = [f"{LABELS[label]}\t{text}" for label, text in zip(sentiment(FRESH), FRESH, strict=True)]
    path.write_text("\n".join(["label\ttext", *rows, "bad\t", "good\t "]) + "\n")
    ask = ("kb", "tune", run, "--data", path, "--device", "cpu", "--threads", 1)
    assert command_errors(*ask).startswith("left out: 2 ")
    assert sum(json.loads(command(*ask, "--json"))["skipped"].values()) == 2
    fewer = make_cache(tmp_path / "fewer", TEXTS[2:])
    ask = ("kb", "tune", run, "--cache", fewer.folder, "--device", "cpu", "--threads", 1)
    words = "left out: 2 of 14 texts held out by the run, which corpus 'films' does not hold"
    assert command_errors(*ask).startswith(words)
    too_few = make_cache(tmp_path / "too-few", TEXTS[8:])
    said = command("kb", "tune", run, "--cache", too_few.folder, fails=True)
    assert "expected 10 others at least to choose k and beta on (left out: 8 of 14 texts" in said


def test_tsv_has_a_row_for_every_text(run, file, tmp_path):
    out = tmp_path / "answers.tsv"
    command("predict", run, file, "--text", "text", "--out", out, "--device", "cpu", "--threads", 1)
    lines = out.read_text(encoding="utf-8").splitlines()
    assert lines[0].split("\t") == ["text", "label", "student", "p(bad)", "p(good)"]
    assert len(lines) == 1 + len(FRESH) + 1
    assert all(len(line.split("\t")) == 5 for line in lines)


def test_answers_are_printed_where_no_file_is_named(run):
    asked = ["predict", str(run), "--device", "cpu", "--threads", "1", "--neighbours", "1"]
    done = CliRunner().invoke(cli, asked, input="a fine film\nanother\n")
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert len(lines) == 4
    assert lines[0].split("\t")[2] == "a fine film"
    # The weightiest of ten, and what its teacher thought.
    assert re.match(r"  0\.\d{3}\t(good|bad) 0\.98\d\d\t", lines[1])
    assert "texts in" in done.stderr


def test_a_score_on_the_rows_that_chose_is_refused_or_marked(run, tmp_path):
    choose(run, device="cpu", threads=1)
    path = tmp_path / "seen.tsv"

    def write(texts: list[str]) -> None:
        labels = sentiment(texts)
        path.write_text(
            "label\ttext\n" + "".join(f"{LABELS[a]}\t{b}\n" for a, b in zip(labels, texts, strict=True))
        )

    ask = (*asking(run, path), "--threads", 1)
    write(HELD)
    assert "k and beta were chosen on these rows" in command(*ask, fails=True)
    assert "right" in command(*ask, "--no-retrieval", "--out", tmp_path / "a.tsv")
    assert "note" not in command(*ask, "--k", 5, "--beta", 0.5, "--out", tmp_path / "a.tsv")
    write([*HELD, *FRESH])
    assert f"chosen on {len(HELD)} of these rows" in command(*ask, "--out", tmp_path / "a.tsv")
    write(FRESH)
    assert "note" not in command(*ask, "--out", tmp_path / "a.tsv")


def test_k_and_beta_that_were_typed_are_called_given(run, file):
    ask = (*asking(run, file), "--rows", "split=dev")

    def facts(*more: object) -> dict:
        return json.loads(command(*ask, *more, "--json"))

    assert "k 10, beta 0.5 (never tuned)" in command_errors(*ask)
    choose(run, device="cpu", threads=1)
    chosen = read_base(run / BEST).chosen
    by = f"chosen on {chosen.rows} {chosen.source}"
    assert f"k {chosen.k}, beta {chosen.beta:g} ({by})" in command_errors(*ask)
    said = command_errors(*ask, "--k", 3, "--beta", 0.2)
    assert "k 3, beta 0.2 (given)" in said
    assert "chosen" not in said
    assert f"k 3 (given), beta {chosen.beta:g} ({by})" in command_errors(*ask, "--k", 3)
    assert f"k {chosen.k} ({by}), beta 1 (given)" in command_errors(*ask, "--beta", 1)
    both, one = facts("--k", 3, "--beta", 0.2), facts("--k", 3)
    assert (both["given"], both["chosen"]) == (["k", "beta"], None)
    assert (one["given"], one["chosen"]["beta"]) == (["k"], chosen.beta)


def test_rows_that_find_themselves_in_the_base_are_counted(run, tmp_path):
    base = read_base(run / BEST)
    path = tmp_path / "seen.tsv"
    texts = [*base.texts[:7], *FRESH]
    labels = sentiment(texts)
    lines = [f"{LABELS[label]}\t{text}" for label, text in zip(labels, texts, strict=True)]
    path.write_text("\n".join(["label\ttext", *lines]) + "\n")
    ask = (*asking(run, path), "--threads", 1)
    note = "note: 7 of these rows stand in the knowledge base and find themselves: the score is too good"
    assert note in command_errors(*ask)
    score = json.loads(command(*ask, "--json"))["score"]
    assert (score["in_base"], score["chosen_on"]) == (7, 0)
    assert "find themselves" not in command_errors(*ask, "--no-retrieval")
    assert json.loads(command(*ask, "--no-retrieval", "--json"))["score"]["in_base"] == 0
    path.write_text("\n".join(["label\ttext", *lines[7:]]) + "\n")
    assert "find themselves" not in command_errors(*ask)


def test_matthews_correlation_is_told(made, file):
    ask = (*asking(made, file), "--rows", "split=dev")
    score = json.loads(command(*ask, "--json"))["score"]
    classifier = RetrievalAugmentedClassifier.from_folder(made, device="cpu", threads=1)
    gold = [LABELS[label] for label in sentiment(FRESH)]
    assert score["matthews"] == pytest.approx(matthews_corrcoef(gold, classifier.predict(FRESH)))
    alone = RetrievalAugmentedClassifier.from_folder(made, retrieval=False, device="cpu", threads=1)
    assert score["student_matthews"] == pytest.approx(matthews_corrcoef(gold, alone.predict(FRESH)))
    said = command_errors(*ask)
    assert f"Matthews' correlation {100 * score['matthews']:.2f}; the student alone" in said
    assert f"{100 * score['student_macro_f1']:.2f}, {100 * score['student_matthews']:.2f}\n" in said


def test_the_commands_of_a_base(run, tmp_path, monkeypatch):
    (tmp_path / "cache").mkdir()
    cache = make_cache(tmp_path / "cache")
    said = command("kb", "build", run, "--cache", cache.folder, "--overwrite", "--codec", "int8")
    assert "held out" in said
    # Fourteen rows were held out, too few to measure on.
    assert "searches look at" not in said
    assert "ef-search 256," in command("kb", "info", run)
    asked = ("kb", "build", run, "--cache", cache.folder, "--overwrite", "--codec", "int8")
    monkeypatch.setattr("distill.knowledge_base.effort.FEWEST_QUERIES", len(HELD))
    said = f"searches look at {EFFORTS[0]} candidates and find 100.0 % of the ten nearest to the teacher's"
    assert said in command(*asked)
    assert "searches look at" not in command(*asked, "--ef-search", 9)
    assert "ef-search 9," in command("kb", "info", run)
    more = make_cache(tmp_path / "more", [*FRESH, *TEXTS[20:22]], name="more")
    assert "2 in it already" in command("kb", "add", run, "--cache", more.folder)
    told = command("kb", "info", run)
    assert "int8" in told
    assert "films (46), more (40)" in told
    assert "not chosen yet" in told
    facts = json.loads(command("kb", "check", run, "--sample", 50, "--json"))
    assert facts["queries"] == 50
    assert facts["recall"] >= 0.99
    table = tmp_path / "table.tsv"
    told = command("kb", "tune", run, "--table", "--ks", "1,2", "--out", table, "--device", "cpu")
    assert "without retrieval" in told
    assert "nearest to the student's vectors the graph finds 100.0 %: with exact search " in told
    assert "neighbours vote for another label for 0 of 14 rows" in told
    assert "--ef-search" not in told
    lines = [line.split("\t") for line in table.read_text(encoding="utf-8").splitlines()]
    assert [line[0] for line in lines] == ["k", "no retrieval", "1", "2"]
    assert re.fullmatch(r"[+-]\d+\.\d\d to [+-]\d+\.\d\d", lines[2][lines[0].index("lead")])
    assert "chosen on 14 rows of corpus 'films'" in command("kb", "info", run)
    assert command("kb", "tune", run, "--ks", "1,30", fails=True)
    poor = Asked(Recall(100, 10, 0.4, 0.5, 1e-4, 1e-3), 2, 0.8, 0.9)
    monkeypatch.setattr("distill.knowledge_base.choose.compare_answers", lambda *_: poor)
    told = command("kb", "tune", run, "--device", "cpu")
    assert "the graph finds 40.0 %: with exact search 90.00 % are right" in told
    assert "vote for another label for 2 of 100 rows" in told
    assert "note: the neighbours that it misses would help" in told
    assert json.loads(command("kb", "tune", run, "--device", "cpu", "--json"))["asked"] == poor.to_json()


@pytest.mark.parametrize(
    ("lead", "told", "note"),
    [((-0.02, 0.3), "-2.00 to +30.00", True), ((0.05, 0.3), "+5.00 to +30.00", False)],
)
def test_a_lead_that_may_be_chance_is_called_so(run, monkeypatch, lead, told, note):
    def lucky(model, *, keep, **options):
        choice = choose(model, keep=False, **options)
        chosen = replace(choice.chosen, beta=0.4, accuracy=0.9, without=0.75, lead=lead)
        base = read_base(run / BEST)
        base.keep_choice(run / BEST, chosen, base.keys[:3])
        return replace(choice, chosen=chosen)

    monkeypatch.setattr("distill.knowledge_base.choose.choose", lucky)
    said = command("kb", "tune", run, "--device", "cpu", "--threads", 1)
    assert f"a lead of 15.00 points over the student alone (95 % interval {told})" in said
    assert ("chance alone may have made this lead" in said) == note
    assert ("chance alone" in command("kb", "info", run)) == note
    facts = json.loads(command("kb", "tune", run, "--device", "cpu", "--threads", 1, "--json"))
    assert (facts["chosen"]["lead"], facts["chosen"]["within_chance"]) == (list(lead), note)


def test_files_of_other_endings_are_refused(run, file, tmp_path):
    assert "expected a file that ends in" in command(
        "predict", run, file, "--text", "text", "--out", tmp_path / "x.csv", fails=True
    )
