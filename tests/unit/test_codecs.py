"""Codecs: what goes in comes out within the error they promise, and what does not fit is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from embedcache.codecs import CODEC_NAMES, DEFAULT_CODEC, Stored, check_codec_name, get_codec, measure
from embedcache.errors import InputError

SHAPES = npst.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=9)
FIXED = [name for name in CODEC_NAMES if name != "pq"]
LARGEST = float(np.finfo(np.float32).max)


def matrices(limit: float) -> st.SearchStrategy[NDArray[np.float32]]:
    return npst.arrays(np.float32, SHAPES, elements=st.floats(-limit, limit, width=32))


def unit_vectors(rows: int, dimension: int) -> NDArray[np.float32]:
    vectors = np.random.default_rng(0).normal(size=(rows, dimension)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def round_trip(name: str, vectors: NDArray[np.float32]) -> NDArray[np.floating]:
    codec = get_codec(name)
    return codec.decode(codec.encode(vectors))


@given(matrices(LARGEST))
def test_float32_keeps_every_bit(vectors: NDArray[np.float32]) -> None:
    assert round_trip("float32", vectors).tobytes() == vectors.tobytes()


@given(matrices(65504.0))
def test_float16_errs_by_half_a_unit_in_the_last_place(vectors: NDArray[np.float32]) -> None:
    decoded = round_trip("float16", vectors)
    # Below the smallest normal number the spacing is fixed at 2**-24.
    bound = np.maximum(np.abs(vectors) * 2.0**-11, 2.0**-25)
    assert (np.abs(decoded.astype(np.float64) - vectors) <= bound).all()


@given(matrices(LARGEST))
def test_int8_errs_by_half_a_step_of_the_rows_largest_component(vectors: NDArray[np.float32]) -> None:
    decoded = round_trip("int8", vectors)
    assert np.isfinite(decoded).all()
    largest = np.abs(vectors).max(axis=1, keepdims=True).astype(np.float64)
    # Half a step, the rounding of scale and product, and subnormal numbers, which are 2**-149 apart.
    bound = largest / 127 * 0.5 + largest * 2.0**-22 + 127 * 2.0**-149
    assert (np.abs(decoded.astype(np.float64) - vectors) <= bound).all()


@given(matrices(LARGEST), st.floats(0.5, 2.0))
def test_int8_keeps_signs_and_stays_within_127(vectors: NDArray[np.float32], factor: float) -> None:
    stored = get_codec("int8").encode((vectors * np.float32(factor / 2)).astype(np.float32))
    assert stored.vector.min() >= -127
    assert (stored.vector * np.sign(vectors) >= 0).all()
    assert stored.scale is not None
    assert (stored.scale >= 0).all()


def test_int8_steps_are_a_127th_of_each_rows_largest() -> None:
    stored = get_codec("int8").encode(np.array([[1.27, -0.634, 0.0], [-254.0, 3.0, 2.9]], np.float32))
    assert stored.vector.tolist() == [[127, -63, 0], [-127, 2, 1]]
    assert stored.scale is not None
    np.testing.assert_allclose(stored.scale, [0.01, 2.0], rtol=1e-6)


@pytest.mark.parametrize("value", [LARGEST, -LARGEST, 1e-45, 1.3e-43, 1e-38])
def test_int8_takes_huge_and_tiny_numbers(value: float) -> None:
    vectors = np.array([[value, value / 2, 0.0]], np.float32)
    decoded = round_trip("int8", vectors)
    assert np.isfinite(decoded).all()
    np.testing.assert_allclose(decoded, vectors, rtol=0.01, atol=127 * 2.0**-149)


@pytest.mark.parametrize("name", FIXED)
def test_rows_of_zeros_come_back_as_zeros(name: str) -> None:
    vectors = np.array([[0.0, -0.0], [1.0, 2.0], [0.0, 0.0]], np.float32)
    decoded = round_trip(name, vectors)
    assert (decoded[[0, 2]] == 0).all()
    assert (decoded[1] != 0).all()


def test_int8_scale_of_zeros_is_plain_zero() -> None:
    scale = get_codec("int8").encode(np.zeros((2, 3), np.float32)).scale
    assert scale is not None
    assert scale.tobytes() == bytes(8)


@pytest.mark.parametrize(("name", "least"), [("float32", 1.0), ("float16", 0.999999), ("int8", 0.9999)])
def test_directions_of_unit_vectors_are_kept(name: str, least: float) -> None:
    vectors = unit_vectors(500, 384)
    decoded = round_trip(name, vectors).astype(np.float64)
    cosines = (
        (decoded * vectors).sum(axis=1) / np.linalg.norm(decoded, axis=1) / np.linalg.norm(vectors, axis=1)
    )
    assert cosines.mean() >= least - 1e-9
    assert np.array_equal(decoded, vectors) == (name == "float32")


def test_coarser_codecs_lose_more() -> None:
    vectors = unit_vectors(300, 384)
    losses = [1 - measure(get_codec(name), vectors).mean_cosine for name in FIXED]
    assert losses[0] == 0
    assert losses[0] < losses[1] < losses[2] < 1e-4


def test_the_largest_float16_fits_and_the_next_does_not() -> None:
    codec = get_codec("float16")
    largest = np.array([[65504.0, -65504.0, np.nextafter(np.float32(65520), np.float32(0))]], np.float32)
    assert codec.decode(codec.encode(largest)).tolist() == [[65504.0, -65504.0, 65504.0]]
    with pytest.raises(
        InputError, match=r"65520 does not fit the codec float16.* build with --codec float32"
    ):
        codec.encode(np.array([[1.0, -65520.0]], np.float32))


@pytest.mark.parametrize("name", FIXED)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_by_row(name: str, value: float) -> None:
    vectors = np.ones((4, 3), np.float32)
    vectors[2, 1] = value
    with pytest.raises(InputError, match=r"row 2 of 4 vectors holds (nan|inf)"):
        get_codec(name).encode(vectors)


@pytest.mark.parametrize("name", FIXED)
@given(vectors=matrices(2.0**10), data=st.data())
def test_a_row_is_stored_the_same_whatever_comes_with_it(
    name: str, vectors: NDArray[np.float32], data: st.DataObject
) -> None:
    codec = get_codec(name)
    rows = np.array(data.draw(st.lists(st.integers(0, len(vectors) - 1), max_size=12)), np.int64)
    taken, alone = codec.encode(vectors).take(rows), codec.encode(vectors[rows])
    assert len(taken) == len(rows)
    assert taken.vector.tobytes() == alone.vector.tobytes()
    assert (taken.scale is None) == (alone.scale is None) == (not codec.has_scale)
    if taken.scale is not None and alone.scale is not None:
        assert taken.scale.tobytes() == alone.scale.tobytes()
    assert np.array_equal(codec.decode(taken), codec.decode(codec.encode(vectors))[rows])


def test_a_slice_shares_memory_and_chosen_rows_do_not() -> None:
    stored = Stored(np.arange(12).reshape(4, 3), np.arange(4, dtype=np.float32))
    part, chosen = stored.take(slice(1, 3)), stored.take(np.array([2, 0, 2]))
    assert np.shares_memory(part.vector, stored.vector)
    assert not np.shares_memory(chosen.vector, stored.vector)
    assert part.scale is not None
    assert chosen.scale is not None
    assert (part.scale.tolist(), chosen.scale.tolist()) == ([1.0, 2.0], [2.0, 0.0, 2.0])
    assert stored.take(np.array([False, True, False, True])).vector.tolist() == [[3, 4, 5], [9, 10, 11]]


@pytest.mark.parametrize(
    ("name", "dtype", "decoded", "size"),
    [
        ("float32", np.float32, np.float32, 40),
        ("float16", np.float16, np.float16, 20),
        ("int8", np.int8, np.float32, 14),
    ],
)
def test_stored_and_decoded_are_of_the_announced_kind(
    name: str, dtype: type[np.generic], decoded: type[np.generic], size: int
) -> None:
    codec = get_codec(name)
    stored = codec.encode(np.ones((3, 10), np.float32))
    assert stored.vector.dtype == codec.dtype == dtype
    assert stored.vector.shape == (3, codec.width(10)) == (3, 10)
    assert codec.decode(stored).dtype == codec.decoded == decoded
    assert codec.bytes_per_row(10) == size
    assert stored.vector[0].nbytes + (0 if stored.scale is None else stored.scale[:1].nbytes) == size
    assert codec.codebook is None


@pytest.mark.parametrize("name", FIXED)
def test_no_rows_are_no_rows(name: str) -> None:
    codec = get_codec(name)
    stored = codec.encode(np.empty((0, 5), np.float32))
    assert len(stored) == 0
    assert codec.decode(stored).shape == (0, 5)


@pytest.mark.parametrize("name", FIXED)
def test_one_component_is_enough(name: str) -> None:
    assert round_trip(name, np.array([[2.0], [-0.5]], np.float32)).tolist() == [[2.0], [-0.5]]


def test_int8_without_its_scale_cannot_be_read() -> None:
    with pytest.raises(TypeError, match="need their scale"):
        get_codec("int8").decode(Stored(np.ones((1, 2), np.int8)))


@pytest.mark.parametrize("name", FIXED)
def test_encoding_leaves_what_it_is_given_alone(name: str) -> None:
    vectors = unit_vectors(5, 4)
    before = vectors.tobytes()
    stored = get_codec(name).encode(vectors)
    assert vectors.tobytes() == before
    assert not np.shares_memory(stored.vector, vectors)


def test_codecs_are_found_by_name() -> None:
    assert get_codec(DEFAULT_CODEC).name == DEFAULT_CODEC == "float16"
    assert [get_codec(name).name for name in FIXED] == FIXED == ["float32", "float16", "int8"]
    assert [check_codec_name(name) for name in CODEC_NAMES] == list(CODEC_NAMES)
    for find in (get_codec, check_codec_name):
        with pytest.raises(
            InputError, match=r"unknown codec 'int4': choose one of float32, float16, int8, pq"
        ):
            find("int4")
    with pytest.raises(InputError, match="codec pq needs a codebook"):
        get_codec("pq")
