"""Keys name texts by their bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedcache.keys import KEY_BYTES, KEY_DTYPE, key, key_array


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
