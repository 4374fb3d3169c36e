"""A cache with a projected teacher and its logits, made by hand, and a classifier's folder to go with it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distill.layout import BEST, CONFIG, HELD_OUT
from distill.record import CorpusRecord, RunRecord, TeacherRecord
from embedcache.cache import Cache
from embedcache.contract import Contract
from embedcache.corpus.readers import ReadReport, RowBatch
from embedcache.corpus.store import store_corpus
from embedcache.keys import key_array
from embedcache.store.base import VectorBatch
from embedcache.teacher.classifier import ClassifierHead
from embedcache.testing import example_contract, sentences

WIDTH = 8
LABELS = ("bad", "good")
TEXTS = sentences(60, seed=4, longest=9)
HELD = TEXTS[:14]


def clusters(count: int, width: int, *, centres: int = 20, seed: int = 0) -> NDArray[np.float32]:
    """Unit vectors around a few centres, as projected vectors lie."""
    rng = np.random.default_rng(seed)
    middle = np.random.default_rng(7).normal(size=(centres, width))
    found = middle[rng.integers(0, centres, count)] + 0.35 * rng.normal(size=(count, width))
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


def sentiment(texts: Sequence[str]) -> NDArray[np.int64]:
    """The label of a text: whether it has an even number of characters."""
    return np.array([len(text) % 2 == 0 for text in texts], dtype=np.int64)


def teacher_vectors(texts: Sequence[str]) -> NDArray[np.float32]:
    """Unit vectors that tell the labels apart, different for every text."""
    seeds = np.frombuffer(key_array(texts).tobytes(), dtype=np.uint32).reshape(-1, 4)[:, 0]
    noise = np.stack([np.random.default_rng(seed).normal(size=WIDTH) for seed in seeds])
    noise[:, 0] = np.where(sentiment(texts) == 1, 3.0, -3.0)
    return (noise / np.linalg.norm(noise, axis=1, keepdims=True)).astype(np.float32)


def teacher_logits(texts: Sequence[str], count: int = 2) -> NDArray[np.float32]:
    """Logits of a teacher that is always right, for ``count`` labels."""
    logits = np.full((len(texts), count), -9, dtype=np.float32)
    logits[:, 1] = np.where(sentiment(texts) == 1, 2.0, -2.0)
    logits[:, 0] = -logits[:, 1]
    return logits


def contracts(
    *, weights: str = "a", projection: str = "p", labels: Sequence[str] = LABELS
) -> tuple[Contract, Contract, Contract]:
    """Return the contracts of a teacher, its projected vectors and its logits."""
    base = example_contract(12, weights=weights * 64)
    projected = [{"type": "Projection", "of": base.id, "weights": projection * 64}]
    classifier = [{"type": "Classifier", "labels": list(labels), "weights": "c" * 64}]
    of_one = {"weights": base.weights}
    return (
        base,
        example_contract(WIDTH, output="projection", modules=json.dumps(projected), **of_one),
        example_contract(
            len(labels), output="logits", normalize=False, modules=json.dumps(classifier), **of_one
        ),
    )


def make_cache(folder: Path, texts: Sequence[str] = TEXTS, name: str = "films", **of: Any) -> Cache:
    """A cache with a labelled corpus, and all that a knowledge base is made of, under the name ``tiny``."""
    cache = Cache.create(folder)
    labels = [of.get("labels", LABELS)[number] for number in sentiment(texts)]
    store_corpus(cache.corpora_folder, name, [RowBatch(list(texts), None, labels)], ReadReport())
    base, projected, logits = contracts(**of)
    cache.register_teacher("tiny", base, {})
    for suffix, contract, values in (
        ("projected", projected, teacher_vectors(texts)),
        ("logits", logits, teacher_logits(texts, logits.dimension)),
    ):
        cache.register_teacher(f"tiny.{suffix}", contract, {})
        counts = np.ones(len(texts), dtype=np.int32)
        cache.store(contract, "float32").put(
            VectorBatch(key_array(texts), values, counts, counts == 0, {"device": "none"})
        )
    return cache


def head(labels: Sequence[str] = LABELS, width: int = WIDTH) -> ClassifierHead:
    """A classifier that reads the first number of a vector."""
    weight = np.zeros((len(labels), width), dtype=np.float32)
    weight[:2, 0] = -1.0, 1.0
    return ClassifierHead(tuple(labels), weight, np.zeros(len(labels), dtype=np.float32))


def make_run(
    folder: Path,
    cache: Cache | None,
    contract: Contract | None,
    held: Sequence[str] = HELD,
    loss: str = "reaugkd",
) -> Path:
    """The folder of a run whose student has a classifier but no encoder; its teacher has ``contract``."""
    (folder / BEST).mkdir(parents=True)
    head().write(folder / BEST)
    teachers = []
    if contract is not None:
        known = {"contract_id": contract.id, "contract": contract.to_json()}
        teachers = [TeacherRecord(name="tiny.projected", spec="nowhere", **known)]
    RunRecord(
        kind="run" if teachers else "finetune",
        identity="0",
        seeds=[0],
        setting="0",
        teachers=teachers,
        cache=str(cache.folder) if cache else None,
        corpus=CorpusRecord(name="films", rows=len(TEXTS), digest=""),
        rows=len(TEXTS) - len(held),
        student="layers:1",
        parameters=1,
        loss=loss,
    ).write(folder)
    (folder / CONFIG).write_text(f"loss:\n  name: {loss}\n  tau: 0.2\n", encoding="utf-8")
    (folder / HELD_OUT).write_text("".join(f"{json.dumps(text)}\n" for text in held), encoding="utf-8")
    return folder
