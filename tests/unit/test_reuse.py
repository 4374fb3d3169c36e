"""Reuse across max_length: vectors of texts that were not truncated are reused, others encoded again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flat_build import build as flat_build

from embedcache.cache import Cache
from embedcache.keys import key_array
from embedcache.reuse import REUSED_FROM, related_stores, reuse_rows
from embedcache.store import ShardStore, VectorBatch
from embedcache.testing import example_batch, example_contract

SHORT = [f"the cat {word}" for word in ("sleeps", "sees", "runs", "sings", "falls")]
LONG = [f"{text} and the old dog follows the small red bird near the river" for text in SHORT]
TEXTS = [text for pair in zip(SHORT, LONG, strict=True) for text in pair]


@pytest.fixture
def build(tmp_path: Path, tiny_teacher: Path) -> Callable[..., Cache]:
    """Return a function that builds TEXTS at a max_length into a cache."""

    def run(length: int, cache: str = "cache", **settings: Any) -> Cache:
        settings |= {"max_length": length, "compute_dtype": "float32", "device": "cpu", "name": "corpus"}
        name = f"tiny-{length}"
        return flat_build(TEXTS, teacher=tiny_teacher, teacher_name=name, cache=tmp_path / cache, **settings)

    return run


@pytest.mark.parametrize(
    ("codec", "first", "then"), [("float32", 8, 32), ("float16", 32, 8), ("int8", 8, 32)]
)
def test_only_texts_of_which_the_ends_differ_are_encoded(
    build: Callable[..., Cache], codec: str, first: int, then: int
) -> None:
    build(first, codec=codec)
    cache, name = build(then), f"tiny-{then}"
    assert cache.result is not None
    assert (cache.result.encoded, cache.result.reused) == (5, 5)
    fresh = build(then, "fresh", codec=codec)
    np.testing.assert_allclose(cache.lookup(TEXTS, name), fresh.lookup(TEXTS, name), atol=1e-3)
    assert np.array_equal(cache.lookup(SHORT, name), cache.lookup(SHORT, f"tiny-{first}"))
    provenances = [s.header.provenance for s in cache.store(cache.teacher(name).contract).shards]
    assert sorted(one.get(REUSED_FROM, 0) for one in provenances) == [0, first]


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache.create(tmp_path / "made-up")


def fill(
    cache: Cache,
    length: int,
    texts: list[str],
    *,
    codec: str = "float32",
    tokens: int = 5,
    truncated: bool = False,
    provenance: dict[str, object] | None = None,
    seed: int = 0,
    **changes: object,
) -> ShardStore:
    """Store made-up vectors under a contract of a ``max_length``."""
    contract = example_contract(max_length=length, **changes)
    cache.register_teacher(f"t{contract.id[:8]}", contract, {})
    one, rows = example_batch(texts, seed=seed), len(texts)
    seen = np.full(rows, tokens, np.int32), np.full(rows, truncated)
    store = cache.store(contract, codec)
    store.put(VectorBatch(one.keys, one.vectors, *seen, provenance or {}))
    return store


def reuse(cache: Cache, target: ShardStore, texts: list[str], shard_rows: int = 10) -> int:
    return reuse_rows(related_stores(cache, target.contract), target, key_array(texts), shard_rows)


def target_of(cache: Cache, length: int, codec: str = "float32") -> ShardStore:
    return cache.store(example_contract(max_length=length), codec)


@pytest.mark.parametrize(
    ("row", "length", "reused"),
    [
        ({"tokens": 16}, 16, 2),
        ({"tokens": 17}, 16, 0),
        ({"tokens": 5}, 0, 2),
        ({"tokens": 5, "truncated": True}, 16, 0),
        ({"tokens": 8, "truncated": True}, 0, 0),
        ({"tokens": 0}, 16, 0),
    ],
)
def test_only_whole_texts_of_known_length_are_reused(
    cache: Cache, row: dict[str, Any], length: int, reused: int
) -> None:
    fill(cache, 64, ["a", "b"], **row)
    target = target_of(cache, length)
    assert reuse(cache, target, ["a", "b", "c"]) == len(target) == reused


def test_reused_rows_keep_bits_error_and_provenance(cache: Cache) -> None:
    texts = [f"text {number}" for number in range(30)]
    sources = [
        fill(cache, 64, texts[:20:2], codec="int8", provenance={"device": "cpu"}),
        fill(cache, 64, texts[1:20:2], codec="int8", provenance={"device": "cuda"}),
        fill(cache, 32, texts[20:], codec="int8", provenance={"device": "cpu"}),
    ]
    target = target_of(cache, 16, "int8")
    reuse(cache, target, texts, 4)
    assert sorted(len(shard) for shard in target.shards) == [2, 2, 2, 4, 4, 4, 4, 4, 4]
    kinds = {tuple(sorted(shard.header.provenance.items())) for shard in target.shards}
    assert kinds == {
        ((REUSED_FROM, 64), ("device", "cpu")),
        ((REUSED_FROM, 64), ("device", "cuda")),
        ((REUSED_FROM, 32), ("device", "cpu")),
    }
    keys = key_array(texts[20:])
    assert np.array_equal(target.vectors(target.locate(keys)), sources[2].vectors(sources[2].locate(keys)))
    errors = [{str(shard.header.error) for shard in store.shards} for store in (*sources, target)]
    assert errors[3] == errors[0] | errors[1] | errors[2]
