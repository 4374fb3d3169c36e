"""What counts as the same vector: the bits, or what compute dtypes and codecs explain."""

from __future__ import annotations

import math

import numpy as np
import pytest

from embedcache.codecs import get_codec
from embedcache.codecs.quality import measure
from embedcache.noise import compare_rows, noise_angle
from embedcache.store import ShardHeader
from embedcache.testing import example_contract


def header(compute_dtype: str = "float32", worst: float = 1.0, codec: str = "int8") -> ShardHeader:
    error = {"mean_cosine": 1.0, "worst_cosine": worst}
    return ShardHeader(example_contract(2), codec, None, 1, {"compute_dtype": compute_dtype}, error)


def turned(angle: float, length: float = 1.0) -> np.ndarray:
    return np.array([[length * math.cos(angle), length * math.sin(angle)]], dtype=np.float32)


def test_the_angle_grows_with_what_was_lost() -> None:
    angles = [
        noise_angle(one)
        for one in (header(), header("float16"), header("bfloat16"), header("bfloat16", 0.999))
    ]
    assert angles == sorted(angles)
    assert angles[0] == math.acos(0.999999)
    assert angles[3] == pytest.approx(math.acos(0.9995) + math.acos(0.999))
    # Nobody knows what it was computed in: as the strictest.
    assert noise_angle(header("tf32")) == angles[0]


@pytest.mark.parametrize("codec", ["float32", "float16", "int8"])
def test_a_shard_is_believed_as_far_as_its_codec_can_lose_anything(codec: str) -> None:
    vectors = np.random.default_rng(3).standard_normal((500, 384)).astype(np.float32)
    lost = measure(get_codec(codec), vectors)
    # What a codec really loses is believed; what a stranger claims, to take others' places, is not.
    exact = noise_angle(header(codec=codec))
    assert noise_angle(header(worst=lost.worst_cosine, codec=codec)) - exact == pytest.approx(
        math.acos(min(lost.worst_cosine, 1.0))
    )
    assert noise_angle(header(worst=-1.0, codec=codec)) < 0.26


def test_directions_and_lengths_count() -> None:
    x = np.concatenate([turned(0)] * 5)
    y = np.concatenate([turned(0), turned(0.09), turned(0.11), turned(0, 1.05), turned(0, 1.3)])
    found, beyond = compare_rows(x, y, np.full(5, 0.1))
    assert beyond.tolist() == [False, False, True, False, True]
    assert found[0] == 1.0
    assert found[2] == pytest.approx(math.cos(0.11))
    assert found[4] == pytest.approx(1.0)


@pytest.mark.parametrize("angle", [0.1, math.pi])
def test_infinity_is_like_nothing(angle: float) -> None:
    inf = np.array([[np.inf, 1]], np.float32)
    x = np.concatenate([turned(0), inf, inf, inf])
    y = np.concatenate([inf, turned(0), -inf, inf])
    found, beyond = compare_rows(x, y, np.full(4, angle))
    assert beyond.tolist() == [True, True, True, False]
    assert found.tolist() == [-1.0, -1.0, -1.0, 1.0]


def test_zeros_and_nan() -> None:
    zero, one, nan = np.zeros((1, 2), np.float32), turned(0), np.full((1, 2), np.nan, np.float32)
    x = np.concatenate([zero, zero, nan, one])
    y = np.concatenate([zero, one, one, nan])
    found, beyond = compare_rows(x, y, np.full(4, 0.1))
    assert beyond.tolist() == [False, True, True, True]
    assert found.tolist() == [1.0, 0.0, -1.0, -1.0]
