"""Codecs that need no codebook: float32, float16 and int8; and lookup of codecs by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from embedcache.codecs import pq
from embedcache.codecs.base import Codec, Stored, Vectors, row_magnitudes
from embedcache.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LARGEST = float(np.finfo(np.float32).max)
# Numbers between the largest float16 and this one round down to it.
_LARGEST_FLOAT16 = float(np.nextafter(np.float32(65520), np.float32(0)))
_STEPS = np.float32(127)
# 127 steps of a larger scale would round up to infinity.
_LARGEST_SCALE = np.nextafter(np.finfo(np.float32).max / _STEPS, np.float32(0))


class FloatCodec(Codec):
    """Vectors as floating point numbers.

    float32 keeps every bit. float16 takes half the space and errs by at most 2**-11 of a component, for
    vectors of length one.
    """

    def __init__(self, dtype: type[np.floating], limit: float) -> None:
        self.dtype = np.dtype(dtype)
        self.name, self._limit = self.dtype.name, limit

    def encode(self, vectors: Vectors) -> Stored:
        """Return vectors (n, d) float32 as stored rows; see ``Codec.encode``."""
        row_magnitudes(vectors, self.name, self._limit)
        return Stored(vectors.astype(self.dtype))

    def decode(self, stored: Stored) -> NDArray[np.floating]:
        """Return the stored array (n, d) itself."""
        return stored.vector

    def decode_into(self, stored: Stored, rows: NDArray[np.integer], out: NDArray[np.floating]) -> None:
        """Write the vectors of some rows into ``out`` (m, d); see ``Codec.decode_into``."""
        if out.dtype == self.dtype:
            # "clip" lets numpy write into `out` without a copy.
            stored.vector.take(rows, axis=0, out=out, mode="clip")
        else:
            out[:] = stored.vector[rows]


class Int8Codec(Codec):
    """Whole numbers from -127 to 127, times a scale per row: its largest absolute component / 127."""

    name = "int8"
    dtype = np.dtype(np.int8)
    has_scale = True

    def encode(self, vectors: Vectors) -> Stored:
        """Return vectors (n, d) float32 as stored rows; see ``Codec.encode``."""
        scale = np.minimum(row_magnitudes(vectors, self.name, _LARGEST) / _STEPS, _LARGEST_SCALE)
        scaled = vectors / np.where(scale > 0, scale, np.float32(1))[:, None]
        np.rint(scaled, out=scaled)
        # Subnormal scales are rounded so much that quotients exceed 127.
        np.clip(scaled, -_STEPS, _STEPS, out=scaled)
        return Stored(scaled.astype(np.int8), scale)

    def decode(self, stored: Stored) -> NDArray[np.floating]:
        """Return stored rows as float32 vectors (n, d)."""
        if stored.scale is None:
            raise TypeError("rows of int8 need their scale")
        vectors: NDArray[np.float32] = np.multiply(stored.vector, stored.scale[:, None], dtype=np.float32)
        return vectors


_FIXED: dict[str, Codec] = {
    "float32": FloatCodec(np.float32, _LARGEST),
    "float16": FloatCodec(np.float16, _LARGEST_FLOAT16),
    "int8": Int8Codec(),
}
CODEC_NAMES = (*_FIXED, pq.NAME)
"""Names of all codecs, the finest first."""
FLOAT_CODECS = ("float32", "float16")
"""Codecs that store each component by itself."""
DEFAULT_CODEC = "float16"


def check_codec_name(name: str) -> str:
    """Return the name of a codec.

    Raises:
        InputError: if no codec has it.
    """
    if name not in CODEC_NAMES:
        raise InputError(f"unknown codec {name!r}, expected one of {', '.join(CODEC_NAMES)}")
    return name


def get_codec(name: str) -> Codec:
    """Return a codec by name.

    Raises:
        InputError: if there is none, or it is ``pq``, which needs a codebook.
    """
    if check_codec_name(name) == pq.NAME:
        raise InputError("the codec pq needs a codebook: embedcache.codecs.pq.train or pq.load")
    return _FIXED[name]
