"""Texts, builds and short runs for the tests of training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import flat_build

import distill
from distill.data.dataset import DistillDataset, open_rows
from distill.losses.registry import get_loss
from distill.training.run import Run
from embedcache.cache import Cache
from embedcache.testing import sentences

TEXTS = sentences(160, seed=3, longest=20)
HELD_OUT = 30


def build(corpus: Path, teacher: Path, cache: Path, **options: Any) -> Cache:
    settings = {"codec": "float32", "compute_dtype": "float32", "device": "cpu", "shard_rows": 48, **options}
    return flat_build.build(corpus, teacher=str(teacher), cache=cache, **settings)


def build_ten_shards(folder: Path, teacher: Path) -> Path:
    """Build ``folder/cache`` of all texts, in ten shards in the order of the corpus; return it."""
    corpus = folder / "texts.txt"
    corpus.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    return build(corpus, teacher, folder / "cache", shard_rows=16).folder


def small_run(cache: Path, out: Path, **settings: Any) -> Run:
    """A run of a few steps, on the CPU in float32; a model so small is fastest on one thread.

    Settings of the loss may stand beside the others.
    """
    loss = settings.get("loss", "mse")
    if isinstance(loss, str):
        own = {name: settings.pop(name) for name in get_loss(loss).defaults if name in settings}
        settings["loss"] = {"name": loss, **own}
    defaults: dict[str, Any] = {
        "student": "layers:1",
        "epochs": 1,
        "batch_size": 32,
        "held_out": HELD_OUT,
        "mixed_precision": "no",
        "device": "cpu",
        "threads": 1,
    }
    return distill.run(cache=cache, out=out, **{**defaults, **settings})


def open_dataset(cache: Cache, **settings: Any) -> DistillDataset:
    """The rows of a cache, split as ``settings`` of either step say."""
    split = {name: settings.pop(name) for name in ("held_out", "queue", "seed") if name in settings}
    return open_rows(cache, **settings).split(**split)


def metrics(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
