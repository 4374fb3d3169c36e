"""What comes out of an encoder: vectors with what was seen of each text, and where the time went."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from embedcache.codecs import Vectors


@dataclass
class EncodeTimes:
    """Where the time went, in seconds, and how much was done. Summed over threads, so parts may overlap."""

    tokenise: float = 0.0
    forward: float = 0.0
    rows: int = 0
    tokens: int = 0
    batches_halved: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(
        self, *, rows: int = 0, tokens: int = 0, forward: float = 0.0, tokenise: float = 0.0, halved: int = 0
    ) -> None:
        """Add to the counts; safe from several threads."""
        with self._lock:
            self.rows += rows
            self.tokens += tokens
            self.forward += forward
            self.tokenise += tokenise
            self.batches_halved += halved


@dataclass(frozen=True)
class EncodedTexts:
    """What a teacher made of n texts.

    Attributes:
        vectors: float32, shape (n, d).
        tokens: int32, shape (n,); tokens the teacher saw.
        truncated: bool, shape (n,); which texts it saw only the beginning of.
    """

    vectors: Vectors
    tokens: NDArray[np.int32]
    truncated: NDArray[np.bool_]
