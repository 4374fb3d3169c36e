"""A real small encoder fine-tuned on real reviews, if both are on this machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import distill
from distill.data.labelled import Columns, read_labelled

MODEL = Path(os.environ.get("DISTILL_MODELS", Path.home() / ".cache" / "real-models")) / "minilm-l3"
DATA = Path(os.environ.get("DISTILL_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
REVIEWS = DATA / "glue_sst2.tsv.gz"

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.skipif(
        not (MODEL.is_dir() and REVIEWS.is_file()),
        reason="needs a MiniLM of three layers in DISTILL_MODELS and SST-2 in DISTILL_DATA",
    ),
]


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
