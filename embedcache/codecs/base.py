"""What every codec is: float32 vectors to stored rows and back, row by row and independent of the batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from embedcache.errors import InputError

Vectors = NDArray[np.float32]
"""Vectors as a C-ordered float32 array of shape (n, d)."""


@dataclass(frozen=True)
class Stored:
    """Rows as a codec keeps them.

    Attributes:
        vector: the codec's dtype, shape (n, w) with w = ``codec.width(d)``.
        scale: float32, shape (n,), for codecs whose ``has_scale`` is true; else None.
    """

    vector: NDArray[Any]
    scale: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.vector)

    def take(self, rows: NDArray[np.integer] | NDArray[np.bool_] | slice) -> Stored:
        """Return the rows asked for, in the order asked; a slice shares memory, an array copies."""
        return Stored(self.vector[rows], None if self.scale is None else self.scale[rows])


class Codec(ABC):
    """One way of storing vectors.

    A row's stored bytes depend on that row alone, never on the rows encoded with it.

    Attributes:
        name: as on the command line and in a shard's header.
        dtype: of a stored element.
        has_scale: whether a row carries a scale beside its elements.
        decoded: the dtype :meth:`decode` returns: float16 for the codec float16, else float32.
    """

    name: str
    dtype: np.dtype[Any]
    has_scale: ClassVar[bool] = False
    decoded: np.dtype[np.floating]

    @property
    def codebook(self) -> str | None:
        """The sha256 that names the codebook file the rows need to be read; None where they need none."""
        return None

    def width(self, dimension: int) -> int:
        """Return how many stored elements a vector of ``dimension`` components takes."""
        return dimension

    def bytes_per_row(self, dimension: int) -> int:
        """Return how many bytes a vector of ``dimension`` components takes, its scale included."""
        return self.width(dimension) * self.dtype.itemsize + 4 * self.has_scale

    @abstractmethod
    def encode(self, vectors: Vectors) -> Stored:
        """Return vectors (n, d) float32 as stored rows.

        Raises:
            InputError: if a value is not finite or too large for the codec.
        """

    @abstractmethod
    def decode(self, stored: Stored) -> NDArray[np.floating]:
        """Return stored rows as vectors (n, d) of the dtype ``decoded``.

        Where storing changes nothing but the dtype, the result is the stored array itself, not a copy.
        """

    def decode_into(self, stored: Stored, rows: NDArray[np.integer], out: NDArray[np.floating]) -> None:
        """Write the vectors of ``rows`` of ``stored``, which are all there, into ``out`` (m, d)."""
        out[:] = self.decode(stored.take(rows))


def row_magnitudes(vectors: Vectors) -> NDArray[np.float32]:
    """Return the largest absolute component of each row, shape (n,), and see that all are finite.

    Raises:
        InputError: if a component is NaN or infinite; the message names the row.
    """
    # Two reductions instead of abs().max(): no temporary of the batch's size. Both hand NaN on.
    magnitudes: NDArray[np.float32] = np.abs(np.maximum(vectors.max(axis=1), -vectors.min(axis=1)))
    bad = np.flatnonzero(~np.isfinite(magnitudes))
    if len(bad):
        raise InputError(
            f"row {bad[0]} of {len(vectors)} vectors holds {magnitudes[bad[0]]}: codecs keep finite numbers "
            "only; leave the row out, or encode its text again with --compute-dtype float32"
        )
    return magnitudes


def refuse_above(limit: float, magnitudes: NDArray[np.float32], name: str) -> None:
    """Raise :class:`InputError` where a row of the given magnitudes does not fit the codec ``name``."""
    if len(magnitudes) and magnitudes.max() > limit:
        raise InputError(
            f"a vector component of {magnitudes.max():.6g} does not fit the codec {name}, which ends at "
            f"{limit:.6g}; build with --codec float32"
        )
