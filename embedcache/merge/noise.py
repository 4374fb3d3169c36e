"""A bound of noise that the user gives, in the place of what the headers of shards say."""

from __future__ import annotations

import math

from embedcache import noise as noise_module
from embedcache.errors import InputError
from embedcache.noise import compare_rows
from embedcache.store.shard import ShardHeader

__all__ = ["compare_rows", "noise_angle"]


def noise_angle(header: ShardHeader, noise: float | None = None) -> float:
    """Return how far vectors of a shard may be turned from the exact ones, in radians."""
    if noise is not None:
        if not 0 <= noise <= 2:
            raise InputError(f"--noise {noise}: expected 1 - cosine of two vectors, from 0 to 2")
        # Two vectors share it.
        return math.acos(1 - noise) / 2
    return noise_module.noise_angle(header)
