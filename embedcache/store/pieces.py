"""Pieces: small float32 shards under ``derived/``, for vectors that have no place in a store yet.

They are ordinary shards, named by their digest. A damaged piece is left out. A piece can be deleted at any
time: its texts are then encoded again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from embedcache.codecs import Codec, Stored, get_codec
from embedcache.contract import Contract
from embedcache.errors import EmbedCacheError, StorageError, UnreadableError
from embedcache.fsio import canonical_json, remove_file, write_bytes
from embedcache.keys import KeyArray
from embedcache.store.base import VectorBatch
from embedcache.store.containers import FolderShards
from embedcache.store.shard import Shard, open_shard, stored_shard

if TYPE_CHECKING:
    import pyarrow as pa

Wanted: TypeAlias = "Callable[[KeyArray], NDArray[np.bool_]]"
"""Returns the mask of the keys that are wanted, shape (n,)."""

_CODEC = "float32"
_NO_ERROR = {"mean_cosine": 1.0, "worst_cosine": 1.0}


class Pieces:
    """Pieces of one contract in a folder, which is created at the first write.

    Args:
        folder: the folder.
        contract: contract of the vectors; pieces of others are left out.

    Attributes:
        folder: the folder.
    """

    def __init__(self, folder: Path, contract: Contract) -> None:
        self.folder, self._files, self._contract = folder, FolderShards(folder), contract

    def names(self) -> list[str]:
        """Return the names of all pieces, sorted, none if they cannot be listed; none is opened."""
        with suppress(UnreadableError):
            return self._files.names()
        return []

    def open(self, names: Sequence[str], wanted: Wanted | None = None) -> Iterator[Shard]:
        """Yield the sound ones of the named pieces.

        Args:
            names: names of pieces.
            wanted: tells which keys are wanted; of pieces whose last key is not, only headers are read.

        Raises:
            UnreadableError: if a piece cannot be read.
        """
        opened = [found for name in names if (found := self._open(name)) is not None]
        if wanted is not None and opened:
            is_wanted = wanted(np.concatenate([piece.keys[-1:] for piece, _ in opened])).tolist()
            opened = [found for found, keep in zip(opened, is_wanted, strict=True) if keep]
        for piece, data in opened:
            is_whole = hashlib.sha256(data).hexdigest() == piece.name
            if is_whole and np.isfinite(piece.stored.vector).all():
                yield piece

    def _open(self, name: str) -> tuple[Shard, pa.Buffer] | None:
        """Return a piece of the contract and its bytes; its digest is not taken."""
        try:
            data = self._files.open(name)
            piece = open_shard(data, name, self._files.where(name), _find_codec)
            canonical_json(piece.header.provenance)  # of a stranger, it may have no spelling
        except UnreadableError:
            raise
        except (EmbedCacheError, OSError, ValueError):
            return None
        return (piece, data) if piece.header.contract == self._contract else None

    def add(self, batch: VectorBatch) -> Shard:
        """Write rows as one piece, durably.

        Raises:
            StorageError: if it cannot be written.
        """
        name, data = stored_shard(self._contract, get_codec(_CODEC), Stored(batch.vectors), batch, _NO_ERROR)
        # Always: a file of that name may be damaged.
        write_bytes(self._files.path(name), memoryview(data))
        return open_shard(data, name, self._files.where(name), _find_codec)

    def remove(self, name: str) -> None:
        """Delete a piece. Do nothing if it is missing or cannot be deleted."""
        with suppress(StorageError):
            remove_file(self._files.path(name))


def joined(pieces: Sequence[Shard]) -> VectorBatch:
    """Return the rows of pieces of one provenance, each key once."""
    batch = VectorBatch(
        keys=np.concatenate([piece.keys for piece in pieces]),
        vectors=np.concatenate([piece.stored.vector for piece in pieces]),
        tokens=np.concatenate([piece.tokens for piece in pieces]),
        truncated=np.concatenate([piece.truncated for piece in pieces]),
        provenance=pieces[0].header.provenance,
    )
    return batch[np.sort(np.unique(batch.keys, return_index=True)[1])]


def _find_codec(name: str, codebook: str | None) -> Codec:
    if name != _CODEC:
        raise ValueError(f"found codec {name}, expected {_CODEC}")
    return get_codec(name)
