"""Scaling of vectors that are compared by their cosines."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from embedcache.codecs import Vectors

_TINY = np.finfo(np.float32).tiny


def unit(vectors: Vectors) -> Vectors:
    """Return vectors, float32 (n, d), scaled to length one; a vector of zeros stays one."""
    norms = np.sqrt(np.einsum("nd,nd->n", vectors, vectors))[:, np.newaxis]
    scaled: Vectors = vectors / np.maximum(norms, _TINY)
    return scaled


def unit_rows(vectors: Vectors) -> NDArray[np.float64]:
    """Return ``vectors``, (n, d), none zero, scaled to length one in float64."""
    wide = vectors.astype(np.float64)
    scaled: NDArray[np.float64] = wide / np.linalg.norm(wide, axis=1, keepdims=True)
    return scaled
