"""Noise of vectors: how far two vectors of one text may be apart and still come from one teacher.

Two runs of a teacher differ in the last bits, by compute dtype, device and batch. What a codec loses is in
the header of its shard; a header is believed only up to the loss its codec can have.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from embedcache.codecs import Vectors
from embedcache.store.shard import ShardHeader

COMPUTE_COSINE = {"float32": 0.999999, "float16": 0.9999, "bfloat16": 0.9995, "served": 0.99975}
"""Least cosine of two runs of a teacher, by compute dtype; bfloat16 keeps 8 bits of a number, float16 11.

The dtype of a served teacher is not known: two of its runs are at most as far apart as the canary allows."""

# The loss of int8 depends on the row. pq has no bound; it never takes precedence over another codec.
_LEAST_COSINE = {"float32": 0.999999, "float16": 0.9999, "int8": 0.97}
_SLACK = 1e-12
_ROUNDING = 1e-3
"""Share of its length by which a vector may be longer or shorter, beside what the angle allows."""


def noise_angle(header: ShardHeader) -> float:
    """Return the largest angle between a shard's vectors and exact ones that noise explains, in radians."""
    claimed = header.error.get("worst_cosine", 1.0)
    codec = max(_LEAST_COSINE.get(header.codec, -1.0), min(claimed, 1.0))
    compute = COMPUTE_COSINE.get(str(header.provenance.get("compute_dtype")), COMPUTE_COSINE["float32"])
    return math.acos(codec) + math.acos(compute)


def compare_rows(
    x: Vectors, y: Vectors, angles: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Compare the rows of ``x`` with those of ``y``, shape (n, d).

    Args:
        x, y: the vectors.
        angles: angle of each pair that noise explains, in radians, shape (n,).

    Returns:
        Cosine of each pair (1 for the same bits, -1 where one is not finite), and whether the pair is farther
        apart than noise explains; each of shape (n,).
    """
    cosines, beyond = np.ones(len(x)), np.zeros(len(x), dtype=np.bool_)
    # Most rows that two caches share are equal to the last bit.
    other = np.flatnonzero((x != y).any(axis=1))
    if len(other):
        cosines[other], beyond[other] = _compare_unequal(
            x[other].astype(np.float64), y[other].astype(np.float64), np.minimum(angles[other], math.pi)
        )
    return cosines, beyond


def _compare_unequal(
    x: NDArray[np.float64], y: NDArray[np.float64], angles: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    finite = np.isfinite(np.abs(x).sum(axis=1) + np.abs(y).sum(axis=1))
    x, y = np.where(finite[:, None], x, 0), np.where(finite[:, None], y, 0)
    a, b = np.linalg.norm(x, axis=1), np.linalg.norm(y, axis=1)
    cosines: NDArray[np.float64] = np.zeros(len(x))
    np.divide(np.einsum("nd,nd->n", x, y), a * b, out=cosines, where=a * b > 0)
    cosines = np.where(finite, np.clip(cosines, -1.0, 1.0), -1.0)
    # Vectors that are not of length one may also differ in length as far as the angle allows.
    stretch = np.sin(np.minimum(angles, math.pi / 2)) + _ROUNDING
    beyond: NDArray[np.bool_] = (
        ~finite | (cosines < np.cos(angles) - _SLACK) | (np.abs(a - b) > stretch * np.maximum(a, b))
    )
    return cosines, beyond
