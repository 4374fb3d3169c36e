"""What every vector store can do, whatever lies underneath."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from embedcache.codecs import Vectors
from embedcache.contract import Contract
from embedcache.keys import KeyArray

Positions = NDArray[np.int64]
"""Row numbers inside one store, valid as long as the store object lives; -1 means missing."""


@dataclass(frozen=True)
class VectorBatch:
    """Rows to be stored together.

    Attributes:
        keys: dtype ``V16``, shape (n,).
        vectors: float32, shape (n, d).
        tokens: int32, shape (n,); tokens the teacher saw of each text; 0 where that is not known.
        truncated: bool, shape (n,); which texts it saw only the beginning of.
        provenance: what may change last bits: compute dtype, device, library versions.
    """

    keys: KeyArray
    vectors: Vectors
    tokens: NDArray[np.int32]
    truncated: NDArray[np.bool_]
    provenance: Mapping[str, object] = field(default_factory=dict)


class VectorStore(Protocol):
    """Vectors of one teacher contract, addressed by key.

    Rows are only ever added. A batch appears as a whole or not at all.
    """

    @property
    def contract(self) -> Contract:
        """The contract of every vector in the store."""
        ...

    @property
    def codec_name(self) -> str:
        """How new vectors are stored."""
        ...

    def __len__(self) -> int:
        """Return the number of distinct keys."""
        ...

    def put(self, batch: VectorBatch) -> None:
        """Add the rows of ``batch``, durably; keys that are there already are harmless."""
        ...

    def locate(self, keys: KeyArray) -> Positions:
        """Return the position of each key, -1 where it is missing."""
        ...

    def gather(self, positions: Positions) -> NDArray[np.floating]:
        """Return the vectors at ``positions``, shape (n, d), as precise as they are stored.

        The dtype is float16 where everything is stored as float16, else float32.

        Raises:
            IndexError: if a position is -1 or past the end.
        """
        ...

    def vectors(self, positions: Positions) -> Vectors:
        """Return the vectors at ``positions`` as float32, shape (n, d)."""
        ...

    def seen(self, positions: Positions) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Return ``tokens`` and ``truncated`` of the rows at ``positions``, each of shape (n,)."""
        ...
