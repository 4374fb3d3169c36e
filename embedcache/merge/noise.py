"""How far two vectors of one key may be from each other and still be the same: what noise explains.

Two runs of one teacher differ in the last bits, by what they computed in, and what a codec lost stands in
the header of its shard. ``embedcache diff`` counts with the same figures. They are about as much as ``verify
--deep`` finds within the noise, which it measures by running the teacher.

Whoever wrote a shard wrote its header, and shards may come from strangers. So a header is believed only as
far as its codec can lose anything: otherwise a shard could call its vectors noise and take others' places.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from embedcache.codecs import Vectors
from embedcache.compare import explained_angle
from embedcache.errors import InputError
from embedcache.store.shard import ShardHeader

_SLACK = 1e-12
_ROUNDING = 1e-3
"""Share of its length that a vector may be longer or shorter than another beside what the angle allows."""


def noise_angle(header: ShardHeader, noise: float | None = None) -> float:
    """Return how far vectors of a shard may be turned from the exact ones, in radians.

    Args:
        header: the shard's.
        noise: a bound for 1 - cosine of two vectors of one key, in the place of what the header says.

    Raises:
        InputError: if ``noise`` is not from 0 to 2.
    """
    if noise is not None:
        if not 0 <= noise <= 2:
            raise InputError(f"--noise {noise}: expected 1 - cosine of two vectors, from 0 to 2")
        # Two vectors share it.
        return math.acos(1 - noise) / 2
    return explained_angle(header)


def compare_rows(
    x: Vectors, y: Vectors, angles: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Compare the rows of ``x`` with those of ``y``, shape (n, d).

    Args:
        x, y: the vectors.
        angles: how far noise may turn each two from each other, in radians, shape (n,).

    Returns:
        The cosine of each two, 1 for the same bits, and -1 or less where one is not finite, and which two are
        farther apart than noise explains; each of shape (n,).
    """
    found, beyond = np.ones(len(x)), np.zeros(len(x), dtype=np.bool_)
    # Most that two caches share is the same to the last bit, and found to be quickly.
    other = np.flatnonzero((x != y).any(axis=1))
    if len(other):
        found[other], beyond[other] = _compare_others(
            x[other].astype(np.float64), y[other].astype(np.float64), np.minimum(angles[other], math.pi)
        )
    return found, beyond


def _compare_others(
    x: NDArray[np.float64], y: NDArray[np.float64], angles: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    finite = np.isfinite(np.abs(x).sum(axis=1) + np.abs(y).sum(axis=1))
    x, y = np.where(finite[:, None], x, 0), np.where(finite[:, None], y, 0)
    a, b = np.linalg.norm(x, axis=1), np.linalg.norm(y, axis=1)
    found: NDArray[np.float64] = np.zeros(len(x))
    np.divide(np.einsum("nd,nd->n", x, y), a * b, out=found, where=a * b > 0)
    # What holds NaN or infinity is like nothing.
    found = np.where(finite, np.clip(found, -1.0, 1.0), -1.0)
    # Vectors that are not of length one may also be as much longer as the angle lets them be turned.
    stretch = np.sin(np.minimum(angles, math.pi / 2)) + _ROUNDING
    beyond: NDArray[np.bool_] = (
        ~finite | (found < np.cos(angles) - _SLACK) | (np.abs(a - b) > stretch * np.maximum(a, b))
    )
    return found, beyond
