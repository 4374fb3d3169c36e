"""Codecs: how a vector is laid out in a shard.

``float32`` keeps every bit the teacher gave. ``float16`` halves the space; for vectors of length one its
relative error is at most 2**-11 a component (cosine to the original above 0.999999).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from embedcache.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

Vectors = NDArray[np.float32]
"""Vectors as a C-ordered float32 array of shape (n, d)."""


@dataclass(frozen=True)
class Codec:
    """One way of storing vectors: ``encode`` to an Arrow column, ``view`` and ``decode`` back."""

    name: str
    dtype: np.dtype[np.floating]

    def encode(self, vectors: Vectors) -> pa.FixedSizeListArray:
        """Lay out vectors (n, d) float32 as an Arrow fixed-size-list column of n rows.

        Raises:
            InputError: if a value is too large for the codec (float16 ends at 65504).
        """
        import pyarrow as pa

        with np.errstate(over="ignore"):
            stored = vectors.astype(self.dtype)
        if not np.isfinite(stored).all():
            largest = float(np.abs(vectors).max())
            raise InputError(
                f"a vector component of {largest:.6g} does not fit the codec {self.name}; "
                "build with --codec float32"
            )
        flat = pa.array(stored.reshape(-1), type=pa.from_numpy_dtype(self.dtype))
        return pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])

    def view(self, column: pa.FixedSizeListArray) -> NDArray[np.floating]:
        """Return a column as an array (n, d) of the stored dtype, without copying."""
        width = column.type.list_size
        values = column.values.slice(column.offset * width, len(column) * width)
        stored: NDArray[np.floating] = values.to_numpy(zero_copy_only=True).reshape(len(column), width)
        return stored

    def decode(self, stored: NDArray[np.floating]) -> Vectors:
        """Turn stored rows into float32 vectors of the same shape."""
        return stored.astype(np.float32)

    def arrow_type(self, dimension: int) -> pa.DataType:
        """Return the Arrow type of a column of vectors of the given width."""
        import pyarrow as pa

        return pa.list_(pa.from_numpy_dtype(self.dtype), dimension)


CODECS = {name: Codec(name, np.dtype(name)) for name in ("float32", "float16")}
DEFAULT_CODEC = "float16"


def get_codec(name: str) -> Codec:
    """Return the codec called ``name``.

    Raises:
        InputError: if there is none; the message lists those there are.
    """
    try:
        return CODECS[name]
    except KeyError:
        raise InputError(f"unknown codec {name!r}: choose one of {', '.join(CODECS)}") from None
