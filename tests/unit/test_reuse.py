"""Reuse across max_length: what was not cut is carried over as it is, what was cut is encoded again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedcache
from embedcache.build_report import BuildProgress
from embedcache.cache import Cache
from embedcache.contract import Contract
from embedcache.errors import StorageError
from embedcache.keys import key_array
from embedcache.reuse import CARRIED_FROM, carry_over, codec_for, donors, keeps_its_worth, locate
from embedcache.store import ShardStore, VectorBatch
from embedcache.teacher.encode import Encoder
from embedcache.teacher.load import load_teacher
from embedcache.testing import example_batch, example_contract, sentences

SHORT = [f"the cat {text}" for text in ("sleeps", "sees", "runs", "sings", "falls")]
LONG = [f"{text} and the old dog follows the small red bird near the river" for text in SHORT]
TEXTS = [text for pair in zip(SHORT, LONG, strict=True) for text in pair]


@pytest.fixture
def build(tmp_path: Path, tiny_teacher: Path) -> Callable[..., Cache]:
    """Return a function that builds TEXTS at a max_length into ``tmp_path/cache``."""
    source = tmp_path / "corpus.txt"
    source.write_text("".join(f"{text}\n" for text in TEXTS))

    def run(length: int, **settings: Any) -> Cache:
        settings = {"cache": tmp_path / "cache", "compute_dtype": "float32", "device": "cpu", **settings}
        return embedcache.build(
            source, teacher=tiny_teacher, teacher_name=f"tiny-{length}", max_length=length, **settings
        )

    return run


def encoded_texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that fills with every text an encoder is given."""
    seen: list[str] = []
    run = Encoder.encode_windows

    def watched(encoder: Encoder, windows: Any, on_wait: Any = None) -> Any:
        listed = [list(window) for window in windows]
        seen.extend(text for window in listed for text in window)
        yield from run(encoder, listed, on_wait)

    monkeypatch.setattr(Encoder, "encode_windows", watched)
    return seen


@pytest.mark.parametrize("codec", ["float32", "float16", "int8"])
def test_raising_the_length_encodes_only_what_was_cut(
    tmp_path: Path, build: Callable[..., Cache], monkeypatch: pytest.MonkeyPatch, codec: str
) -> None:
    build(8, codec=codec)
    seen = encoded_texts(monkeypatch)
    cache = build(32, codec=codec)
    assert seen == LONG
    assert cache.last_build is not None
    assert (cache.last_build.carried, cache.last_build.encoded, cache.last_build.reused) == (5, 5, 0)
    fresh = build(32, codec=codec, cache=tmp_path / "fresh")
    tolerance = {"float32": 1e-5, "float16": 1e-3, "int8": 1e-2}[codec]
    np.testing.assert_allclose(cache.lookup(TEXTS, "tiny-32"), fresh.lookup(TEXTS), atol=tolerance)
    # A row that was cut is another vector: had it been carried over, the comparison above would tell.
    gap = np.abs(cache.lookup(LONG, "tiny-8") - cache.lookup(LONG, "tiny-32")).max(axis=1)
    assert (gap > 0.05).all()
    np.testing.assert_array_equal(cache.lookup(SHORT, "tiny-8"), cache.lookup(SHORT, "tiny-32"))


def test_lowering_the_length_carries_over_what_still_fits(
    tmp_path: Path, build: Callable[..., Cache], monkeypatch: pytest.MonkeyPatch
) -> None:
    build(32, codec="float32")
    seen = encoded_texts(monkeypatch)
    cache = build(8, codec="float32")
    assert seen == LONG
    fresh = build(8, codec="float32", cache=tmp_path / "fresh")
    np.testing.assert_allclose(cache.lookup(TEXTS, "tiny-8"), fresh.lookup(TEXTS), atol=1e-5)
    tokens, truncated = cache.store(cache.teacher("tiny-8").contract).seen(
        cache.store(cache.teacher("tiny-8").contract).locate(key_array(TEXTS))
    )
    assert truncated.tolist() == [False, True] * 5
    assert tokens.max() == 8


def test_a_build_opens_each_donor_once(build: Callable[..., Cache], monkeypatch: pytest.MonkeyPatch) -> None:
    build(8)
    opened: list[int] = []
    open_store = Cache.store

    def watched(cache: Cache, contract: Contract, *arguments: Any) -> ShardStore:
        opened.append(contract.max_length)
        return open_store(cache, contract, *arguments)

    monkeypatch.setattr(Cache, "store", watched)
    cache = build(32)
    assert cache.last_build is not None
    assert cache.last_build.carried == 5
    assert opened.count(8) == 1


def test_a_text_as_long_as_the_new_length_fits(build: Callable[..., Cache], tiny_teacher: Path) -> None:
    lengths = Encoder(load_teacher(tiny_teacher, device="cpu")).encode(SHORT).tokens
    assert set(lengths.tolist()) == {5}
    build(32)
    at_five, at_four = build(5).last_build, build(4).last_build
    assert at_five is not None
    assert at_four is not None
    assert (at_five.carried, at_four.carried) == (5, 0)


def test_carried_rows_say_where_they_come_from(build: Callable[..., Cache]) -> None:
    first = build(8, codec="int8")
    cache = build(32, codec="int8")
    donor, *_ = first.store(first.teacher("tiny-8").contract).shards
    store = cache.store(cache.teacher("tiny-32").contract)
    (carried,) = [one for one in store.shards if CARRIED_FROM in one.header.provenance]
    assert carried.header.provenance == {**donor.header.provenance, CARRIED_FROM: 8}
    # The error of the codec is that of the first time it was applied; a second time there would be none.
    assert carried.header.error == donor.header.error
    assert carried.header.error["worst_cosine"] < 1
    assert store.codec_name == "int8"


class Shelf:
    """Stores of contracts that differ in ``max_length``, filled by hand."""

    def __init__(self, folder: Path) -> None:
        self.cache = Cache.create(folder)

    def contract(self, length: int, **changes: object) -> Contract:
        return example_contract(max_length=length, **changes)

    def fill(
        self,
        length: int,
        texts: list[str],
        *,
        codec: str = "float32",
        tokens: int = 5,
        cut: bool = False,
        provenance: dict[str, object] | None = None,
        seed: int = 0,
        **changes: object,
    ) -> ShardStore:
        contract = self.contract(length, **changes)
        self.cache.register_teacher(f"t{contract.id[:8]}", contract, {})
        batch = example_batch(texts, seed=seed)
        rows = len(texts)
        batch = VectorBatch(
            batch.keys, batch.vectors, np.full(rows, tokens, np.int32), np.full(rows, cut), provenance or {}
        )
        store = self.cache.store(contract, codec)
        store.put(batch)
        return store

    def target(self, length: int, codec: str = "float32") -> ShardStore:
        return self.cache.store(self.contract(length), codec)


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path / "shelf")


def test_donors_differ_in_nothing_but_the_length(shelf: Shelf) -> None:
    shelf.fill(8, ["a"])
    shelf.fill(0, ["a"])
    shelf.fill(16, ["a"])
    shelf.fill(32, ["a"])
    shelf.fill(8, ["a"], pooling="cls")
    shelf.fill(8, ["a"], weights="9" * 64)
    assert [donor.max_length for donor in donors(shelf.cache, shelf.contract(16))] == [0, 32, 8]
    assert donors(shelf.cache, shelf.contract(16, prompt="query: ")) == []


@pytest.mark.parametrize(
    ("row", "length", "carried"),
    [
        ({"tokens": 5}, 16, 2),
        ({"tokens": 5}, 0, 2),
        ({"tokens": 17}, 16, 0),
        ({"tokens": 16}, 16, 2),
        ({"tokens": 5, "cut": True}, 16, 0),
        ({"tokens": 8, "cut": True}, 0, 0),
        ({"tokens": 0}, 16, 0),
        ({"tokens": 0}, 0, 0),
    ],
)
def test_only_whole_texts_of_known_length_are_carried(
    shelf: Shelf, row: dict[str, Any], length: int, carried: int
) -> None:
    shelf.fill(64, ["a", "b"], **row)
    target = shelf.target(length)
    assert carry_over(shelf.cache, target, key_array(["a", "b", "c"]), 10).rows == carried
    assert len(target) == carried
    assert target.locate(key_array(["c"])).tolist() == [-1]


@pytest.mark.parametrize(
    ("found", "wanted", "worth"),
    [
        ("float32", "float32", True),
        ("float32", "float16", True),
        ("float32", "int8", True),
        ("float16", "float16", True),
        ("int8", "int8", True),
        ("float16", "float32", False),
        ("int8", "float32", False),
        ("int8", "float16", False),
        ("float16", "int8", False),
        ("pq", "pq", False),
        ("pq", "float32", False),
        ("float32", "pq", False),
    ],
)
def test_no_codec_is_carried_into_one_that_promises_more(found: str, wanted: str, worth: bool) -> None:
    assert keeps_its_worth(found, wanted) is worth


def test_what_a_coarser_codec_holds_is_left_and_counted(shelf: Shelf) -> None:
    shelf.fill(8, ["a", "b"], codec="float16")
    target = shelf.target(16, "float32")
    carried = carry_over(shelf.cache, target, key_array(["a", "b", "c"]), 10)
    assert (carried.rows, carried.coarser_rows, len(target)) == (0, 2, 0)


def test_another_donor_may_have_what_the_first_has_too_coarsely(shelf: Shelf) -> None:
    shelf.fill(64, ["a", "b"], codec="float16")
    fine = shelf.fill(8, ["b"], codec="float32", seed=7)
    target = shelf.target(16, "float32")
    carried = carry_over(shelf.cache, target, key_array(["a", "b"]), 10)
    assert (carried.rows, carried.coarser_rows) == (1, 1)
    b = key_array(["b"])
    np.testing.assert_array_equal(target.vectors(target.locate(b)), fine.vectors(fine.locate(b)))


@pytest.mark.parametrize("codec", ["float32", "float16", "int8"])
def test_carried_rows_are_stored_bit_for_bit(shelf: Shelf, codec: str) -> None:
    texts = sentences(40)
    donor = shelf.fill(8, texts, codec=codec)
    target = shelf.target(16, codec)
    carry_over(shelf.cache, target, key_array(texts), 64)
    (before,), (after,) = donor.shards, target.shards
    np.testing.assert_array_equal(before.stored.vector, after.stored.vector)
    if codec == "int8":
        np.testing.assert_array_equal(before.stored.scale, after.stored.scale)


def shard_layout(store: ShardStore) -> list[tuple[int, str]]:
    return sorted((len(shard), shard.name) for shard in store.shards)


def test_shards_are_cut_in_the_order_of_the_keys_by_provenance(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embedcache.reuse._CHUNK_ROWS", 7)
    texts = sentences(30)
    shelf.fill(8, texts[:10], provenance={"compute_dtype": "float32"})
    shelf.fill(8, texts[10:20], provenance={"compute_dtype": "bfloat16"}, seed=1)
    shelf.fill(8, texts[20:], provenance={"compute_dtype": "float32"}, seed=2)
    order = [texts[i] for i in np.random.default_rng(0).permutation(30)]
    target = shelf.target(16)
    assert carry_over(shelf.cache, target, key_array(order), 8).rows == 30
    shards = {
        dtype: [one for one in target.shards if one.header.provenance["compute_dtype"] == dtype]
        for dtype in ("float32", "bfloat16")
    }
    assert sorted(len(one) for one in shards["float32"]) == [4, 8, 8]
    assert sorted(len(one) for one in shards["bfloat16"]) == [2, 8]
    for dtype, mine in (("bfloat16", texts[10:20]), ("float32", texts[:10] + texts[20:])):
        expected = key_array([text for text in order if text in mine])
        pieces = {piece.tobytes() for piece in np.split(expected, range(8, len(expected), 8))}
        assert {one.keys.tobytes() for one in shards[dtype]} == pieces


@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_a_carry_that_was_stopped_ends_with_the_same_shards(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    monkeypatch.setattr("embedcache.reuse._CHUNK_ROWS", 11)
    texts = sentences(40)
    shelf.fill(8, texts[::2], provenance={"device": "cpu"})
    shelf.fill(8, texts[1::2], provenance={"device": "cuda"}, seed=1)
    undisturbed = Shelf(shelf.cache.folder.with_name("other"))
    undisturbed.fill(8, texts[::2], provenance={"device": "cpu"})
    undisturbed.fill(8, texts[1::2], provenance={"device": "cuda"}, seed=1)
    carry_over(undisturbed.cache, undisturbed.target(16), key_array(texts), 6)

    put, calls = ShardStore.put_stored, []

    def failing(store: ShardStore, *arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) > after:
            raise StorageError("the disk is full")
        put(store, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(ShardStore, "put_stored", failing)
        with pytest.raises(StorageError):
            carry_over(shelf.cache, shelf.target(16), key_array(texts), 6)
    target = shelf.target(16)
    assert len(target) == 6 * after
    keys = key_array(texts)
    left = keys[target.locate(keys) < 0]
    assert carry_over(shelf.cache, target, left, 6).rows == 40 - 6 * after
    assert shard_layout(shelf.target(16)) == shard_layout(undisturbed.target(16))


def test_a_second_hand_row_names_its_last_donor(shelf: Shelf) -> None:
    shelf.fill(8, ["a"], codec="int8", provenance={"device": "cpu"})
    middle = shelf.target(16, "int8")
    shelf.cache.register_teacher("middle", shelf.contract(16), {})
    carry_over(shelf.cache, middle, key_array(["a"]), 10)
    last = shelf.target(32, "int8")
    carry_over(shelf.cache, last, key_array(["a"]), 10)
    assert last.shards[0].header.provenance == {"device": "cpu", CARRIED_FROM: 16}
    assert last.shards[0].header.error == middle.shards[0].header.error


def test_without_donors_nothing_happens(shelf: Shelf) -> None:
    shelf.fill(8, ["a"], pooling="cls")
    target = shelf.target(16)
    assert carry_over(shelf.cache, target, key_array(["a"]), 10).rows == 0
    assert len(target) == 0
    assert locate([], key_array(["a"]), 16, "float32").donors.tolist() == [-1]


def test_contracts_of_donors_are_equal_but_for_the_length(shelf: Shelf) -> None:
    shelf.fill(8, ["a"])
    (donor,) = donors(shelf.cache, shelf.contract(16))
    assert replace(donor.teacher.contract, max_length=16) == shelf.contract(16)


@pytest.mark.parametrize(
    ("lent", "expected"), [("float32", "float32"), ("int8", "int8"), ("pq", "float16"), (None, "float16")]
)
def test_where_no_codec_is_asked_for_it_is_one_that_rows_can_be_carried_over_in(
    tmp_path: Path, lent: str | None, expected: str
) -> None:
    cache, other = Cache.create(tmp_path), example_contract(max_length=8)
    if lent is not None:
        cache.register_teacher("other", other, {})
        cache.store(other, lent).put(example_batch([f"text {number}" for number in range(300)]))
    store = cache.store(example_contract(max_length=64))
    assert codec_for(store, donors(cache, store.contract)) == expected
    store.put(example_batch(["there"]))
    assert codec_for(store, donors(cache, store.contract)) == "float16"


def test_a_build_tells_how_far_carrying_over_is(build: Callable[..., Cache]) -> None:
    build(8)
    told: list[tuple[int, int]] = []
    phases = []

    def on_progress(progress: BuildProgress) -> None:
        phases.append(progress.phase)
        if progress.phase == "carry over":
            told.append((progress.rows, progress.total))

    build(32, on_progress=on_progress)
    assert told == [(10, 10)]
    # Whether the source is read again depends on how fresh it is.
    assert [phase for phase in dict.fromkeys(phases) if phase != "read"] == ["carry over", "encode"]
