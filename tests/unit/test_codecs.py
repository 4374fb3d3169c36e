"""Codecs: what goes in comes out within the promised error; what does not fit is refused."""

from __future__ import annotations

import hashlib
import io
from contextlib import suppress
from pathlib import Path

import faiss
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from embedcache.codecs import (
    CODEC_NAMES,
    Codec,
    Vectors,
    get_codec,
    measure,
    pq,
)
from embedcache.errors import CorruptCacheError, InputError

FIXED = [name for name in CODEC_NAMES if name != "pq"]
LARGEST = float(np.finfo(np.float32).max)
SHAPES = npst.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=9)


def matrices(limit: float) -> st.SearchStrategy[Vectors]:
    return npst.arrays(np.float32, SHAPES, elements=st.floats(-limit, limit, width=32))


def clustered(rows: int, dimension: int = 16, *, seed: int = 0) -> Vectors:
    """Return unit vectors around forty directions, so that a codebook has something to learn."""
    generator = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(40, dimension))
    vectors = centres[generator.integers(40, size=rows)] + 0.3 * generator.normal(size=(rows, dimension))
    return np.float32(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


VECTORS = clustered(1500)
PQ = pq.train(VECTORS)


def codec_of(name: str) -> Codec:
    return PQ if name == "pq" else get_codec(name)


def round_trip(name: str, vectors: Vectors) -> NDArray[np.floating]:
    return codec_of(name).decode(codec_of(name).encode(vectors))


@given(matrices(LARGEST))
def test_float32_keeps_every_bit(vectors: Vectors) -> None:
    assert round_trip("float32", vectors).tobytes() == vectors.tobytes()


@given(matrices(65504.0))
def test_float16_errs_by_half_a_unit_in_the_last_place(vectors: Vectors) -> None:
    # Below the smallest normal number the spacing is fixed at 2**-24.
    bound = np.maximum(np.abs(vectors) * 2.0**-11, 2.0**-25)
    assert (np.abs(round_trip("float16", vectors).astype(np.float64) - vectors) <= bound).all()


@given(matrices(LARGEST))
def test_int8_errs_by_half_a_step_of_the_largest_component(vectors: Vectors) -> None:
    decoded = round_trip("int8", vectors)
    largest = np.abs(vectors).max(axis=1, keepdims=True).astype(np.float64)
    # Half a step, the rounding of scale and product, and subnormal numbers, which are 2**-149 apart.
    bound = largest / 127 * 0.5 + largest * 2.0**-22 + 127 * 2.0**-149
    assert (np.abs(decoded.astype(np.float64) - vectors) <= bound).all()


def test_pq_stores_the_nearest_centroid_of_every_sub_vector() -> None:
    stored = PQ.encode(VECTORS[:200])
    parts = VECTORS[:200].astype(np.float64).reshape(200, 4, 1, 4)
    distances = ((parts - PQ.centroids.astype(np.float64)) ** 2).sum(axis=3)
    chosen = np.take_along_axis(distances, stored.vector[:, :, None].astype(np.int64), axis=2)[:, :, 0]
    assert (chosen <= distances.min(axis=2) + 1e-6).all()
    assert np.array_equal(PQ.decode(stored), PQ.centroids[np.arange(4), stored.vector].reshape(200, 16))


@pytest.mark.parametrize("name", CODEC_NAMES)
@given(rows=st.lists(st.integers(0, 1499), max_size=20))
def test_a_row_is_stored_the_same_whatever_is_encoded_with_it(name: str, rows: list[int]) -> None:
    codec, chosen = codec_of(name), np.array(rows, np.int64)
    whole, part = codec.encode(VECTORS).take(chosen), codec.encode(VECTORS[chosen])
    assert whole.vector.tobytes() == part.vector.tobytes()
    assert (part.scale is not None) == codec.has_scale
    decoded = codec.decode(part)
    into = np.empty_like(decoded)
    codec.decode_into(codec.encode(VECTORS), chosen, into)
    assert decoded.tobytes() == codec.decode(whole).tobytes() == into.tobytes()


@pytest.mark.parametrize(
    ("name", "dtype", "decoded", "size"),
    [
        ("float32", np.float32, np.float32, 64),
        ("float16", np.float16, np.float16, 32),
        ("int8", np.int8, np.float32, 20),
        ("pq", np.uint8, np.float32, 4),
    ],
)
def test_dtypes_and_sizes_are_as_announced(name: str, dtype: type, decoded: type, size: int) -> None:
    codec, vectors = codec_of(name), VECTORS[:3]
    before = vectors.tobytes()
    stored = codec.encode(vectors)
    assert stored.vector.dtype == codec.dtype == dtype
    assert stored.vector.shape == (3, codec.width(16))
    assert codec.decode(stored).dtype == decoded
    assert codec.bytes_per_row(16) == size
    assert codec.decode(codec.encode(vectors[:0])).shape == (0, 16)
    assert vectors.tobytes() == before
    assert not np.shares_memory(stored.vector, vectors)


@pytest.mark.parametrize("name", CODEC_NAMES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused_by_row(name: str, value: float) -> None:
    vectors = VECTORS[:4].copy()
    vectors[2, 1] = value
    with pytest.raises(InputError, match="row 2 of 4"):
        codec_of(name).encode(vectors)


@pytest.mark.parametrize(("name", "fits", "too_large"), [("float16", 65519.0, 65520.0), ("pq", 1e17, 2e18)])
def test_too_large_values_are_refused(name: str, fits: float, too_large: float) -> None:
    codec_of(name).encode(np.full((1, 16), fits, np.float32))
    with pytest.raises(InputError, match=name):
        codec_of(name).encode(np.full((1, 16), -too_large, np.float32))


# Training of pq


def test_the_codebook_depends_on_vectors_and_seed_and_not_on_threads() -> None:
    before = faiss.omp_get_max_threads()
    for count in (1, 4, before):
        faiss.omp_set_num_threads(count)
        assert pq.train(VECTORS).codebook == PQ.codebook
    assert pq.train(VECTORS, seed=1).codebook != PQ.codebook
    assert pq.train(VECTORS[:-1]).codebook != PQ.codebook


@pytest.mark.parametrize(("dimension", "width"), [(1, 1), (2, 1), (3, 1), (6, 2), (7, 7), (8, 2), (10, 5)])
def test_widths_that_four_does_not_divide(dimension: int, width: int) -> None:
    vectors = np.random.default_rng(0).normal(size=(300, dimension)).astype(np.float32)
    trained = pq.train(vectors)
    assert pq.stored_width(dimension) == trained.width(dimension) == width
    assert np.abs(trained.decode(trained.encode(vectors)) - vectors).mean() < 0.1


def test_too_few_vectors_and_other_widths_are_refused() -> None:
    for refused in (
        lambda: pq.train(VECTORS[:255]),
        lambda: PQ.encode(np.ones((1, 20), np.float32)),
        lambda: PQ.bytes_per_row(20),
    ):
        with pytest.raises(InputError):
            refused()


# Codebook files


def npy(array: NDArray[np.generic]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def named(folder: Path, data: bytes) -> str:
    """Write ``data`` where a codebook of those bytes would be."""
    name = hashlib.sha256(data).hexdigest()
    (folder / f"{name}.npy").write_bytes(data)
    return name


def test_a_codebook_comes_back_from_its_file_and_any_changed_byte_is_found(tmp_path: Path) -> None:
    path = pq.save(tmp_path / "codebooks", PQ)
    good = path.read_bytes()
    assert path.name == f"{hashlib.sha256(good).hexdigest()}.npy"
    assert np.load(path, allow_pickle=False).shape == (4, 256, 4)
    loaded = pq.load(path.parent, PQ.codebook)
    assert loaded.encode(VECTORS).vector.tobytes() == PQ.encode(VECTORS).vector.tobytes()
    changed = [
        good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :] for place in [*range(130), len(good) - 1]
    ]
    for data in (*changed, b"", good[:-1], good + b"\0"):
        path.write_bytes(data)
        with pytest.raises(CorruptCacheError):
            pq.load(path.parent, PQ.codebook)


@pytest.mark.parametrize("name", ["../secret", "", "A" * 64, "0" * 64 + "\n", "0" * 64])
def test_a_name_that_is_no_digest_or_missing_opens_nothing(name: str, tmp_path: Path) -> None:
    with pytest.raises(CorruptCacheError):
        pq.load(tmp_path, name)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        npy(np.zeros((4, 256, 4))),
        npy(np.zeros((4, 255, 4), np.float32)),
        npy(np.zeros((4, 256, 5), np.float32)),
        npy(np.zeros((0, 256, 4), np.float32)),
        npy(np.zeros((4, 256, 4), np.float32, order="F")),
        npy(np.zeros((4, 256, 4), ">f4")),
        npy(np.array([{"a": 1}], dtype=object)),
        npy(np.zeros((4, 256, 4), np.float32)) + b"more",
        npy(np.zeros((4, 256, 4), np.float32)).replace(b"(4, 256, 4)", b"(9999999, 256, 4)"),
        npy(np.full((1, 256, 1), np.nan, np.float32)),
    ],
)
def test_a_file_that_is_no_codebook_is_refused_under_its_own_digest(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(CorruptCacheError):
        pq.load(tmp_path, named(tmp_path, data))


@given(start=st.integers(0, 140), noise=st.binary(min_size=1, max_size=30))
def test_no_header_leads_to_anything_but_an_error(
    tmp_path_factory: pytest.TempPathFactory, start: int, noise: bytes
) -> None:
    folder = tmp_path_factory.mktemp("codebooks")
    good = npy(np.zeros((2, 256, 2), np.float32))
    with suppress(CorruptCacheError):
        loaded = pq.load(folder, named(folder, good[:start] + noise + good[start + len(noise) :]))
        assert loaded.centroids.shape == (2, 256, 2)


# Measured loss


def loss(name: str, vectors: Vectors) -> dict[str, float]:
    return measure(get_codec(name), vectors, get_codec(name).encode(vectors))


@pytest.mark.parametrize("name", ["float16", "int8"])
@pytest.mark.parametrize("rows", [1, 1025])
def test_the_measured_loss_is_the_cosine(name: str, rows: int) -> None:
    vectors = np.random.default_rng(0).normal(size=(rows, 24)).astype(np.float32)
    before, after = vectors.astype(np.float64), round_trip(name, vectors).astype(np.float64)
    norms = np.linalg.norm(before, axis=1) * np.linalg.norm(after, axis=1)
    cosines = (before * after).sum(axis=1) / norms
    error = loss(name, vectors)
    # The loss is rounded to six digits.
    assert 1 - error["mean_cosine"] == pytest.approx(1 - cosines.mean(), rel=1e-5)
    assert 1 - error["worst_cosine"] == pytest.approx(1 - cosines.min(), rel=1e-5)
    assert loss(name, np.ldexp(vectors, -3)) == loss(name, vectors[::-1].copy() / 8)


def test_zero_rows_are_left_out_and_vanished_rows_have_lost_everything() -> None:
    assert set(loss("float16", np.full((3, 4), 1e-9, np.float32)).values()) == {0.0}
    for nothing in (VECTORS[:0], np.zeros((3, 2), np.float32)):
        assert set(loss("float16", nothing).values()) == {1.0}
    with_zeros = np.concatenate([np.zeros((7, 16), np.float32), VECTORS])
    assert loss("float16", with_zeros) == loss("float16", VECTORS)
