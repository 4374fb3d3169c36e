"""The codecs float32, which keeps every bit, and float16, which halves the space.

For vectors of length one the relative error of float16 is at most 2**-11 a component (cosine to the original
above 0.999999).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from embedcache.codecs.base import Codec, Stored, Vectors, refuse_above, row_magnitudes

if TYPE_CHECKING:
    from numpy.typing import NDArray

# What lies between the largest float16 and this rounds down to it.
_FLOAT16_END = float(np.nextafter(np.float32(65520), np.float32(0)))


@dataclass(frozen=True)
class FloatCodec(Codec):
    """Vectors as floating point numbers of ``dtype``."""

    name: str
    dtype: np.dtype[np.floating]
    limit: float

    @property
    def decoded(self) -> np.dtype[np.floating]:  # type: ignore[override]
        """The dtype :meth:`decode` returns: the stored one."""
        return self.dtype

    def encode(self, vectors: Vectors) -> Stored:
        """Return vectors (n, d) float32 as stored rows; see :meth:`Codec.encode`."""
        refuse_above(self.limit, row_magnitudes(vectors), self.name)
        return Stored(vectors.astype(self.dtype))

    def decode(self, stored: Stored) -> NDArray[np.floating]:
        """Return the stored array (n, d) itself."""
        return stored.vector

    def decode_into(self, stored: Stored, rows: NDArray[np.integer], out: NDArray[np.floating]) -> None:
        """Write the vectors of ``rows`` into ``out`` (m, d); see :meth:`Codec.decode_into`."""
        if out.dtype == self.dtype:
            # "clip" lets numpy write into `out` without a copy.
            stored.vector.take(rows, axis=0, out=out, mode="clip")
        else:
            out[:] = stored.vector[rows]


FLOAT32 = FloatCodec("float32", np.dtype(np.float32), float(np.finfo(np.float32).max))
FLOAT16 = FloatCodec("float16", np.dtype(np.float16), _FLOAT16_END)
