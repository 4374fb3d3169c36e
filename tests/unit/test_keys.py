"""Keys name texts by their bytes; an index finds keys as a dictionary would."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedcache import keys as keys_module
from embedcache.keys import KEY_BYTES, KEY_DTYPE, KeyArray, KeyIndex, first_occurrences, key, key_array

# Few halves, so that keys often share their first eight bytes, their last eight, or all.
HALVES = st.sampled_from([b"\0" * 8, b"\0" * 7 + b"\1", b"\1" + b"\0" * 7, b"abcdefgh", b"\xff" * 8])
KEYS = st.lists(st.tuples(HALVES, HALVES).map(b"".join), max_size=40)


def array(keys: list[bytes]) -> KeyArray:
    return np.frombuffer(b"".join(keys), dtype=KEY_DTYPE)


def random_keys(count: int) -> KeyArray:
    return np.frombuffer(np.random.default_rng(0).bytes(KEY_BYTES * count), dtype=KEY_DTYPE)


def test_a_key_is_blake2b_of_the_utf8_bytes() -> None:
    assert key("").hex() == "cae66941d9efbd404e4d88758ea67670"
    assert key("A man eats.").hex() == "c4df7f486cfac6f0694c299a0c6b11c2"
    assert len(key("ü")) == KEY_BYTES


@pytest.mark.parametrize("other", ["a b ", " a b", "A b", "a  b", "a\nb", "a b\0", "a\u00a0b", "a\u0301 b"])
def test_nothing_is_normalised_away(other: str) -> None:
    assert key(other) != key("a b")


def test_half_a_surrogate_pair_has_no_key() -> None:
    with pytest.raises(UnicodeEncodeError):
        key("\ud800")


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=8))
def test_an_array_of_keys_holds_each_key_in_order(texts: list[str]) -> None:
    found = key_array(iter(texts))
    assert found.dtype == KEY_DTYPE
    assert found.shape == (len(texts),)
    assert [bytes(k) for k in found] == [key(text) for text in texts]


@given(stored=KEYS, asked=KEYS)
def test_the_index_agrees_with_a_dictionary(stored: list[bytes], asked: list[bytes]) -> None:
    first: dict[bytes, int] = {}
    for place, one in enumerate(stored):
        first.setdefault(one, place)
    index = KeyIndex(array(stored))
    assert index.locate(array(asked)).tolist() == [first.get(one, -1) for one in asked]


@given(keys=KEYS, edges=st.lists(st.integers(0, 40), max_size=4), partition=st.integers(1, 50))
def test_first_occurrences_agree_with_a_set(keys: list[bytes], edges: list[int], partition: int) -> None:
    seen: set[bytes] = set()
    expected = [not (one in seen or seen.add(one)) for one in keys]  # type: ignore[func-returns-value]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys_module, "PARTITION_KEYS", partition)
        found = first_occurrences(np.split(array(keys), sorted(edges)))
    assert found.dtype == np.bool_
    assert found.tolist() == expected


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
    assert peak[0] - before < rows + 100 * keys_module.PARTITION_KEYS
