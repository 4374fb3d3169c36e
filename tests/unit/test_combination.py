"""Combination of several teachers' vectors into one target: the arithmetic, and the file that records it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import save_file

from distill.data.combination import Combination
from distill.errors import ConfigError, DataError
from distill.layout import TARGETS

WIDTHS = (6, 10)


def teachers(rows: int = 40, seed: int = 0) -> list[np.ndarray]:
    """Vectors of two teachers, of other widths and other lengths."""
    generator = np.random.default_rng(seed)
    return [
        (scale * generator.standard_normal((rows, width))).astype(np.float32)
        for width, scale in zip(WIDTHS, (1, 50), strict=True)
    ]


def cosines(vectors: np.ndarray) -> np.ndarray:
    wide = vectors.astype(np.float64)
    unit = wide / np.linalg.norm(wide, axis=1, keepdims=True)
    return unit @ unit.T


def of(*weights: float) -> Combination:
    return Combination.of(["a", "b"], WIDTHS, weights)


@pytest.mark.parametrize("weights", [(1, 1), (1, 0.5), (0.1, 30)])
def test_the_cosine_of_targets_is_the_weighted_mean_of_the_teachers_cosines(weights):
    first, second = teachers()
    targets = of(*weights).apply([first, second])
    expected = np.average([cosines(first), cosines(second)], axis=0, weights=weights)
    np.testing.assert_allclose(cosines(targets), expected, atol=1e-6)
    assert np.abs(expected - cosines(first)).max() > 0.05


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
def test_a_vector_without_a_direction_is_refused(value):
    first, second = teachers()
    second[[4, 9]] = value
    with pytest.raises(DataError, match="2 of 40 vectors of b"):
        of(1, 1).apply([first, second])


def nearly_flat(rows: int = 300, directions: int = 4) -> list[np.ndarray]:
    """Two teachers whose vectors lie near ``directions`` common directions, away from the origin."""
    generator = np.random.default_rng(3)
    common = generator.standard_normal((rows, directions)) + 1.5
    found = []
    for width in WIDTHS:
        mixed = common @ generator.standard_normal((directions, width))
        found.append((mixed + 0.01 * generator.standard_normal(mixed.shape)).astype(np.float32))
    return found


def projected(dimension: int, vectors: list[np.ndarray]) -> Combination:
    whole = of(1, 2)
    joined = whole.apply(vectors)
    return whole.fitted([joined[:30], joined[30:]], dimension)


def test_a_projection_keeps_similarities_where_the_vectors_are_nearly_flat():
    vectors = nearly_flat()
    whole = of(1, 2).apply(vectors)
    narrow = projected(10, vectors)
    targets = narrow.apply(vectors)
    assert narrow.dimension == targets.shape[1] == 10
    np.testing.assert_allclose(np.linalg.norm(targets, axis=1), 1, atol=1e-6)
    lost = np.abs(cosines(targets) - cosines(whole)).mean()
    assert lost < 0.01
    assert np.abs(cosines(projected(1, vectors).apply(vectors)) - cosines(whole)).mean() > 10 * lost
    # Just leaving components out would have changed them.
    assert np.abs(cosines(whole[:, :10]) - cosines(whole)).mean() > 10 * lost


def test_a_projection_is_the_best_for_inner_products():
    vectors = teachers(200)
    whole = of(1, 2).apply(vectors).astype(np.float64)
    narrow = projected(5, vectors)
    matrix = narrow.projection.astype(np.float64)
    np.testing.assert_allclose(matrix.T @ matrix, np.eye(5), atol=1e-6)
    values = np.linalg.svd(whole, compute_uv=False) ** 2
    assert narrow.energy == pytest.approx(values[:5].sum() / values.sum(), abs=1e-6)
    lost = np.linalg.norm(whole @ whole.T - whole @ matrix @ matrix.T @ whole.T)
    assert lost == pytest.approx(np.linalg.norm(values[5:]), rel=1e-5)


def test_more_directions_than_the_sample_spans_are_refused():
    few = of(1, 1).apply(teachers(rows=7))
    assert of(1, 1).fitted([few], 7).dimension == 7
    with pytest.raises(ConfigError, match=r"target_dim: 8.* 7 directions"):
        of(1, 1).fitted([few], 8)
    # A teacher that says the same as the other adds no direction.
    first, _ = teachers()
    twins = Combination.of(["a", "b"], (6, 6), [1, 1])
    same = twins.apply([first, first])
    assert twins.fitted([same], 6).dimension == 6
    with pytest.raises(ConfigError, match=r"target_dim: 7.* 6 directions"):
        twins.fitted([same], 7)


@pytest.mark.parametrize("dimension", [None, 5])
def test_a_saved_combination_reads_back_bit_for_bit(tmp_path, dimension):
    vectors = teachers()
    before = of(1, 3) if dimension is None else projected(dimension, vectors)
    before.save(tmp_path)
    after = Combination.load(tmp_path)
    assert (after.names, after.widths, after.shares) == (("a", "b"), WIDTHS, before.shares)
    assert after.energy == before.energy
    assert (after.apply(vectors) == before.apply(vectors)).all()
    assert after.dimension == (dimension or 16)


@pytest.mark.parametrize(("width", "dimension"), [(40, 10), (400, 100), (768, 384)])
def test_a_target_is_the_same_bits_whichever_others_it_is_computed_with(width, dimension):
    generator = np.random.default_rng(0)
    vectors = generator.standard_normal((700, width), dtype=np.float32)
    projection = generator.standard_normal((width, dimension), dtype=np.float32)
    combination = replace(Combination.of(["a"], [width], [1.0]), projection=projection)
    whole = combination.apply([vectors])
    for start, rows in ((0, 1), (5, 2), (100, 3), (255, 2), (300, 17), (3, 255), (99, 256), (1, 600)):
        part = combination.apply([vectors[start : start + rows]])
        np.testing.assert_array_equal(part, whole[start : start + rows])
    np.testing.assert_allclose(
        whole[3], vectors[3] @ projection / np.linalg.norm(vectors[3] @ projection), atol=1e-5
    )
    assert combination.apply([vectors[:0]]).shape == (0, dimension)


def test_a_missing_or_damaged_file_is_refused(tmp_path):
    projected(5, teachers()).save(tmp_path)
    whole = (tmp_path / TARGETS).read_bytes()
    for length in (0, 20, len(whole) - 1):
        (tmp_path / TARGETS).write_bytes(whole[:length])
        with pytest.raises(DataError, match="teacher"):
            Combination.load(tmp_path)
    for metadata in (None, {"targets": "[]"}, {"targets": "{}"}):
        save_file({"projection": np.zeros((5, 2), np.float32)}, tmp_path / TARGETS, metadata)
        with pytest.raises(DataError, match="teacher"):
            Combination.load(tmp_path)
