"""Pieces: small float32 shards under ``derived/``, for vectors that have no place in a store yet.

They are shards like any other, named by their digest. Whoever finds a damaged piece leaves it out, and each
can be deleted at any time: its texts are then encoded again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from embedcache.codecs import Codec, Stored, get_codec
from embedcache.contract import Contract
from embedcache.errors import EmbedCacheError, StorageError, UnreadableError
from embedcache.fsio import remove_file, write_bytes
from embedcache.keys import KeyIndex
from embedcache.store.base import VectorBatch
from embedcache.store.containers import FolderShards
from embedcache.store.shard import Shard, open_shard, stored_shard

_CODEC = "float32"
_NO_ERROR = {"mean_cosine": 1.0, "worst_cosine": 1.0}


class Pieces:
    """Pieces of one contract in a folder, which is created at the first write.

    Args:
        folder: the folder.
        contract: contract of the vectors; pieces of others are left out.
    """

    def __init__(self, folder: Path, contract: Contract) -> None:
        self._files, self._contract = FolderShards(folder), contract

    def names(self) -> list[str]:
        """Return the names of all pieces, sorted, none if they cannot be listed; none is opened."""
        with suppress(UnreadableError):
            return self._files.names()
        return []

    def open(self, names: Sequence[str], wanted: KeyIndex | None = None) -> Iterator[Shard]:
        """Yield the sound ones of the named pieces.

        Args:
            names: names of pieces.
            wanted: open only pieces whose first key is among these; the others are not read.
        """
        for name in names:
            if (piece := self._open(name, wanted)) is not None:
                yield piece

    def _open(self, name: str, wanted: KeyIndex | None) -> Shard | None:
        with suppress(EmbedCacheError, OSError, ValueError):
            data = self._files.open(name)
            piece = open_shard(data, name, self._files.where(name), _find_codec)
            is_wanted = wanted is None or wanted.locate(piece.keys[:1])[0] >= 0
            is_ours = is_wanted and piece.header.contract == self._contract
            return piece if is_ours and hashlib.sha256(data).hexdigest() == name else None
        return None

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
        """Delete a piece; one that is gone, or cannot be deleted, is harmless."""
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
