"""Reuse across max_length: what was not truncated is taken over as it is, the rest is encoded again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flat_build import build as flat_build

from embedcache.cache import Cache
from embedcache.errors import StorageError
from embedcache.keys import key_array
from embedcache.reuse import REUSED_FROM, Reused, default_codec, is_fine_enough, related_stores, reuse_rows
from embedcache.store import ShardStore, VectorBatch
from embedcache.testing import example_batch, example_contract

SHORT = [f"the cat {word}" for word in ("sleeps", "sees", "runs", "sings", "falls")]
LONG = [f"{text} and the old dog follows the small red bird near the river" for text in SHORT]
TEXTS = [text for pair in zip(SHORT, LONG, strict=True) for text in pair]


@pytest.fixture
def build(tmp_path: Path, tiny_teacher: Path) -> Callable[..., Cache]:
    """Return a function that builds TEXTS at a max_length into ``tmp_path/cache``."""
    source = tmp_path / "corpus.txt"
    source.write_text("".join(f"{text}\n" for text in TEXTS))

    def run(length: int, **settings: Any) -> Cache:
        settings = {"cache": tmp_path / "cache", "compute_dtype": "float32", "device": "cpu", **settings}
        return flat_build(
            source, teacher=tiny_teacher, teacher_name=f"tiny-{length}", max_length=length, **settings
        )

    return run


@pytest.mark.parametrize("codec", ["float32", "float16", "int8"])
@pytest.mark.parametrize(("first", "then"), [(8, 32), (32, 8)])
def test_only_texts_of_which_the_ends_differ_are_encoded(
    build: Callable[..., Cache], tmp_path: Path, codec: str, first: int, then: int
) -> None:
    build(first, codec=codec)
    cache = build(then)
    assert cache.result is not None
    assert (cache.result.encoded, cache.result.reused) == (5, 5)
    fresh = build(then, codec=codec, cache=tmp_path / "fresh")
    name = f"tiny-{then}"
    np.testing.assert_allclose(cache.lookup(TEXTS, name), fresh.lookup(TEXTS, name), atol=1e-3)
    assert np.array_equal(cache.lookup(SHORT, name), cache.lookup(SHORT, f"tiny-{first}"))
    provenances = [s.header.provenance for s in cache.store(cache.teacher(name).contract).shards]
    assert sorted(one.get(REUSED_FROM, 0) for one in provenances) == [0, first]


class Shelf:
    """A cache with stores of contracts that differ in ``max_length``, of vectors that are made up."""

    def __init__(self, folder: Path) -> None:
        self.cache = Cache.create(folder)

    def fill(
        self,
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
        contract = example_contract(max_length=length, **changes)
        self.cache.register_teacher(f"t{contract.id[:8]}", contract, {})
        one, rows = example_batch(texts, seed=seed), len(texts)
        seen = np.full(rows, tokens, np.int32), np.full(rows, truncated)
        store = self.cache.store(contract, codec)
        store.put(VectorBatch(one.keys, one.vectors, *seen, provenance or {}))
        return store

    def target(self, length: int, codec: str = "float32") -> ShardStore:
        return self.cache.store(example_contract(max_length=length), codec)

    def reuse(self, target: ShardStore, texts: list[str], shard_rows: int = 10) -> Reused:
        return reuse_rows(related_stores(self.cache, target.contract), target, key_array(texts), shard_rows)


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path / "shelf")


def test_related_contracts_differ_in_nothing_but_the_length(shelf: Shelf) -> None:
    for length in (8, 0, 16, 32):
        shelf.fill(length, ["a"])
    shelf.fill(8, ["a"], pooling="cls")
    related = related_stores(shelf.cache, example_contract(max_length=16))
    assert [store.contract.max_length for store in related] == [0, 32, 8]
    assert related_stores(shelf.cache, example_contract(prompt="query: ")) == []


@pytest.mark.parametrize(
    ("row", "length", "reused"),
    [
        ({"tokens": 5}, 16, 2),
        ({"tokens": 16}, 16, 2),
        ({"tokens": 17}, 16, 0),
        ({"tokens": 5}, 0, 2),
        ({"tokens": 5, "truncated": True}, 16, 0),
        ({"tokens": 8, "truncated": True}, 0, 0),
        ({"tokens": 0}, 16, 0),
    ],
)
def test_only_whole_texts_of_known_length_are_reused(
    shelf: Shelf, row: dict[str, Any], length: int, reused: int
) -> None:
    shelf.fill(64, ["a", "b"], **row)
    target = shelf.target(length)
    assert shelf.reuse(target, ["a", "b", "c"]).rows == reused
    assert len(target) == reused


@pytest.mark.parametrize("wanted", ["float32", "float16", "int8", "pq"])
@pytest.mark.parametrize("found", ["float32", "float16", "int8", "pq"])
def test_a_row_is_reused_where_its_codec_loses_no_more(found: str, wanted: str) -> None:
    assert is_fine_enough(found, wanted) is (wanted != "pq" and found in ("float32", wanted))


def test_rows_of_a_coarser_codec_are_counted_and_left(shelf: Shelf) -> None:
    shelf.fill(64, ["a", "b"], codec="float16")
    target = shelf.target(16)
    assert shelf.reuse(target, ["a", "b", "c"]) == Reused(0, 2)
    fine = shelf.fill(8, ["b"], seed=7)
    assert shelf.reuse(target, ["a", "b"]) == Reused(1, 1)
    b = key_array(["b"])
    assert np.array_equal(target.vectors(target.locate(b)), fine.vectors(fine.locate(b)))


@pytest.mark.parametrize("codec", ["float32", "float16", "int8"])
def test_rows_are_reused_bit_for_bit_with_the_error_they_had(shelf: Shelf, codec: str) -> None:
    source = shelf.fill(64, ["a", "b", "c"], codec=codec)
    target = shelf.target(16, codec)
    shelf.reuse(target, ["c", "a"])
    keys = key_array(["c", "a"])
    assert np.array_equal(target.vectors(target.locate(keys)), source.vectors(source.locate(keys)))
    assert target.shards[0].header.error == source.shards[0].header.error


def test_shards_hold_one_provenance_and_a_stopped_call_ends_with_the_same(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"text {number}" for number in range(30)]
    shelf.fill(64, texts[:20:2], provenance={"device": "cpu"})
    shelf.fill(64, texts[1:20:2], provenance={"device": "cuda"})
    shelf.fill(32, texts[20:], provenance={"device": "cpu"})
    target = shelf.target(16)
    put, calls = ShardStore.put_stored, []

    def stops(store: ShardStore, *arguments: Any) -> str:
        calls.append(arguments)
        if len(calls) == 3:
            raise StorageError("no room")
        return put(store, *arguments)

    monkeypatch.setattr(ShardStore, "put_stored", stops)
    with pytest.raises(StorageError):
        shelf.reuse(target, texts, 4)
    monkeypatch.undo()
    missing = [text for text in texts if target.locate(key_array([text]))[0] < 0]
    shelf.reuse(target, missing, 4)
    assert sorted(len(shard) for shard in target.shards) == [2, 2, 2, 4, 4, 4, 4, 4, 4]
    kinds = {tuple(sorted(shard.header.provenance.items())) for shard in target.shards}
    assert kinds == {
        ((REUSED_FROM, 64), ("device", "cpu")),
        ((REUSED_FROM, 64), ("device", "cuda")),
        ((REUSED_FROM, 32), ("device", "cpu")),
    }


def test_the_default_codec_is_one_that_rows_can_be_reused_in(shelf: Shelf) -> None:
    shelf.fill(64, ["a"], codec="int8")
    target = shelf.cache.store(example_contract(max_length=16))
    assert default_codec(target, related_stores(shelf.cache, target.contract)) == "int8"
    assert default_codec(target, []) == "float16"
