"""Protocols of stores and of the containers of their shards, and the batch of rows that is put into them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from embedcache.codecs import Vectors
from embedcache.contract import Contract
from embedcache.keys import KeyArray

if TYPE_CHECKING:
    import pyarrow as pa

Positions = NDArray[np.int64]
"""Row numbers inside one store, valid as long as the store object lives; -1 means missing."""

_NAME = re.compile(r"[0-9a-f]{64}")


def is_shard_name(name: str) -> bool:
    """Return whether ``name`` can be a shard's: 64 hexadecimal digits."""
    return _NAME.fullmatch(name) is not None


@dataclass(frozen=True)
class VectorBatch:
    """Rows to be stored together.

    Attributes:
        keys: dtype ``V16``, shape (n,).
        vectors: float32, shape (n, d).
        tokens: int32, shape (n,); tokens the teacher saw of each text; 0 where that is not known.
        truncated: bool, shape (n,); True for texts of which it saw only the beginning.
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
        """Codec of new vectors."""
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


class ShardContainer(Protocol):
    """Set of immutable shards, by name. Two writers of the same shard both succeed."""

    @property
    def kind(self) -> str:
        """``arrow``, ``lmdb`` or ``memory``."""
        ...

    def names(self) -> list[str]:
        """Return the names of all shards, sorted."""
        ...

    def open(self, name: str) -> pa.Buffer:
        """Return the bytes of a shard, mapped where that can be.

        Raises:
            CorruptCacheError: if they cannot be read.
        """
        ...

    def add(self, name: str, data: pa.Buffer) -> None:
        """Store ``data`` under ``name``, durably; harmless where it is there.

        Raises:
            StorageError: if there is no room or no permission; nothing is half stored then.
        """
        ...

    def remove(self, name: str) -> None:
        """Delete a shard; harmless where it is gone. Buffers of its bytes stay as they are."""
        ...

    def where(self, name: str) -> str:
        """Return the place of a shard, for messages."""
        ...

    def find_corrupt(self, names: Sequence[str]) -> list[str]:
        """Return those of ``names`` whose bytes have another digest; what is known is not read again."""
        ...

    def finish(self) -> None:
        """Note that a writer has added all it wanted to."""
        ...
