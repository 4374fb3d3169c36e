"""Codecs: vectors come back within the promised error; vectors that do not fit are refused."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from embedcache.codecs import CODEC_NAMES, Codec, Vectors, get_codec, measure, pq
from embedcache.errors import CorruptCacheError, InputError

LARGEST = float(np.finfo(np.float32).max)


def clustered(rows: int, dimension: int = 16) -> Vectors:
    """Return unit vectors around forty directions, so that a codebook has something to learn."""
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(40, dimension))[generator.integers(40, size=rows)]
    vectors += 0.3 * generator.normal(size=(rows, dimension))
    return np.float32(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


VECTORS = clustered(1500)
PQ = pq.train(VECTORS)


def codec_of(name: str) -> Codec:
    return PQ if name == "pq" else get_codec(name)


def half_a_step(vectors: Vectors) -> Vectors:
    largest = np.abs(vectors).max(axis=1, keepdims=True).astype(np.float64)
    # The rounding of scale and product, and subnormal numbers, which are 2**-149 apart, come on top.
    return largest / 127 * 0.5 + largest * 2.0**-22 + 127 * 2.0**-149


@pytest.mark.parametrize(
    ("name", "limit", "bound"),
    [
        ("float32", LARGEST, lambda vectors: 0),
        # Below the smallest normal number the spacing of float16 is fixed at 2**-24.
        ("float16", 65504.0, lambda vectors: np.maximum(np.abs(vectors) * 2.0**-11, 2.0**-25)),
        ("int8", LARGEST, half_a_step),
    ],
)
@given(data=st.data())
def test_a_component_errs_by_half_a_step_at_most(
    data: st.DataObject, name: str, limit: float, bound: Callable[[Vectors], Vectors]
) -> None:
    shapes = npst.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=9)
    vectors = data.draw(npst.arrays(np.float32, shapes, elements=st.floats(-limit, limit, width=32)))
    decoded = codec_of(name).decode(codec_of(name).encode(vectors))
    assert (np.abs(decoded.astype(np.float64) - vectors) <= bound(vectors)).all()


@pytest.mark.parametrize("name", CODEC_NAMES)
@given(rows=st.lists(st.integers(0, 1499), max_size=20))
def test_a_row_is_stored_the_same_in_any_batch(name: str, rows: list[int]) -> None:
    codec, some = codec_of(name), np.array(rows, np.int64)
    whole, part = codec.encode(VECTORS), codec.encode(VECTORS[some])
    assert whole.take(some).vector.tobytes() == part.vector.tobytes()
    decoded = codec.decode(part)
    into = np.empty_like(decoded)
    codec.decode_into(whole, some, into)
    assert decoded.tobytes() == codec.decode(whole.take(some)).tobytes() == into.tobytes()
    sizes = part.vector.nbytes + (0 if part.scale is None else part.scale.nbytes)
    assert sizes == len(rows) * codec.bytes_per_row(16)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in CODEC_NAMES for value in (np.nan, np.inf)),
        ("float16", 65520),
        ("pq", 2e18),
    ],
)
def test_vectors_that_a_codec_cannot_store_are_refused_by_row(name: str, value: float) -> None:
    vectors = VECTORS[:4].copy()
    vectors[2, 1] = -value
    with pytest.raises(InputError, match="row 2 of 4"):
        codec_of(name).encode(vectors)


# pq


def test_the_codebook_depends_on_vectors_and_seed_and_not_on_threads() -> None:
    before = faiss.omp_get_max_threads()
    for count in (1, 4, before):
        faiss.omp_set_num_threads(count)
        assert pq.train(VECTORS).codebook == PQ.codebook
    assert pq.train(VECTORS, seed=1).codebook != PQ.codebook
    assert pq.train(VECTORS[:-1]).codebook != PQ.codebook


@pytest.mark.parametrize(("dimension", "width"), [(1, 1), (3, 1), (6, 2), (7, 7), (8, 2), (10, 5)])
def test_widths_that_four_does_not_divide(dimension: int, width: int) -> None:
    vectors = np.random.default_rng(0).normal(size=(300, dimension)).astype(np.float32)
    trained = pq.train(vectors)
    assert pq.stored_width(dimension) == trained.width(dimension) == width
    assert np.abs(trained.decode(trained.encode(vectors)) - vectors).mean() < 0.1
    with pytest.raises(InputError, match="width"):
        trained.encode(np.ones((1, 20), np.float32))


def test_a_codebook_comes_back_from_its_file_and_any_changed_byte_is_found(tmp_path: Path) -> None:
    path = pq.save(tmp_path / "codebooks", PQ)
    good = path.read_bytes()
    assert path.stem == hashlib.sha256(good).hexdigest()
    loaded = pq.load(path.parent, PQ.codebook)
    assert loaded.encode(VECTORS).vector.tobytes() == PQ.encode(VECTORS).vector.tobytes()
    for place in [*range(130), len(good) - 1]:
        path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        with pytest.raises(CorruptCacheError):
            pq.load(path.parent, PQ.codebook)
    for name in ("../secret", "A" * 64, "0" * 64):
        with pytest.raises(CorruptCacheError):
            pq.load(path.parent, name)


# Measured loss


@pytest.mark.parametrize("name", ["float16", "int8"])
def test_the_measured_loss_is_the_cosine_of_rows_that_have_one(name: str) -> None:
    vectors, codec = np.random.default_rng(0).normal(size=(1025, 24)).astype(np.float32), get_codec(name)
    after = codec.decode(codec.encode(vectors)).astype(np.float64)
    norms = np.linalg.norm(vectors.astype(np.float64), axis=1) * np.linalg.norm(after, axis=1)
    cosines = (vectors * after).sum(axis=1) / norms
    with_zeros = np.concatenate([np.zeros((7, 24), np.float32), vectors])
    error = measure(codec, with_zeros, codec.encode(with_zeros))
    # The loss is rounded to six digits.
    assert 1 - error["mean_cosine"] == pytest.approx(1 - cosines.mean(), rel=1e-5)
    assert 1 - error["worst_cosine"] == pytest.approx(1 - cosines.min(), rel=1e-5)
