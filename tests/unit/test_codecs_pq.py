"""Product quantisation: codebooks that are the same every time, and files that cannot lie."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterator
from pathlib import Path

import faiss
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from embedcache.codecs import Stored, get_codec, measure, pq
from embedcache.errors import CorruptCacheError, InputError, StorageError


def clustered(rows: int, dimension: int = 16, *, seed: int = 0) -> NDArray[np.float32]:
    """Return unit vectors around forty directions: unlike noise, they have something to be learnt."""
    generator = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(40, dimension))
    vectors = centres[generator.integers(40, size=rows)] + 0.3 * generator.normal(size=(rows, dimension))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors.astype(np.float32)


VECTORS = clustered(1500)


@pytest.fixture(scope="module")
def codec() -> pq.PQCodec:
    return pq.train(VECTORS)


@pytest.fixture
def threads() -> Iterator[None]:
    before = faiss.omp_get_max_threads()
    yield
    faiss.omp_set_num_threads(before)


def named(folder: Path, data: bytes) -> str:
    """Put ``data`` where a codebook of those bytes would lie."""
    name = hashlib.sha256(data).hexdigest()
    (folder / f"{name}.npy").write_bytes(data)
    return name


def npy(array: NDArray[np.generic]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def test_a_row_takes_a_sixteenth_of_float32(codec: pq.PQCodec) -> None:
    stored = codec.encode(VECTORS)
    assert stored.vector.dtype == np.uint8
    assert stored.vector.shape == (1500, 4) == (1500, codec.width(16))
    assert 16 * codec.bytes_per_row(16) == get_codec("float32").bytes_per_row(16)
    assert stored.scale is None
    decoded = codec.decode(stored)
    assert decoded.dtype == np.float32
    assert decoded.shape == VECTORS.shape


def test_every_sub_vector_goes_to_its_nearest_centroid(codec: pq.PQCodec) -> None:
    stored = codec.encode(VECTORS[:200])
    parts = VECTORS[:200].astype(np.float64).reshape(200, 4, 1, 4)
    distances = ((parts - codec.centroids.astype(np.float64)) ** 2).sum(axis=3)
    chosen = np.take_along_axis(distances, stored.vector[:, :, None].astype(np.int64), axis=2)[:, :, 0]
    assert (chosen <= distances.min(axis=2) + 1e-6).all()
    expected = codec.centroids[np.arange(4), stored.vector].reshape(200, 16)
    assert np.array_equal(codec.decode(stored), expected)


def test_vectors_it_has_not_seen_keep_their_direction(codec: pq.PQCodec) -> None:
    unseen = clustered(500, seed=1)
    error = measure(codec, unseen)
    assert error.mean_cosine > 0.97
    assert error.worst_cosine > 0.9
    assert error.mean_cosine < measure(get_codec("int8"), unseen).mean_cosine


def test_learning_is_better_than_drawing(codec: pq.PQCodec) -> None:
    drawn = pq.PQCodec(VECTORS[:256].reshape(256, 4, 4).swapaxes(0, 1))
    assert measure(codec, VECTORS).mean_cosine > measure(drawn, VECTORS).mean_cosine + 0.002


@pytest.mark.usefixtures("threads")
def test_the_codebook_depends_on_vectors_and_seed_and_not_on_threads(codec: pq.PQCodec) -> None:
    for count in (1, 4):
        faiss.omp_set_num_threads(count)
        again = pq.train(VECTORS)
        assert again.codebook == codec.codebook
        assert again.encode(VECTORS).vector.tobytes() == codec.encode(VECTORS).vector.tobytes()
    assert pq.train(VECTORS, seed=1).codebook != codec.codebook
    assert pq.train(VECTORS[:-1]).codebook != codec.codebook


@given(rows=st.lists(st.integers(0, 1499), min_size=1, max_size=40))
def test_a_row_is_stored_the_same_whatever_comes_with_it(codec: pq.PQCodec, rows: list[int]) -> None:
    whole, part = codec.encode(VECTORS), codec.encode(VECTORS[rows])
    assert whole.take(np.array(rows)).vector.tobytes() == part.vector.tobytes()
    assert np.array_equal(codec.decode(part), codec.decode(whole)[rows])


def test_decoding_passes_the_borders_of_its_blocks(codec: pq.PQCodec) -> None:
    stored = codec.encode(np.tile(VECTORS, (2, 1)))
    assert np.array_equal(codec.decode(stored)[:1500], codec.decode(stored)[1500:])
    assert codec.decode(stored.take(slice(0, 0))).shape == (0, 16)
    assert not np.array_equal(codec.decode(stored)[0], codec.decode(stored)[1])


@pytest.mark.parametrize(
    ("dimension", "width"), [(1, 1), (2, 1), (3, 1), (6, 2), (7, 7), (8, 2), (10, 5), (384, 96)]
)
def test_widths_that_four_does_not_divide(dimension: int, width: int) -> None:
    assert pq.stored_width(dimension) == width
    if dimension > 10:
        return
    vectors = np.random.default_rng(0).normal(size=(300, dimension)).astype(np.float32)
    trained = pq.train(vectors)
    assert trained.width(dimension) == width
    assert trained.centroids.shape == (width, 256, dimension // width)
    off = np.abs(trained.decode(trained.encode(vectors)) - vectors)
    assert off.mean() < 0.1
    assert off.max() < 1.5


def test_many_rows_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pq, "MOST_TRAINING_ROWS", 400)
    learnt: list[int] = []
    means = pq._means
    monkeypatch.setattr(
        pq, "_means", lambda vectors, *others: learnt.append(len(vectors)) or means(vectors, *others)
    )
    first, again, other = pq.train(VECTORS), pq.train(VECTORS), pq.train(VECTORS, seed=1)
    assert set(learnt) == {400}
    assert first.codebook == again.codebook
    assert first.codebook != other.codebook
    assert first.codebook != pq.train(VECTORS[:400]).codebook


def test_passes_are_reported_until_nothing_moves(codec: pq.PQCodec, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[tuple[int, int]] = []
    whole = pq.train(VECTORS, on_pass=lambda done, total: passes.append((done, total)))
    assert passes == [(number, pq.PASSES) for number in range(1, len(passes) + 1)]
    assert 3 < len(passes) < pq.PASSES
    assert whole.codebook == codec.codebook
    monkeypatch.setattr(pq, "PASSES", 3)
    passes.clear()
    short = pq.train(VECTORS, on_pass=lambda done, total: passes.append((done, total)))
    assert passes == [(1, 3), (2, 3), (3, 3)]
    assert measure(short, VECTORS).mean_cosine < measure(whole, VECTORS).mean_cosine


def test_as_many_vectors_as_centroids_come_back_whole() -> None:
    exact = pq.train(VECTORS[:256])
    np.testing.assert_allclose(exact.decode(exact.encode(VECTORS[:256])), VECTORS[:256], atol=1e-6)


def test_equal_vectors_can_be_learnt() -> None:
    vectors = np.tile(VECTORS[:1], (300, 1))
    codec = pq.train(vectors)
    np.testing.assert_allclose(codec.decode(codec.encode(vectors)), vectors, atol=1e-6)


def test_training_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    pq.train(VECTORS[:256])
    pq.train(VECTORS[:300])
    assert capfd.readouterr() == ("", "")


def test_too_few_rows_are_refused_with_the_way_out() -> None:
    with pytest.raises(InputError, match=r"at least 256 vectors, found 255: use --codec float16 or int8"):
        pq.train(VECTORS[:255])


@pytest.mark.parametrize("value", [np.nan, np.inf, 2e18, -2e18])
def test_values_it_cannot_measure_are_refused(codec: pq.PQCodec, value: float) -> None:
    vectors = VECTORS.copy()
    vectors[7, 3] = value
    for use in (pq.train, codec.encode):
        with pytest.raises(InputError, match=r"row 7 of 1500|does not fit the codec pq"):
            use(vectors)


def test_large_values_are_within_a_centroid() -> None:
    vectors = VECTORS * np.float32(1e17)
    assert measure(pq.train(vectors), vectors).mean_cosine > 0.97


def test_another_width_is_refused(codec: pq.PQCodec) -> None:
    with pytest.raises(InputError, match=r"for vectors of width 16, not 20"):
        codec.encode(np.ones((1, 20), np.float32))
    with pytest.raises(InputError, match=r"for vectors of width 16, not 20"):
        codec.bytes_per_row(20)
    with pytest.raises(InputError, match=r"pq rows of 5 bytes, .* has 4"):
        codec.decode(Stored(np.zeros((2, 5), np.uint8)))


def test_a_codebook_comes_back_from_its_file(codec: pq.PQCodec, tmp_path: Path) -> None:
    path = pq.save(tmp_path / "codebooks", codec)
    assert path.name == f"{codec.codebook}.npy"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == codec.codebook
    assert np.load(path, allow_pickle=False).shape == (4, 256, 4)
    loaded = pq.load(tmp_path / "codebooks", codec.codebook)
    assert loaded.codebook == codec.codebook
    assert loaded.encode(VECTORS).vector.tobytes() == codec.encode(VECTORS).vector.tobytes()
    assert pq.save(tmp_path / "codebooks", loaded) == path
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_folder_that_cannot_be_written_is_named(codec: pq.PQCodec, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file"):
        pq.save(tmp_path / "file", codec)


@pytest.mark.parametrize("name", ["../secret", "", "A" * 64, "0" * 63, "0" * 64 + "\n", "/" + "0" * 63])
def test_a_name_that_is_no_digest_opens_nothing(name: str, tmp_path: Path) -> None:
    with pytest.raises(CorruptCacheError, match="which is no sha256"):
        pq.load(tmp_path, name)


def test_a_codebook_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CorruptCacheError, match=r"0000\.npy is missing: copy it again"):
        pq.load(tmp_path, "0" * 64)


def test_any_changed_byte_is_found(codec: pq.PQCodec, tmp_path: Path) -> None:
    path = pq.save(tmp_path, codec)
    good = path.read_bytes()
    for place in [*range(130), len(good) // 2, len(good) - 1]:
        path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        with pytest.raises(CorruptCacheError, match="do not have the digest in its name"):
            pq.load(tmp_path, codec.codebook)
    for other in (b"", good[:-1], good + b"\0"):
        path.write_bytes(other)
        with pytest.raises(CorruptCacheError, match="do not have the digest in its name"):
            pq.load(tmp_path, codec.codebook)
    path.write_bytes(good)
    assert pq.load(tmp_path, codec.codebook).codebook == codec.codebook


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no array"),
        (npy(np.zeros((4, 256, 4))), "no array"),
        (npy(np.zeros((4, 255, 4), np.float32)), "no array"),
        (npy(np.zeros((4, 256, 5), np.float32)), "no array"),
        (npy(np.zeros((0, 256, 4), np.float32)), "no array"),
        (npy(np.zeros((256, 4), np.float32)), "no array"),
        (npy(np.zeros((4, 256, 4), np.float32, order="F")), "no array"),
        (npy(np.zeros((4, 256, 4), ">f4")), "no array"),
        (npy(np.array([{"a": 1}], dtype=object)), "no array"),
        (npy(np.zeros((4, 256, 4), np.float32))[:-4], "too short or too long"),
        (npy(np.zeros((4, 256, 4), np.float32)) + b"more", "too short or too long"),
        (npy(np.zeros((4, 256, 4), np.float32)).replace(b"(4, 256, 4)", b"(9999999, 256, 4)"), "too short"),
        (npy(np.full((1, 256, 1), np.nan, np.float32)), "not finite"),
        (npy(np.full((1, 256, 1), -np.inf, np.float32)), "not finite"),
    ],
)
def test_a_file_that_is_no_codebook_is_refused_whatever_its_name(
    data: bytes, reason: str, tmp_path: Path
) -> None:
    name = named(tmp_path, data)
    with pytest.raises(CorruptCacheError, match=reason):
        pq.load(tmp_path, name)


@given(
    start=st.integers(0, 140),
    noise=st.binary(min_size=1, max_size=30),
)
def test_no_header_leads_to_anything_but_an_error(
    tmp_path_factory: pytest.TempPathFactory, start: int, noise: bytes
) -> None:
    folder = tmp_path_factory.mktemp("codebooks")
    good = npy(np.zeros((2, 256, 2), np.float32))
    name = named(folder, good[:start] + noise + good[start + len(noise) :])
    try:
        loaded = pq.load(folder, name)
    except CorruptCacheError:
        return
    assert loaded.centroids.shape == (2, 256, 2)


def test_a_link_is_no_codebook(codec: pq.PQCodec, tmp_path: Path) -> None:
    path = pq.save(tmp_path / "outside", codec)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / path.name).symlink_to(path)
    with pytest.raises(CorruptCacheError, match="symbolic link"):
        pq.load(tmp_path / "cache", codec.codebook)


def test_a_pipe_or_a_folder_is_no_codebook(codec: pq.PQCodec, tmp_path: Path) -> None:
    path = tmp_path / f"{codec.codebook}.npy"
    for make, unmake in ((os.mkfifo, path.unlink), (Path.mkdir, path.rmdir)):
        make(path)
        with pytest.raises(CorruptCacheError, match="no regular file"):
            pq.load(tmp_path, codec.codebook)
        unmake()
