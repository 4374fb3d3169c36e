"""Codecs: what goes in comes out within the error they promise, and what does not fit is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from embedcache.codecs import CODECS, DEFAULT_CODEC, Codec, get_codec
from embedcache.errors import InputError

SHAPES = npst.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=9)


def matrices(limit: float) -> st.SearchStrategy[NDArray[np.float32]]:
    return npst.arrays(np.float32, SHAPES, elements=st.floats(-limit, limit, width=32))


@given(matrices(2.0**100))
def test_float32_keeps_every_bit(vectors: NDArray[np.float32]) -> None:
    codec = CODECS["float32"]
    assert codec.decode(codec.view(codec.encode(vectors))).tobytes() == vectors.tobytes()


@given(matrices(65504.0))
def test_float16_errs_by_half_a_unit_in_the_last_place(vectors: NDArray[np.float32]) -> None:
    codec = CODECS["float16"]
    decoded = codec.decode(codec.view(codec.encode(vectors)))
    assert decoded.dtype == np.float32
    # Below the smallest normal number the spacing is fixed at 2**-24.
    bound = np.maximum(np.abs(vectors) * 2.0**-11, 2.0**-25)
    assert (np.abs(decoded.astype(np.float64) - vectors) <= bound).all()


def test_float16_of_unit_vectors_keeps_the_direction() -> None:
    vectors = np.random.default_rng(0).normal(size=(200, 384)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    codec = CODECS["float16"]
    decoded = codec.decode(codec.view(codec.encode(vectors))).astype(np.float64)
    cosines = (decoded * vectors).sum(axis=1) / np.linalg.norm(decoded, axis=1)
    assert cosines.min() > 0.999999
    assert not np.array_equal(decoded, vectors)


def test_the_largest_float16_fits_and_the_next_does_not() -> None:
    codec = CODECS["float16"]
    assert codec.view(codec.encode(np.array([[65504.0, -65504.0]], np.float32))).tolist() == [
        [65504.0, -65504.0]
    ]
    with pytest.raises(InputError, match=r"65520 does not fit the codec float16; build with --codec float32"):
        codec.encode(np.array([[1.0, -65520.0]], np.float32))


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(codec: Codec, value: float) -> None:
    with pytest.raises(InputError, match="does not fit"):
        codec.encode(np.array([[1.0, value]], np.float32))


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_a_view_shares_memory_and_follows_slices(codec: Codec) -> None:
    vectors = np.arange(60, dtype=np.float32).reshape(12, 5)
    column = codec.encode(vectors)
    whole = np.frombuffer(column.values.buffers()[1], dtype=codec.dtype)
    for part, expected in (
        (column, vectors),
        (column.slice(3, 4), vectors[3:7]),
        (column.slice(3, 4).slice(1, 2), vectors[4:6]),
        (column.slice(12), vectors[12:]),
    ):
        view = codec.view(part)
        assert view.dtype == codec.dtype
        assert view.shape == expected.shape
        assert np.array_equal(view, expected)
        assert len(part) == 0 or np.shares_memory(view, whole)


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_a_column_has_the_type_that_was_announced(codec: Codec) -> None:
    assert codec.encode(np.ones((2, 7), np.float32)).type == codec.arrow_type(7)
    assert codec.arrow_type(7) != codec.arrow_type(8)


def test_codecs_are_found_by_name() -> None:
    assert get_codec(DEFAULT_CODEC).name == DEFAULT_CODEC == "float16"
    with pytest.raises(InputError, match=r"unknown codec 'int4': choose one of float32, float16"):
        get_codec("int4")
