"""The index finds keys as a dictionary would, and repeated keys are told whatever their number."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedcache import key_index
from embedcache.key_index import KeyIndex, first_occurrences
from embedcache.keys import KEY_BYTES, KEY_DTYPE, KeyArray, key_array

# Few halves, so that keys often share their first eight bytes, their last eight, or all.
HALVES = st.sampled_from([b"\0" * 8, b"\0" * 7 + b"\1", b"\1" + b"\0" * 7, b"abcdefgh", b"\xff" * 8])
KEYS = st.lists(st.tuples(HALVES, HALVES).map(b"".join), max_size=40)


def array(keys: list[bytes]) -> KeyArray:
    return np.frombuffer(b"".join(keys), dtype=KEY_DTYPE)


def random_keys(count: int, *, repeated: int = 0, seed: int = 0) -> KeyArray:
    generator = np.random.default_rng(seed)
    keys = np.frombuffer(generator.bytes(KEY_BYTES * count), dtype=KEY_DTYPE).copy()
    keys[generator.integers(0, count, repeated)] = keys[generator.integers(0, count, repeated)]
    return keys


@given(stored=KEYS, asked=KEYS)
def test_the_index_agrees_with_a_dictionary(stored: list[bytes], asked: list[bytes]) -> None:
    first: dict[bytes, int] = {}
    for place, one in enumerate(stored):
        first.setdefault(one, place)
    index = KeyIndex(array(stored))
    assert index.distinct == len(first)
    assert index.locate(array(asked)).tolist() == [first.get(one, -1) for one in asked]
    assert index.first_places().tolist() == sorted(first.values())


def test_many_keys_that_share_their_first_half_are_told_apart() -> None:
    keys = array([b"samehalf" + number.to_bytes(8, "little") for number in range(300)])
    shuffled = np.random.default_rng(0).permutation(300)
    index = KeyIndex(keys[shuffled])
    assert (shuffled[index.locate(keys)] == np.arange(300)).all()
    missing = array([b"samehalf" + number.to_bytes(8, "big") for number in range(1, 300)])
    assert (index.locate(missing) == -1).all()


def test_of_a_repeated_key_the_first_place_counts() -> None:
    one, two = b"x" * 16, b"y" * 16
    index = KeyIndex(array([two, one, two, one, one]))
    assert index.locate(array([one, two])).tolist() == [1, 0]
    assert index.first_places().tolist() == [0, 1]


def test_an_empty_index_finds_nothing() -> None:
    index = KeyIndex(array([]))
    assert index.distinct == 0
    assert index.locate(key_array(["a"])).tolist() == [-1]
    assert index.locate(array([])).shape == (0,)
    assert index.first_places().tolist() == []


@given(keys=KEYS, edges=st.lists(st.integers(0, 40), max_size=4), partition=st.integers(1, 50))
def test_first_occurrences_agree_with_a_set(keys: list[bytes], edges: list[int], partition: int) -> None:
    seen: set[bytes] = set()
    expected = [not (one in seen or seen.add(one)) for one in keys]  # type: ignore[func-returns-value]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_index, "PARTITION_KEYS", partition)
        found = first_occurrences(np.split(array(keys), sorted(edges)))
    assert found.dtype == np.bool_
    assert found.tolist() == expected


@pytest.mark.parametrize("partition", [1 << 18, 3000, 100, 1])
@pytest.mark.parametrize("part_rows", [20_000, 777])
def test_first_occurrences_agree_with_the_index(
    monkeypatch: pytest.MonkeyPatch, partition: int, part_rows: int
) -> None:
    monkeypatch.setattr(key_index, "PARTITION_KEYS", partition)
    keys = random_keys(20_000, repeated=4000)
    found = first_occurrences([keys[start : start + part_rows] for start in range(0, len(keys), part_rows)])
    assert np.flatnonzero(found).tolist() == KeyIndex(keys).first_places().tolist()
    assert 3000 < (~found).sum() < 4000


def test_no_keys_have_no_first_ones() -> None:
    assert first_occurrences([]).tolist() == []
    assert first_occurrences([array([]), array([])]).tolist() == []


def test_keys_that_only_share_a_half_are_all_first() -> None:
    halves = [bytes([number]) * 8 for number in range(20)]
    keys = array([one + other for one in halves for other in halves])
    assert first_occurrences([keys]).all()
    assert first_occurrences([keys, keys[::-1]]).tolist() == [True] * 400 + [False] * 400


def anonymous_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("RssAnon")).split()[1]) * 1024


def test_first_occurrences_need_a_byte_a_row_and_a_partition(tmp_path: Path) -> None:
    rows = 1_500_000
    random_keys(rows).tofile(tmp_path / "keys")
    keys = np.asarray(np.memmap(tmp_path / "keys", dtype=KEY_DTYPE, mode="r"))
    peak, done = [0], threading.Event()

    def watch() -> None:
        while not done.is_set():
            peak[0] = max(peak[0], anonymous_bytes())
            time.sleep(0.001)

    before = anonymous_bytes()
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        assert first_occurrences([keys]).all()
    finally:
        done.set()
        watcher.join()
    # What a sort of everything would take is 16 bytes a row for the keys alone, and as much for their order.
    assert peak[0] - before < rows + 100 * key_index.PARTITION_KEYS
