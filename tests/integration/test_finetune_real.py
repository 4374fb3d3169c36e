"""A real small encoder fine-tuned on real triples and on labels, as far as both are on this machine."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

import distill
from distill.data.labelled import Columns, read_labelled
from distill.data.triples import Triples, read_triples
from distill.students.build import open_student

MODEL = Path(os.environ.get("DISTILL_MODELS", Path.home() / ".cache" / "real-models")) / "minilm-l3"
DATA = Path(os.environ.get("DISTILL_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
TRIPLES, REVIEWS = DATA / "snli_triples_train.tsv.gz", DATA / "glue_sst2.tsv.gz"

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.skipif(
        not (MODEL.is_dir() and TRIPLES.is_file()),
        reason="needs a MiniLM of three layers in DISTILL_MODELS and SNLI triples in DISTILL_DATA",
    ),
]


def accuracy(encoder: SentenceTransformer, triples: Triples) -> float:
    """Return the share of anchors whose positive is nearer than all texts that are none of theirs."""
    anchors, positives, negatives = (
        np.asarray(encoder.encode(column, normalize_embeddings=True)) for column in triples.columns
    )
    own = np.einsum("ij,ij->i", anchors, positives)
    cosines = anchors @ np.concatenate([positives, negatives]).T
    right: dict[str, set[str]] = {}
    for anchor, positive in zip(*triples.columns[:2], strict=True):
        right.setdefault(anchor, {anchor}).add(positive)
    candidates = triples.columns[1] + triples.columns[2]
    is_right = [[text in right[anchor] for text in candidates] for anchor in triples.columns[0]]
    others = np.where(is_right, -2, cosines)
    return float((own > others.max(axis=1)).mean())


def test_the_positives_of_triples_never_seen_are_found_more_often(tmp_path):
    run = distill.finetune(
        MODEL,
        triples=TRIPLES,
        limit=300,
        held_out=80,
        epochs=2,
        batch_size=32,
        lr=2e-4,
        # A pooling that the model was not made with, so that there is much to learn.
        pooling="cls",
        eval_every=7,
        mixed_precision="no",
        out=tmp_path / "run",
    )
    trained, held_out = read_triples(TRIPLES, limit=300).split(80, seed=0)
    assert run.record.rows == len(trained) == 300 - len(held_out)
    before = accuracy(open_student(str(MODEL), pooling="cls")[0].eval(), held_out)
    after = accuracy(SentenceTransformer(str(run.best), device="cpu"), held_out)
    assert run.result.best_score == pytest.approx(after, abs=0.011)
    assert after > before


@pytest.mark.skipif(not REVIEWS.is_file(), reason="needs SST-2 in DISTILL_DATA")
def test_a_few_hundred_reviews_teach_it_far_more_than_the_commonest_label(tmp_path):
    run = distill.finetune(
        MODEL,
        labels=REVIEWS,
        text="text",
        rows=["split=train"],
        dev_rows=["split=dev"],
        limit=1500,
        epochs=2,
        lr=1e-4,
        max_length=64,
        eval_every=47,
        mixed_precision="no",
        device="cpu",
        out=tmp_path / "run",
    )
    labels = read_labelled(REVIEWS, Columns("text"), ["split=dev"]).labels
    commonest = max(labels.count(label) for label in set(labels)) / len(labels)
    assert run.record.labels == ["0", "1"]
    assert run.result.best_score > commonest + 0.15
    assert run.scores["dev_f1"] > 0.6
