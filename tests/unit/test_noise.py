"""Equality of vectors: the same bits, or a difference that compute dtypes and codecs explain."""

from __future__ import annotations

import math

import numpy as np
import pytest

from embedcache.codecs import get_codec, measure
from embedcache.store import ShardHeader
from embedcache.store.noise import compare_rows, noise_angle
from embedcache.testing import example_contract


def header(compute_dtype: str = "float32", worst: float = 1.0, codec: str = "int8") -> ShardHeader:
    error = {"mean_cosine": 1.0, "worst_cosine": worst}
    return ShardHeader(example_contract(2), codec, None, 1, {"compute_dtype": compute_dtype}, error)


@pytest.mark.parametrize("codec", ["float32", "float16", "int8"])
def test_a_shard_is_believed_as_far_as_its_codec_can_lose_anything(codec: str) -> None:
    vectors = np.random.default_rng(3).standard_normal((500, 384)).astype(np.float32)
    lost = measure(get_codec(codec), vectors, get_codec(codec).encode(vectors))["worst_cosine"]
    # What a codec really loses is believed; what a stranger claims, to take others' places, is not.
    exact = noise_angle(header(codec=codec))
    assert noise_angle(header(worst=lost, codec=codec)) - exact == pytest.approx(math.acos(min(lost, 1.0)))
    assert noise_angle(header(worst=-1.0, codec=codec)) < 0.26


@pytest.mark.parametrize(
    ("x", "y", "cosine", "is_beyond"),
    [
        ([0, 0], [0, 0], 1.0, False),
        ([0, 0], [1, 0], 0.0, True),
        ([1, 0], [np.nan, np.nan], -1.0, True),
        ([np.nan, np.nan], [1, 0], -1.0, True),
        ([1, 0], [np.inf, 1], -1.0, True),
        ([np.inf, 1], [-np.inf, -1], -1.0, True),
        ([np.inf, 1], [np.inf, 1], 1.0, False),
    ],
)
def test_zeros_and_infinite_vectors(x: list[float], y: list[float], cosine: float, is_beyond: bool) -> None:
    a, b = (np.array([row, row], np.float32) for row in (x, y))
    found, beyond = compare_rows(a, b, np.array([0.1, math.pi]))
    assert found.tolist() == [cosine, cosine]
    # No noise makes infinity equal to anything.
    assert beyond.tolist() == [is_beyond, cosine < 0]
