"""Loss of a codec: cosine between vectors and what comes back of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedcache.codecs.base import Codec, Stored, Vectors

_BLOCK_ROWS = 1024


@dataclass(frozen=True)
class CodecError:
    """Mean and worst cosine over the rows; both are 1 where no row was measured."""

    mean_cosine: float
    worst_cosine: float

    def to_json(self) -> dict[str, float]:
        """Return the error as a JSON object."""
        return asdict(self)


def measure(codec: Codec, vectors: Vectors, stored: Stored | None = None) -> CodecError:
    """Measure what encoding and decoding vectors loses.

    Rows of zeros have no direction and are left out. 1 - cosine is rounded to six digits, so that the same
    vectors give the same figures on every machine.

    Args:
        codec: the codec.
        vectors: float32, shape (n, d).
        stored: result of ``codec.encode(vectors)``, where it is at hand.

    Raises:
        InputError: if the codec cannot store the vectors.
    """
    if stored is None:
        stored = codec.encode(vectors)
    blocks = (slice(start, start + _BLOCK_ROWS) for start in range(0, len(vectors), _BLOCK_ROWS))
    lost = [_lost(vectors[block], codec.decode(stored.take(block))) for block in blocks]
    losses = np.concatenate([np.empty(0), *lost])
    if not len(losses):
        return CodecError(1.0, 1.0)
    return CodecError(_cosine(losses.mean()), _cosine(losses.max()))


def _cosine(loss: float) -> float:
    return 1.0 - float(f"{loss:.6g}")


def _lost(vectors: Vectors, decoded: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return 1 - cosine of each row that is not zero."""
    directions = vectors.any(axis=1)
    before, after = _unit(vectors[directions]), _unit(decoded[directions])
    # |a - b|^2 / 2 = 1 - cos of unit vectors, without cancellation.
    gap = np.subtract(before, after, out=before)
    losses: NDArray[np.float64] = np.einsum("nd,nd->n", gap, gap) / 2
    losses[~after.any(axis=1)] = 1.0
    return losses


def _unit(rows: NDArray[Any]) -> NDArray[np.float64]:
    wide = rows.astype(np.float64)
    norms = np.sqrt(np.einsum("nd,nd->n", wide, wide))[:, None]
    unit: NDArray[np.float64] = np.divide(wide, norms, out=wide, where=norms > 0)
    return unit
