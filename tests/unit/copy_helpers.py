"""Small caches to merge and to split, and what can be said of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from small_caches import add_corpus

from embedcache.cache import Cache
from embedcache.codecs import Vectors
from embedcache.contract import Contract
from embedcache.store.base import VectorBatch
from embedcache.testing import example_batch, example_contract, sentences

CONTRACT = example_contract(8)
TEXTS = list(dict.fromkeys(sentences(800)))[:320]
"""Texts that all differ."""

EXACT: dict[str, Vectors] = dict(zip(TEXTS, example_batch(TEXTS, seed=3).vectors, strict=True))
"""What the teacher gives for each."""


def vectors_of(
    texts: Sequence[str], *, off: float = 0.0, seed: int = 0, provenance: dict[str, Any] | None = None
) -> VectorBatch:
    """Return the teacher's vectors of ``texts``, each moved by about ``off``."""
    exact = np.stack([EXACT[text] for text in texts])
    moved = exact + off * example_batch(texts, seed=seed + 100).vectors
    moved /= np.linalg.norm(moved, axis=1, keepdims=True)
    batch = replace(example_batch(texts), vectors=moved.astype(np.float32))
    return batch if provenance is None else replace(batch, provenance=provenance)


def other_vectors(texts: Sequence[str], seed: int = 7) -> VectorBatch:
    """Return vectors that are not the teacher's, computed on a device of their own."""
    batch = example_batch(texts, seed=seed)
    return replace(batch, provenance={"compute_dtype": "float32", "device": "broken"})


def cache_of(
    folder: Path,
    batches: Sequence[VectorBatch],
    *,
    corpus: tuple[str, list[str]] | None = None,
    teacher: str = "tiny",
    contract: Contract = CONTRACT,
    codec: str = "float32",
    kind: str = "arrow",
) -> Cache:
    """Make a cache of a teacher with a shard for each batch, and of a corpus."""
    cache = Cache.create(folder)
    cache.register_teacher(teacher, contract, {"spec": teacher})
    store = cache.store(contract, codec, kind)
    for batch in batches:
        store.put(batch)
    store.finish()
    if corpus is not None:
        add_corpus(cache, *corpus)
    return cache


def files(folder: Path) -> dict[str, bytes]:
    """Return the files of a cache that are not derived: path -> bytes."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "derived" not in path.relative_to(folder).parts
    }


def shard_names(cache: Cache, contract: Contract = CONTRACT) -> list[str]:
    """Return the names of the shards of a contract."""
    return cache.container(contract).names()
