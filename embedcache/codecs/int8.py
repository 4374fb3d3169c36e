"""The codec int8: components as whole numbers from -127 to 127 of a per-row scale; a quarter of float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from embedcache.codecs.base import Codec, Stored, Vectors, row_magnitudes

if TYPE_CHECKING:
    from numpy.typing import NDArray

_STEPS = np.float32(127)
# The largest scale whose 127 steps do not round up to infinity.
_LARGEST_SCALE = np.nextafter(np.finfo(np.float32).max / _STEPS, np.float32(0))


class Int8Codec(Codec):
    """Symmetric int8: the scale of a row is its largest absolute component / 127; zero for a row of zeros."""

    name = "int8"
    dtype = np.dtype(np.int8)
    has_scale = True
    decoded = np.dtype(np.float32)

    def encode(self, vectors: Vectors) -> Stored:
        """Return vectors (n, d) float32 as stored rows; see :meth:`Codec.encode`."""
        scale = np.minimum(row_magnitudes(vectors) / _STEPS, _LARGEST_SCALE)
        divisor = np.where(scale > 0, scale, np.float32(1))[:, None]
        scaled = vectors / divisor
        np.rint(scaled, out=scaled)
        # Among subnormal numbers the scale itself is rounded so much that quotients pass 127.
        np.clip(scaled, -_STEPS, _STEPS, out=scaled)
        return Stored(scaled.astype(np.int8), scale)

    def decode(self, stored: Stored) -> NDArray[np.floating]:
        """Return stored rows as float32 vectors (n, d)."""
        if stored.scale is None:
            raise TypeError("rows of int8 need their scale")
        vectors: NDArray[np.float32] = np.multiply(stored.vector, stored.scale[:, None], dtype=np.float32)
        return vectors


INT8 = Int8Codec()
