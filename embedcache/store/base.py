"""Container of shards, and the batch of rows that is put into a store."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from embedcache.codecs import Vectors
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
        provenance: facts that may change last bits: compute dtype, device, library versions.
    """

    keys: KeyArray
    vectors: Vectors
    tokens: NDArray[np.int32]
    truncated: NDArray[np.bool_]
    provenance: Mapping[str, object] = field(default_factory=dict)

    def with_canary(self, keys: KeyArray, vectors: Vectors) -> VectorBatch:
        """Return the rows with a served teacher's canary before them, which identifies the model."""
        return VectorBatch(
            keys=np.concatenate([keys, self.keys]),
            vectors=np.concatenate([vectors, self.vectors]),
            tokens=np.concatenate([np.zeros(len(keys), np.int32), self.tokens]),
            truncated=np.concatenate([np.zeros(len(keys), np.bool_), self.truncated]),
            provenance=self.provenance,
        )

    def __getitem__(self, rows: NDArray[np.int64] | slice) -> VectorBatch:
        """Return some of the rows."""
        columns = self.keys[rows], self.vectors[rows], self.tokens[rows], self.truncated[rows]
        return VectorBatch(*columns, self.provenance)


class ShardContainer(ABC):
    """Set of immutable shards, by name. Two writers of the same shard both succeed.

    Attributes:
        kind: ``arrow``, ``lmdb`` or ``memory``.
    """

    kind: ClassVar[str]

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of all shards, sorted."""

    @abstractmethod
    def open(self, name: str) -> pa.Buffer:
        """Return the bytes of a shard, mapped if they lie in a file.

        Raises:
            CorruptCacheError: if they cannot be read.
        """

    def size(self, name: str) -> int:
        """Return the number of bytes of a shard; errors as ``open``."""
        return int(self.open(name).size)

    @abstractmethod
    def add(self, name: str, data: pa.Buffer) -> None:
        """Store ``data`` under ``name``, durably; a shard that is stored already is harmless.

        Raises:
            StorageError: if there is no room or no permission; nothing is half stored then.
        """

    @abstractmethod
    def remove(self, name: str) -> None:
        """Delete a shard, which may be gone already. Buffers of its bytes stay as they are."""

    @abstractmethod
    def where(self, name: str) -> str:
        """Return the place of a shard, for messages."""

    def find_corrupt(self, names: Sequence[str]) -> list[str]:
        """Return those of ``names`` that are missing or whose bytes have another digest.

        Each is read once on this machine.
        """
        return []

    def finish(self) -> None:  # noqa: B027 - most containers have nothing to do
        """Note that a writer has added all of its shards."""
