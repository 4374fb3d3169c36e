"""Texts that are encoded a few at a time: no shard file a call, and no model loaded again."""

from __future__ import annotations

import pickle
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from flat_build import build

import embedcache
import embedcache.probes
from embedcache.cache import Cache
from embedcache.errors import MissingVectorsError, NonFiniteVectorError, UnreadableError
from embedcache.gc import collect_garbage, find_removal
from embedcache.store import waiting
from embedcache.store.pieces import Pieces
from embedcache.testing import FakeEncoder, fake_teacher, sentences

CONTRACT = fake_teacher(8).contract
FEW, MORE = sentences(20, seed=1), sentences(50, seed=2)


@pytest.fixture(autouse=True)
def no_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count the rows of a build alone; ``test_stored_probes`` holds what probes promise."""
    monkeypatch.setattr(embedcache.probes, "COUNT", 0)


@pytest.fixture
def encoder() -> FakeEncoder:
    return FakeEncoder(fake_teacher(8))


@pytest.fixture
def cache(tmp_path: Path, encoder: FakeEncoder) -> Cache:
    return build(FEW, teacher=encoder, cache=tmp_path / "cache", name="few")


def shards(cache: Cache) -> list[Path]:
    return sorted(cache.folder.glob("teachers/*/shards/*.arrow"))


def pieces(cache: Cache) -> list[Path]:
    return sorted(cache.folder.glob("derived/waiting/*/*.arrow"))


def pieces_folder(cache: Cache) -> Path:
    return cache.derived_folder / "waiting" / cache.teacher().contract.id


def test_every_look_up_reads_what_waits(cache: Cache, encoder: FakeEncoder) -> None:
    before, found = shards(cache), cache.encode([MORE[0], FEW[0], MORE[0]], encoder)
    assert encoder.rows_encoded == 21
    cache.encode(MORE[1:], encoder)
    assert shards(cache) == before
    np.testing.assert_array_equal(Cache(cache.folder).lookup([MORE[0], FEW[0], MORE[0]]), found)
    np.testing.assert_array_equal(cache.lookup(iter([*MORE, *FEW])), cache.encode([*MORE, *FEW]))
    assert encoder.rows_encoded == 70
    assert cache.corpus_names() == ["few"]
    with pytest.raises(MissingVectorsError, match="1 of 2"):
        cache.lookup([MORE[0], "never"])


@pytest.mark.parametrize("codec", ["float16", "int8", "pq"])
def test_enough_of_them_become_a_shard_and_stay_what_they_were(
    tmp_path: Path, encoder: FakeEncoder, codec: str
) -> None:
    cache = build(sentences(300, seed=4), teacher=encoder, cache=tmp_path / codec, codec=codec)
    texts = sentences(waiting.SHARD_ROWS, seed=5)
    calls = [texts[start : start + 24] for start in range(0, len(texts), 24)]
    waited = np.concatenate([cache.encode(some, encoder) for some in calls[:-1]])
    assert len(shards(cache)) == 1
    assert 0 < len(pieces(cache)) <= 33
    cache.encode(calls[-1], encoder)
    assert (len(shards(cache)), pieces(cache)) == (2, [])
    np.testing.assert_array_equal(Cache(cache.folder).lookup(texts)[: len(waited)], waited)
    assert encoder.rows_encoded == 300 + len(texts)


def test_a_large_call_stores_its_shard_at_once(cache: Cache, encoder: FakeEncoder) -> None:
    cache.encode(sentences(waiting.SHARD_ROWS, seed=6), encoder)
    assert (len(shards(cache)), pieces(cache)) == (2, [])


def test_two_processes_see_what_the_other_adds(cache: Cache, encoder: FakeEncoder) -> None:
    other = Cache(cache.folder)
    for number, text in enumerate(MORE):
        (cache if number % 2 else other).encode([text], encoder)
    np.testing.assert_array_equal(cache.lookup(MORE), other.lookup(MORE))
    assert encoder.rows_encoded == 70


def test_no_row_is_missed_while_another_process_moves_it(
    cache: Cache, encoder: FakeEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Just before each listing, the other process does the next step: merges pieces, then stores them."""
    other = Cache(cache.folder)
    other.encode(MORE[:1], encoder)
    other.encode(MORE[1:2], encoder)
    contract = cache.teacher().contract
    theirs, store = other.waiting(contract), other.opened_store(contract)

    def merge() -> None:
        for batch, pieces in theirs._groups():
            theirs._replace(pieces, [theirs._pieces.add(batch)])

    steps = [lambda: None, merge, lambda: theirs.store(store)]
    opened, names = Pieces._open, Pieces.names

    def open_late(self: Pieces, *arguments: object) -> object:
        (steps.pop(0) if steps else lambda: None)()
        return opened(self, *arguments)

    def list_late(self: Pieces) -> list[str]:
        found = names(self)
        (steps.pop(0) if len(steps) == 1 else lambda: None)()
        return found

    monkeypatch.setattr(Pieces, "_open", open_late)
    monkeypatch.setattr(Pieces, "names", list_late)
    assert Cache(cache.folder).lookup(MORE[:2]).shape == (2, 8)
    assert not steps


def test_threads_may_share_a_cache(cache: Cache, encoder: FakeEncoder) -> None:
    texts = sentences(400, seed=8)
    expected = FakeEncoder(fake_teacher(8)).encode(texts).vectors

    def work(number: int) -> bool:
        order = np.random.default_rng(number).permutation(len(texts))
        right = True
        for rows in np.array_split(order, 40):
            some = [texts[row] for row in rows]
            found = cache.encode(some, encoder) if number % 2 else cache.find(some, CONTRACT)
            if isinstance(found, tuple):
                rows, found = rows[found[0]], found[1]
            right &= bool(np.abs(found - expected[rows]).max(initial=0) < 2e-3)
        return right

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


def test_a_piece_that_cannot_be_read_is_named_and_tried_again(
    cache: Cache, encoder: FakeEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.encode(MORE, encoder)
    other, (piece,) = Cache(cache.folder), pieces(cache)

    def fail(path: Path) -> None:
        raise UnreadableError(f"cannot read {path}: Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr("embedcache.store.containers.map_regular", fail)
        for call in (other.lookup, lambda texts: other.encode(texts, encoder)):
            with pytest.raises(UnreadableError, match=piece.name):
                call(MORE)
    assert other.lookup(MORE).shape == (50, 8)
    assert encoder.rows_encoded == 70


def test_a_build_takes_what_waits(cache: Cache, encoder: FakeEncoder) -> None:
    cache.encode(MORE[:30], encoder)
    done = build(MORE, teacher=encoder, cache=cache.folder, name="more").result
    assert done is not None
    assert (done.cached, done.encoded) == (30, 20)
    assert not pieces(cache)
    cache.encode(["of no corpus"], encoder)
    build(MORE, teacher=encoder, cache=cache.folder, name="more")
    assert len(pieces(cache)) == 1


def test_what_waits_can_be_deleted_and_damaged(cache: Cache, encoder: FakeEncoder) -> None:
    expected = cache.encode(MORE, encoder)
    (piece,) = pieces(cache)
    piece.write_bytes(piece.read_bytes()[:-5])
    np.testing.assert_array_equal(Cache(cache.folder).encode(MORE, encoder), expected)
    shutil.rmtree(cache.derived_folder)
    np.testing.assert_array_equal(Cache(cache.folder).encode(MORE, encoder), expected)
    assert encoder.rows_encoded == 20 + 3 * 50
    collect_garbage(cache, hours=-1)
    assert pieces(cache)
    found = collect_garbage(cache, hours=-1, unused=True)
    assert str(pieces_folder(cache)) in [one.path for one in found]
    assert not pieces(cache)
    cache.encode(MORE, encoder)
    find_removal(cache, "teacher", "fake").delete()
    assert not pieces(cache)


def test_nan_is_refused_and_does_not_wait(
    cache: Cache, encoder: FakeEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder, "_vectors", lambda keys: np.full((len(keys), 8), np.nan, np.float32))
    with pytest.raises(NonFiniteVectorError, match="text 0 of 1"):
        cache.encode(["new"], encoder)
    assert not pieces(cache)


def test_the_model_is_loaded_once(
    tmp_path: Path, tiny_teacher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, loads = build(FEW, teacher=tiny_teacher, cache=tmp_path / "cache"), list[object]()
    load = embedcache.teacher.load.load_source
    for module in ("load", "lazy"):
        monkeypatch.setattr(
            f"embedcache.teacher.{module}.load_source", lambda *a: loads.append(a) or load(*a)
        )
    for text in MORE[:5]:
        assert cache.encode([text]).shape == cache.encode([text], cache.teacher().name).shape == (1, 16)
    assert len(loads) == 1
    for text in MORE[5:9]:
        cache.encode([text], str(tiny_teacher))
    assert len(loads) == 2
    again = pickle.loads(pickle.dumps(cache))  # noqa: S301
    np.testing.assert_array_equal(again.encode(MORE[:9]), cache.lookup(MORE[:9]))


@pytest.mark.parametrize("store", ["arrow", "lmdb"])
def test_a_used_cache_can_be_sent_to_another_process(
    tmp_path: Path, encoder: FakeEncoder, store: str
) -> None:
    cache = build(FEW, teacher=encoder, cache=tmp_path / "cache", store=store)
    cache.encode(MORE, encoder)
    again = pickle.loads(pickle.dumps(cache))  # noqa: S301
    np.testing.assert_array_equal(again.lookup([*MORE, *FEW]), cache.lookup([*MORE, *FEW]))


@pytest.mark.parametrize("calls", [300, pytest.param(2000, marks=pytest.mark.slow)])
def test_calls_neither_fill_the_disk_with_files_nor_slow_down(
    cache: Cache, encoder: FakeEncoder, calls: int
) -> None:
    seconds = []
    for text in sentences(calls, seed=7):
        began = time.perf_counter()
        cache.encode([text], encoder)
        seconds.append(time.perf_counter() - began)
    assert sum(path.is_file() for path in cache.folder.rglob("*")) <= 64
    # A busy machine would make a comparison of few calls a matter of luck.
    assert calls < 2000 or np.median(seconds[-100:]) <= 1.5 * np.median(seconds[:100])
