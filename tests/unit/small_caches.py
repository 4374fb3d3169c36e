"""A small cache of two corpora and a teacher for each codec, for tests of readers of a cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from embedcache.cache import Cache, CachedTeacher
from embedcache.codecs import Vectors
from embedcache.corpus.corpus import Corpus, View
from embedcache.corpus.readers import ReadReport, RowBatch
from embedcache.corpus.store import store_corpus
from embedcache.corpus.view_store import store_view
from embedcache.keys import key_array
from embedcache.store.base import VectorBatch
from embedcache.testing import example_contract, sentences
from embedcache.views.edits import edit_maker
from embedcache.views.recipe import parse_views

ROWS = 320
TEXTS = [*sentences(ROWS - 2), "Žluťoučký kůň 🐎", sentences(1)[0]]
"""The last text repeats the first."""
LABELS = [number % 3 for number in range(ROWS)]
KINDS = {"float32": "arrow", "float16": "lmdb", "int8": "arrow", "pq": "lmdb"}
"""The codec of a teacher, which is named like it, and the store its vectors are kept in."""


def add_corpus(
    cache: Cache, name: str, texts: list[str], *, ids: bool = False, labels: list[Any] | None = None
) -> Corpus:
    """Store a corpus whose ids, where it has them, are ``id-0``, ``id-1`` ..."""
    names = [f"id-{number}" for number in range(len(texts))] if ids else None
    return store_corpus(cache.corpora_folder, name, [RowBatch(texts, names, labels)], ReadReport())[0]


def batch(texts: list[str], *, dimension: int = 8, seed: int = 0) -> VectorBatch:
    """Return a unit vector for each text; a text has as many tokens as words, and 9 are too many."""
    vectors = np.random.default_rng(seed).normal(size=(len(texts), dimension)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    tokens = np.array([len(text.split()) for text in texts], dtype=np.int32)
    return VectorBatch(key_array(texts), vectors, tokens, tokens >= 9, {"compute_dtype": "float32"})


def add_teacher(
    cache: Cache,
    name: str,
    batches: list[VectorBatch],
    *,
    codec: str = "float32",
    kind: str = "arrow",
    dimension: int = 8,
) -> CachedTeacher:
    """Store each batch as a shard of a teacher whose prompt is its name."""
    teacher = cache.register_teacher(name, example_contract(dimension, prompt=name), {"spec": name})
    store = cache.store(teacher.contract, codec, kind)
    for one in batches:
        store.put(one)
    store.finish()
    return teacher


def add_view(corpus: Corpus, spec: str) -> View:
    """Add a view of one of the kinds that need nothing but the text."""
    (recipe,) = parse_views([spec])
    make = edit_maker(recipe)
    return store_view(corpus, recipe, lambda first_row, texts: make(texts))[0]


def make_cache(folder: Path) -> Cache:
    """Return a cache of the corpora ``news`` (ids, labels) and ``plain``, and a teacher for each codec.

    ``news`` has the views ``crop`` and ``other``, ``plain`` has ``crop``; no teacher has encoded them.
    """
    cache = Cache.create(folder)
    news = add_corpus(cache, "news", TEXTS, ids=True, labels=LABELS)
    plain = add_corpus(cache, "plain", TEXTS[:5])
    for corpus, spec in ((news, "crop"), (news, "other=delete-words:0.5"), (plain, "crop:0.3")):
        add_view(corpus, spec if "=" in spec else f"crop={spec}")
    for codec, kind in KINDS.items():
        # The last text repeats the first: a build stores it once. pq learns from the first batch.
        add_teacher(cache, codec, [batch(TEXTS[:300]), batch(TEXTS[300:-1], seed=1)], codec=codec, kind=kind)
    return cache


def vectors_of(cache: Cache, teacher: str, texts: list[str]) -> Vectors:
    """Return what the Python API gives for ``texts``."""
    return cache.lookup(texts, teacher)
