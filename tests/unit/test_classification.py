"""The parts of classifiers: labelled rows, names of labels, scores, the head and the loss it is taught by."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
import torch
from classification_helpers import write_rows

from distill.data.collate import Batch
from distill.data.labelled import (
    Columns,
    LabelledRows,
    label_names,
    label_numbers,
    read_labelled,
)
from distill.data.source import Share
from distill.errors import ConfigError, DataError
from distill.reaugkd.head import LabelHead
from distill.training.objectives import CrossEntropy
from distill.training.selection import ClassSelector, refuse_test_rows
from embedcache.errors import InputError, MissingInputError
from embedcache.pairs import join_pair, split_pair, what_is_read
from embedcache.teacher.classifier import ClassifierHead

pytest_plugins = ["distill_fixtures"]

# --- rows ---

ROWS = [
    ("train", "yes", "a cat", "an animal"),
    ("dev", "no", "a stone", "an animal"),
    ("train", "no", "", "an animal"),
    ("train", "", "a dog", "an animal"),
    ("train", "no", "a road", " "),
    ("train", "no", "a house", "a bird"),
]


@pytest.fixture
def pairs(tmp_path):
    return write_rows(tmp_path / "pairs.tsv", ROWS, ("split", "label", "text", "text2"))


def test_rows_that_are_asked_for_are_read_and_bad_ones_counted(pairs):
    rows = read_labelled(pairs, Columns("text"), ["split=train"])
    assert rows.texts == ["a cat", "a road", "a house"]
    assert rows.labels == ["yes", "no", "no"]
    assert rows.skipped == {"empty": 1, "null label": 1}
    assert "first at" in rows.described
    assert rows.name == "pairs"


def test_a_pair_is_one_text_and_both_halves_have_to_be_there(pairs):
    rows = read_labelled(pairs, Columns("text", "text2"), ["split=train", "label=no"])
    assert [split_pair(text) for text in rows.texts] == [("a house", "a bird")]
    assert rows.skipped == {"empty": 2}


def test_a_text_with_the_separator_of_pairs_is_skipped(tmp_path):
    file = write_rows(tmp_path / "a.tsv", [("x", "one\x1ftwo"), ("y", "three")], ("label", "text"))
    rows = read_labelled(file, Columns("text"))
    assert (rows.texts, rows.skipped) == (["three"], {"pair separator": 1})


def test_all_formats_give_the_same_rows(tmp_path):
    rows = [{"kind": 1, "words": "a cat"}, {"kind": 0, "words": "a stone"}]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "a.jsonl").write_text(lines)
    (tmp_path / "a.csv").write_text("kind,words\n1,a cat\n0,a stone\n")
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.write(lines)
    found = [
        read_labelled(tmp_path / name, Columns("words", label="kind"))
        for name in ("a.jsonl", "a.csv", "a.jsonl.gz")
    ]
    assert {rows.digest for rows in found} == {found[0].digest}
    assert found[0].labels == ["1", "0"]
    assert found[0].digest != found[0].take(np.array([1, 0])).digest


@pytest.mark.parametrize(
    ("columns", "rows", "error", "words"),
    [
        (Columns("nothing"), [], MissingInputError, "no column 'nothing'; .*--text"),
        (Columns("text", "nothing"), [], MissingInputError, "no column 'nothing'; .*--text2"),
        (Columns("text", label="nothing"), [], MissingInputError, "no column 'nothing'; .*pass --label with"),
        (Columns("text"), ["nothing=1"], MissingInputError, "no column 'nothing'; .*pass --rows with"),
        (Columns("text"), ["split=other"], DataError, "has split=other"),
        (Columns("text"), ["split"], InputError, "--rows 'split': expected COLUMN=VALUE"),
    ],
)
def test_what_cannot_be_read_is_named(pairs, columns, rows, error, words):
    with pytest.raises(error, match=words):
        read_labelled(pairs, columns, rows)


def test_rows_of_one_text_are_held_out_together():
    texts = [f"text {number // 2}" for number in range(100)]
    rows = LabelledRows("some", texts, ["a", "b"] * 50)
    left, held_out = rows.split(10, seed=0)
    assert len(held_out) == 20
    assert len(left) == 80
    assert not set(left.texts) & set(held_out.texts)
    assert rows.split(10, seed=0)[1].texts == held_out.texts
    assert rows.split(10, seed=1)[1].texts != held_out.texts


def test_texts_of_the_development_rows_are_found_in_other_capitals():
    rows = LabelledRows("some", ["A cat!", "a dog", "a cat"], ["1", "0", "1"])
    assert rows.overlap(["a  CAT"]) == 2


@pytest.mark.parametrize("row", ["split=test", "split=TEST", "subset= test"])
def test_a_test_split_is_refused(row):
    with pytest.raises(ConfigError, match=r"evaluation\.rows: .* rows of a test set"):
        refuse_test_rows("evaluation.rows", ["lang=en", row])
    refuse_test_rows("evaluation.rows", ["split=dev", "kind=latest"])


# --- labels ---


def test_labels_are_in_the_order_of_their_numbers_or_else_of_their_names():
    assert label_names(["10", "9", "2", "9", "10", "2"]) == ("2", "9", "10")
    assert label_names(["b", "10", "a", "b", "10", "a"]) == ("10", "a", "b")
    assert label_names([1, 0, 1, 1]) == ("0", "1")


@pytest.mark.parametrize(
    ("labels", "words"), [(["a", "a"], "'a' alone"), ([*map(str, range(9))], "9 different labels in 9 rows")]
)
def test_labels_that_make_no_classes_are_refused(labels, words):
    with pytest.raises(DataError, match=words):
        label_names(labels)


def test_labels_get_their_numbers_and_strangers_are_named():
    assert label_numbers(["b", "a", "b"], ("a", "b"), "rows").tolist() == [1, 0, 1]
    with pytest.raises(DataError, match=r"dev\.tsv: 2 of 3 rows .*'c'; it knows 'a', 'b'"):
        label_numbers(["c", "a", "c"], ("a", "b"), "dev.tsv")


# --- scores ---


def test_the_selector_scores_the_classifier_as_it_is_now(tokenizer):
    head = LabelHead(("a", "b"), 2, seed=0)
    with torch.no_grad():
        head.weight.copy_(torch.eye(2))
    vectors = np.array([[1, 0], [0, 1], [2, 1], [1, 3]], dtype=np.float32)
    selector = ClassSelector(tokenizer(["one"] * 4), np.array([0, 1, 1, 1]), head, "dev")
    scores = selector.score(lambda texts: vectors)
    assert scores == {"dev_accuracy": 0.75, "dev_f1": pytest.approx((2 / 3 + 4 / 5) / 2)}
    with torch.no_grad():
        head.bias.copy_(torch.tensor([0.0, 10.0]))
    scores = selector.score(lambda texts: vectors)
    assert scores == {"dev_accuracy": 0.75, "dev_f1": pytest.approx((0 + 6 / 7) / 2)}
    assert np.isnan(selector.score(lambda texts: vectors * np.nan)["dev_accuracy"])


# --- the head and its loss ---


def test_the_head_is_kept_as_it_is(tmp_path):
    head = LabelHead(("no", "yes"), 5, seed=3)
    vectors = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
    head.kept().write(tmp_path)
    read = ClassifierHead.read(tmp_path)
    assert read.labels == ("no", "yes")
    with torch.no_grad():
        np.testing.assert_allclose(read.logits(vectors), head(torch.from_numpy(vectors)).numpy(), atol=1e-6)
    assert torch.equal(LabelHead(("no", "yes"), 5, seed=3).weight, head.weight)
    assert not torch.equal(LabelHead(("no", "yes"), 5, seed=4).weight, head.weight)


@pytest.mark.parametrize("reads", ["texts", "pairs"])
def test_a_classifier_knows_what_it_was_taught_on(tmp_path, reads):
    LabelHead(("no", "yes"), 5, reads=reads).kept().write(tmp_path)
    head = ClassifierHead.read(tmp_path)
    texts = {"texts": ["a", "b"], "pairs": [join_pair("a", "b"), join_pair("b", "a")]}
    head.refuse_others(texts.pop(reads), "it")
    ((_, others),) = texts.items()
    with pytest.raises(InputError, match=f"taught on {reads}.*'a"):
        head.refuse_others(others, "it")
    LabelHead(("no", "yes"), 5).kept().write(tmp_path)
    ClassifierHead.read(tmp_path).refuse_others(others, "it")


def test_what_is_read_is_told_from_the_texts():
    pair = join_pair("a", "b")
    assert what_is_read(["a", "b"]) == "texts"
    assert what_is_read([pair, pair]) == "pairs"
    assert what_is_read(["a", pair]) is None
    assert what_is_read([]) is None


def test_dropout_stands_before_the_classifier_in_training_alone():
    head = LabelHead(("no", "yes"), 50, dropout=0.5)
    vectors = torch.ones(1, 50)
    torch.manual_seed(0)
    assert not torch.equal(head(vectors), head(vectors))
    head.eval()
    assert torch.equal(head(vectors), head(vectors))


LABELS = np.array([0, 2, 1, 1, 0, 2])


def step(rows, share, seed=0):
    """Return (loss, gradients of vectors and weights) that one process has."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(6, 4, generator=generator)
    part, counted = share.of(len(rows))
    vectors = inputs[rows][part].requires_grad_()
    head = LabelHead(("a", "b", "c"), 4, seed=1)
    nothing = torch.zeros(len(vectors), 1, dtype=torch.int64)
    batch = Batch(nothing, nothing, 1, torch.tensor(rows), torch.empty(len(rows), 0), part.start, counted)
    loss = CrossEntropy(head, LABELS).loss(vectors, batch, share)
    loss.backward()
    return loss, vectors.grad, head.weight.grad, head, vectors


@pytest.mark.parametrize("rows", [[5, 3, 0, 1], [2]])
def test_the_loss_is_cross_entropy_in_value_and_gradient(rows):
    loss, gradient, weight_gradient, head, vectors = step(rows, Share())
    exact, weight = vectors.detach().double().requires_grad_(), head.weight.detach().double().requires_grad_()
    logits = exact @ weight.T
    wanted = -torch.stack(
        [
            logits[place, LABELS[row]] - torch.log(torch.exp(logits[place]).sum())
            for place, row in enumerate(rows)
        ]
    ).mean()
    wanted_gradients = torch.autograd.grad(wanted, [exact, weight])
    torch.testing.assert_close(loss.double(), wanted, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(gradient.double(), wanted_gradients[0], rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(weight_gradient.double(), wanted_gradients[1], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("rows", [[5, 3, 0, 1, 2], [4]])
def test_the_mean_over_processes_is_the_step_of_one(rows):
    parts = [step(rows, Share(process, 2)) for process in range(2)]
    loss, _, weight_gradient, _, _ = step(rows, Share())
    torch.testing.assert_close((parts[0][0] + parts[1][0]) / 2, loss)
    torch.testing.assert_close((parts[0][2] + parts[1][2]) / 2, weight_gradient)
