"""Labelled texts, a taught classifier, and a cache with its logits: for the tests of classifiers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from distill_helpers import build

import distill
from distill.training.run import Run
from embedcache.cache import Cache, CachedTeacher
from embedcache.projection import extend, write_derived
from embedcache.testing import sentences

TEXTS = sentences(240, seed=11, longest=10)
LABELS = ["animal" if {"cat", "dog", "bird"} & set(text.split()) else "none" for text in TEXTS]
SPLITS = ["dev" if number % 4 == 0 else "train" for number in range(len(TEXTS))]


def write_rows(path: Path, rows: Sequence[Sequence[object]], header: Sequence[str]) -> Path:
    lines = ["\t".join(map(str, row)) for row in [header, *rows]]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def labelled_file(folder: Path) -> Path:
    """A file of texts, each of which holds an animal or none."""
    rows = list(zip(SPLITS, LABELS, TEXTS, strict=True))
    return write_rows(folder / "animals.tsv", rows, ("split", "label", "text"))


def small_teach(start: str | Path, train: Path, out: Path, **settings: Any) -> Run:
    """A teaching of a few steps, on the CPU in float32; a model so small is fastest on one thread."""
    defaults: dict[str, Any] = {
        "epochs": 2,
        "batch_size": 16,
        "lr": 3e-3,
        "mixed_precision": "no",
        "device": "cpu",
        "threads": 1,
    }
    return distill.finetune(start, labels=train, out=out, **{**defaults, **settings})


def labelled_cache(file: Path, teacher: Path, folder: Path, **options: Any) -> Cache:
    """A cache of labelled texts with a classifier's vectors and logits."""
    columns = {"text_column": "text", "label_column": "label"}
    build(file, teacher, folder, **{**columns, **options})
    return build(file, teacher, folder, output="logits", **{**columns, **options})


def add_projection(cache: Cache, name: str, dimension: int) -> CachedTeacher:
    """Store a projection of a teacher's vectors beside them, as ``NAME.projected``."""
    base = cache.teacher(name)
    matrix = np.random.default_rng(7).normal(size=(dimension, base.contract.dimension)).astype(np.float32)
    added = write_derived(cache, base, f"{name}.projected", matrix, "drawn at random")
    extend(cache, added, cache.corpus())
    return added
