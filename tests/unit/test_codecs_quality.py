"""The measured error of a codec is what a plain computation gives, and the same every time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from embedcache.codecs import Codec, CodecError, Stored, Vectors, get_codec, measure
from embedcache.errors import InputError


class Turned(Codec):
    """Gives back other vectors than it was given."""

    name = "turned"
    dtype = np.dtype(np.float32)
    decoded = np.dtype(np.float32)

    def __init__(self, turn: NDArray[np.float32]) -> None:
        self.turn = turn

    def encode(self, vectors: Vectors) -> Stored:
        return Stored(vectors @ self.turn)

    def decode(self, stored: Stored) -> NDArray[np.floating]:
        return np.asarray(stored.vector)


QUARTER = Turned(np.array([[0, 1], [-1, 0]], np.float32))
AWAY = Turned(np.zeros((2, 2), np.float32))


def normal(rows: int, dimension: int) -> Vectors:
    return np.random.default_rng(0).normal(size=(rows, dimension)).astype(np.float32)


@pytest.mark.parametrize("name", ["float16", "int8"])
@pytest.mark.parametrize("rows", [1, 1023, 1024, 1025, 2500])
def test_it_is_the_cosine(name: str, rows: int) -> None:
    vectors, codec = normal(rows, 24), get_codec(name)
    before, after = vectors.astype(np.float64), codec.decode(codec.encode(vectors)).astype(np.float64)
    norms = np.linalg.norm(before, axis=1) * np.linalg.norm(after, axis=1)
    cosines = (before * after).sum(axis=1) / norms
    error = measure(codec, vectors)
    # What is lost is rounded to six digits.
    assert 1 - error.mean_cosine == pytest.approx(1 - cosines.mean(), rel=1e-5)
    assert 1 - error.worst_cosine == pytest.approx(1 - cosines.min(), rel=1e-5)
    assert error.mean_cosine < 1
    assert (error.mean_cosine > error.worst_cosine) == (rows > 1)


def test_what_is_kept_is_one_and_what_is_turned_is_not() -> None:
    vectors = normal(50, 2)
    assert measure(get_codec("float32"), vectors) == CodecError(1.0, 1.0)
    assert measure(QUARTER, vectors).mean_cosine == pytest.approx(0.0, abs=1e-6)
    assert measure(Turned(-np.eye(2, dtype=np.float32)), vectors) == CodecError(-1.0, -1.0)


def test_a_vector_that_vanishes_has_lost_its_direction() -> None:
    assert measure(AWAY, normal(5, 2)) == CodecError(0.0, 0.0)
    tiny = np.full((3, 4), 1e-9, np.float32)
    assert measure(get_codec("float16"), tiny) == CodecError(0.0, 0.0)


def test_rows_of_zeros_count_neither_way() -> None:
    vectors = normal(40, 8)
    with_zeros = np.concatenate([np.zeros((7, 8), np.float32), vectors])
    assert measure(get_codec("int8"), with_zeros) == measure(get_codec("int8"), vectors)
    assert measure(get_codec("int8"), vectors[:0]) == CodecError(1.0, 1.0)
    assert measure(AWAY, np.zeros((3, 2), np.float32)) == CodecError(1.0, 1.0)


@given(st.integers(-100, 100))
def test_length_does_not_matter(power: int) -> None:
    vectors = normal(20, 8)
    scaled = np.ldexp(vectors, power).astype(np.float32)
    assert measure(get_codec("int8"), scaled) == measure(get_codec("int8"), vectors)


def test_figures_are_short_enough_to_be_the_same_everywhere() -> None:
    error = measure(get_codec("int8"), normal(300, 24))
    for cosine in (error.mean_cosine, error.worst_cosine):
        assert float(f"{1 - cosine:.6g}") == pytest.approx(1 - cosine, rel=1e-9)
    assert error.to_json() == {"mean_cosine": error.mean_cosine, "worst_cosine": error.worst_cosine}
    shuffled = normal(300, 24)[np.random.default_rng(1).permutation(300)]
    assert measure(get_codec("int8"), shuffled) == error


def test_what_does_not_fit_is_an_error_not_a_figure() -> None:
    with pytest.raises(InputError, match="does not fit the codec float16"):
        measure(get_codec("float16"), np.full((2, 2), 1e6, np.float32))
