"""Codecs: float32 vectors to stored rows and back, each row by itself; and the loss of that."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from embedcache.errors import InputError

_BLOCK_ROWS = 1024

Vectors = NDArray[np.float32]
"""Vectors as a C-ordered float32 array of shape (n, d)."""


@dataclass(frozen=True)
class Stored:
    """Rows as a codec stores them.

    Attributes:
        vector: the codec's dtype, shape (n, w) with w = ``codec.width(d)``.
        scale: float32, shape (n,), for codecs whose ``has_scale`` is true; else None.
    """

    vector: NDArray[Any]
    scale: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.vector)

    def take(self, rows: NDArray[np.integer] | NDArray[np.bool_] | slice) -> Stored:
        """Return some rows in the order given; a slice shares memory, an array copies."""
        return Stored(self.vector[rows], None if self.scale is None else self.scale[rows])


class Codec(ABC):
    """Way of storing vectors. The stored bytes of a row depend on that row alone.

    Attributes:
        name: name on the command line and in the header of a shard.
        dtype: dtype of a stored element.
        has_scale: True if a row has a scale beside its elements.
    """

    name: str
    dtype: np.dtype[Any]
    has_scale: ClassVar[bool] = False

    @property
    def codebook(self) -> str | None:
        """Name (sha256) of the codebook that the rows need to be read; None for most codecs."""
        return None

    def width(self, dimension: int) -> int:
        """Return the number of stored elements of a vector of ``dimension`` components."""
        return dimension

    def bytes_per_row(self, dimension: int) -> int:
        """Return the bytes of a vector of ``dimension`` components, its scale included."""
        return self.width(dimension) * self.dtype.itemsize + 4 * self.has_scale

    @abstractmethod
    def encode(self, vectors: Vectors) -> Stored:
        """Return vectors (n, d) float32 as stored rows.

        Raises:
            InputError: if a value is not finite or too large for the codec.
        """

    @abstractmethod
    def decode(self, stored: Stored) -> NDArray[np.floating]:
        """Return stored rows as vectors (n, d): float16 from the codec float16, else float32.

        Where storing changes nothing but the dtype, the result is the stored array itself, not a copy.
        """

    def decode_into(self, stored: Stored, rows: NDArray[np.integer], out: NDArray[np.floating]) -> None:
        """Write the vectors of some rows of ``stored`` into ``out`` (m, d)."""
        out[:] = self.decode(stored.take(rows))


def row_magnitudes(vectors: Vectors, codec: str, limit: float) -> NDArray[np.float32]:
    """Return the largest absolute component of each row, shape (n,).

    Raises:
        InputError: if a component is NaN, infinite or above ``limit``; the message names the row.
    """
    # Two reductions need no temporary of the batch's size. Both pass NaN on.
    magnitudes: NDArray[np.float32] = np.abs(np.maximum(vectors.max(axis=1), -vectors.min(axis=1)))
    bad = np.flatnonzero(~(magnitudes <= limit))
    if len(bad):
        largest = magnitudes[bad[0]]
        remedy = "codec float32" if np.isfinite(largest) else "compute_dtype float32, or leave it out"
        raise InputError(
            f"row {bad[0]} of {len(vectors)} vectors holds {largest:.6g}, the codec {codec} stores finite "
            f"numbers up to {limit:.6g}. Build with {remedy}."
        )
    return magnitudes


def measure(codec: Codec, vectors: Vectors, stored: Stored) -> dict[str, float]:
    """Return the mean and the worst cosine between vectors and what comes back of them.

    Rows of zeros have no direction and are left out; both cosines are 1 where no row is left. 1 - cosine is
    rounded to six digits, so that the same vectors give the same figures on every machine.

    Args:
        codec: the codec.
        vectors: float32, shape (n, d).
        stored: result of ``codec.encode(vectors)``.

    Returns:
        ``mean_cosine`` and ``worst_cosine``.
    """
    lost = np.empty(len(vectors))
    for start in range(0, len(vectors), _BLOCK_ROWS):
        block = slice(start, start + _BLOCK_ROWS)
        before, after = _unit(vectors[block]), _unit(codec.decode(stored.take(block)))
        # |a - b|^2 / 2 = 1 - cos of unit vectors, without cancellation.
        gap = np.subtract(before, after, out=before)
        lost[block] = np.where(after.any(axis=1), np.einsum("nd,nd->n", gap, gap) / 2, 1.0)
    lost = lost[vectors.any(axis=1)]
    mean, worst = (lost.mean(), lost.max()) if len(lost) else (0.0, 0.0)
    return {"mean_cosine": 1.0 - float(f"{mean:.6g}"), "worst_cosine": 1.0 - float(f"{worst:.6g}")}


def _unit(rows: NDArray[Any]) -> NDArray[np.float64]:
    wide = rows.astype(np.float64)
    norms = np.sqrt(np.einsum("nd,nd->n", wide, wide))[:, None]
    unit: NDArray[np.float64] = np.divide(wide, norms, out=wide, where=norms > 0)
    return unit
