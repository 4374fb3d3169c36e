"""Keys name texts by their bytes; the index finds them as a dictionary would."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedcache.key_index import KeyIndex
from embedcache.keys import KEY_BYTES, KEY_DTYPE, KeyArray, key, key_array

# Few halves, so that keys often share their first eight bytes, their last eight, or all.
HALVES = st.sampled_from([b"\0" * 8, b"\0" * 7 + b"\1", b"\1" + b"\0" * 7, b"abcdefgh", b"\xff" * 8])
KEYS = st.lists(st.tuples(HALVES, HALVES).map(b"".join), max_size=40)


def array(keys: list[bytes]) -> KeyArray:
    return np.frombuffer(b"".join(keys), dtype=KEY_DTYPE)


def test_a_key_is_blake2b_of_the_utf8_bytes() -> None:
    assert key("").hex() == "cae66941d9efbd404e4d88758ea67670"
    assert key("A man eats.").hex() == "c4df7f486cfac6f0694c299a0c6b11c2"
    assert len(key("ü")) == KEY_BYTES


@pytest.mark.parametrize("other", ["a b ", " a b", "A b", "a  b", "a\nb", "a b\0", "a\u00a0b"])
def test_nothing_is_normalised_away(other: str) -> None:
    assert key(other) != key("a b")


def test_composed_and_decomposed_characters_are_two_texts() -> None:
    assert key("\u00e9") != key("e\u0301")


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
    assert len(index) == len(first)
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
    assert len(index) == 0
    assert index.locate(key_array(["a"])).tolist() == [-1]
    assert index.locate(array([])).shape == (0,)
    assert index.first_places().tolist() == []
