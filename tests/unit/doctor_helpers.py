"""Caches of given vectors, sound or broken."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embedcache.cache import Cache
from embedcache.codecs import Stored, get_codec
from embedcache.contract import Contract
from embedcache.corpus.readers import ReadReport, RowBatch
from embedcache.corpus.store import store_corpus
from embedcache.doctor import Diagnosis, Finding
from embedcache.keys import key_array
from embedcache.store import VectorBatch
from embedcache.testing import example_contract, sentences

WIDTH = 16
TEXTS = sentences(600, seed=1)


def unit(rows: int, width: int = WIDTH, *, seed: int = 0) -> NDArray[np.float32]:
    """Random directions, evenly spread."""
    vectors = np.random.default_rng(seed).normal(size=(rows, width))
    return np.float32(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def batch_of(
    texts: Sequence[str],
    vectors: NDArray[np.float32],
    *,
    tokens: Iterable[int] = (),
    truncated: Iterable[bool] = (),
) -> VectorBatch:
    """A batch of texts; they are 5 tokens long and read to the end unless said otherwise."""
    return VectorBatch(
        key_array(texts),
        vectors,
        np.array(list(tokens) or [5] * len(texts), dtype=np.int32),
        np.array(list(truncated) or [False] * len(texts)),
    )


def add_corpus(
    cache: Cache, texts: Sequence[str], name: str = "corpus", labels: Sequence[object] | None = None
) -> None:
    batch = RowBatch(list(texts), None, None if labels is None else list(labels))
    store_corpus(cache.corpora_folder, name, [batch], ReadReport())


def put(cache: Cache, contract: Contract, batch: VectorBatch, *, kind: str | None = None) -> None:
    """Store float32 vectors as they are: nothing that is broken about them is refused."""
    store = cache.store(contract, "float32", kind)
    store.put_stored(
        get_codec("float32"), Stored(batch.vectors), batch, {"mean_cosine": 1.0, "worst_cosine": 1.0}
    )
    store.finish()


def make_cache(
    folder: Path,
    vectors: NDArray[np.float32],
    *,
    texts: Sequence[str] = TEXTS,
    kind: str | None = None,
    tokens: Iterable[int] = (),
    truncated: Iterable[bool] = (),
    **contract: object,
) -> Cache:
    """A cache of one corpus and one teacher, with a vector for each of the first texts."""
    cache = Cache.create(folder)
    made = example_contract(vectors.shape[1], **contract)
    cache.register_teacher("teacher", made, {})
    add_corpus(cache, texts)
    batch = batch_of(texts[: len(vectors)], vectors, tokens=tokens, truncated=truncated)
    put(cache, made, batch, kind=kind)
    return cache


def finding(diagnosis: Diagnosis, name: str) -> Finding:
    (found,) = [one for one in diagnosis.findings if one.name == name]
    return found


def levels(diagnosis: Diagnosis) -> dict[str, str]:
    """The findings that are not ok."""
    return {one.name: one.level for one in diagnosis.findings if one.level != "ok"}
