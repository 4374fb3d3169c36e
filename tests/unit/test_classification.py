"""The parts of classifiers: labelled rows, names of labels, scores, the head and the loss it is taught by."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
import torch
from classification_helpers import write_rows

from distill.data.collate import Batch
from distill.data.labelled import Columns, LabelledRows, label_names, label_numbers, read_labelled
from distill.data.source import Share
from distill.errors import ConfigError, DataError
from distill.reaugkd.head import LabelHead
from distill.training.objectives import CrossEntropy
from distill.training.selection import ClassSelector, refuse_test_rows
from embedcache.errors import InputError, MissingInputError
from embedcache.pairs import join_pair, split_pair
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
    ("train", "no", "one\x1ftwo", "a bird"),
]


@pytest.fixture
def pairs(tmp_path):
    return write_rows(tmp_path / "pairs.tsv", ROWS, ("split", "label", "text", "text2"))


def test_rows_that_are_asked_for_are_read_and_bad_ones_counted(pairs):
    rows = read_labelled(pairs, Columns("text"), ["split=train"])
    assert rows.texts == ["a cat", "a road", "a house"]
    assert rows.labels == ["yes", "no", "no"]
    assert rows.skipped == {"empty": 1, "null label": 1, "pair separator": 1}
    rows = read_labelled(pairs, Columns("text", "text2"), ["split=train", "label=no"])
    assert [split_pair(text) for text in rows.texts] == [("a house", "a bird")]
    assert rows.skipped == {"empty": 2, "pair separator": 1}


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
    ("columns", "rows", "error"),
    [
        (Columns("nothing"), [], MissingInputError),
        (Columns("text", "nothing"), [], MissingInputError),
        (Columns("text", label="nothing"), [], MissingInputError),
        (Columns("text"), ["nothing=1"], MissingInputError),
        (Columns("text"), ["split=other"], DataError),
        (Columns("text"), ["split"], InputError),
    ],
)
def test_unreadable_rows_are_named(pairs, columns, rows, error):
    with pytest.raises(error, match=r"nothing|split"):
        read_labelled(pairs, columns, rows)


def test_rows_of_one_text_are_held_out_together_and_recognised_in_any_case():
    texts = [f"text {number // 2}" for number in range(100)]
    rows = LabelledRows("some", texts, ["a", "b"] * 50)
    left, held_out = rows.split(10, seed=0)
    assert (len(left), len(held_out)) == (80, 20)
    assert not set(left.texts) & set(held_out.texts)
    assert rows.split(10, seed=0)[1].texts == held_out.texts
    assert rows.split(10, seed=1)[1].texts != held_out.texts
    assert rows.overlap(["Text  1!"]) == 2


@pytest.mark.parametrize("row", ["split=TEST", "subset= test"])
def test_a_test_split_is_refused(row):
    with pytest.raises(ConfigError, match="test set"):
        refuse_test_rows("evaluation.rows", ["lang=en", row])
    refuse_test_rows("evaluation.rows", ["split=dev", "kind=latest"])


# --- labels ---


def test_labels_are_in_the_order_of_their_numbers_or_else_of_their_names():
    assert label_names(["10", "9", "2", "9", "10", "2"]) == ("2", "9", "10")
    assert label_names(["b", "10", "a", "b", "10", "a"]) == ("10", "a", "b")
    assert label_numbers(["b", "a", "b"], ("a", "b"), "rows").tolist() == [1, 0, 1]
    for labels in (["a", "a"], [*map(str, range(9))]):
        with pytest.raises(DataError):
            label_names(labels)
    with pytest.raises(DataError, match="'c'"):
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


@pytest.mark.parametrize("reads", ["texts", "pairs", None])
def test_a_stored_head_gives_the_same_logits_and_refuses_other_texts(tmp_path, reads):
    head = LabelHead(("no", "yes"), 5, seed=3, reads=reads)
    vectors = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
    head.kept().write(tmp_path)
    read = ClassifierHead.read(tmp_path)
    assert read.labels == ("no", "yes")
    with torch.no_grad():
        np.testing.assert_allclose(read.logits(vectors), head(torch.from_numpy(vectors)).numpy(), atol=1e-6)
    assert torch.equal(LabelHead(("no", "yes"), 5, seed=3).weight, head.weight)
    assert not torch.equal(LabelHead(("no", "yes"), 5, seed=4).weight, head.weight)
    for kind, text in (("texts", "a"), ("pairs", join_pair("a", "b"))):
        if reads in (kind, None):
            read.refuse_others([text], "it")
        else:
            with pytest.raises(InputError, match=f"taught on {reads}"):
                read.refuse_others([text], "it")


def test_dropout_stands_before_the_classifier_in_training_alone():
    head = LabelHead(("no", "yes"), 50, dropout=0.5)
    vectors = torch.ones(1, 50)
    torch.manual_seed(0)
    assert not torch.equal(head(vectors), head(vectors))
    head.eval()
    assert torch.equal(head(vectors), head(vectors))


LABELS = np.array([0, 2, 1, 1, 0, 2])


def step(rows, share):
    """Return (loss, gradients of vectors and weights, head, vectors) that one process has."""
    part, counted = share.of(len(rows))
    inputs = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    vectors, head = inputs[rows][part].requires_grad_(), LabelHead(("a", "b", "c"), 4, seed=1)
    nothing = torch.zeros(len(vectors), 1, dtype=torch.int64)
    batch = Batch(nothing, nothing, 1, torch.tensor(rows), torch.empty(len(rows), 0), part.start, counted)
    loss = CrossEntropy(head, LABELS).loss(vectors, batch, share)
    loss.backward()
    return loss, vectors.grad, head.weight.grad, head, vectors


@pytest.mark.parametrize("rows", [[5, 3, 0, 1, 2], [4]])
def test_the_loss_is_cross_entropy_in_value_and_gradient_alone_and_over_processes(rows):
    loss, gradient, weight_gradient, head, vectors = step(rows, Share())
    exact, weight = (one.detach().double().requires_grad_() for one in (vectors, head.weight))
    shares = torch.exp(exact @ weight.T) / torch.exp(exact @ weight.T).sum(dim=1, keepdim=True)
    wanted = -torch.log(shares[range(len(rows)), LABELS[rows]]).mean()
    gradients = torch.autograd.grad(wanted, [exact, weight])
    torch.testing.assert_close(loss.double(), wanted, rtol=1e-6, atol=1e-7)
    for found, want in zip((gradient, weight_gradient), gradients, strict=True):
        torch.testing.assert_close(found.double(), want, rtol=1e-5, atol=1e-7)
    parts = [step(rows, Share(process, 2)) for process in range(2)]
    torch.testing.assert_close((parts[0][0] + parts[1][0]) / 2, loss)
    torch.testing.assert_close((parts[0][2] + parts[1][2]) / 2, weight_gradient)
