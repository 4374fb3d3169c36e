"""Waiting rows: vectors that ``Cache.encode`` has computed, until there are enough for a shard.

They lie as pieces in ``derived/waiting/<contract id>``, and look-ups read them there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embedcache.codecs import Vectors
from embedcache.contract import Contract
from embedcache.errors import UnreadableError
from embedcache.fsio import canonical_json
from embedcache.keys import KEY_DTYPE, KeyArray, KeyIndex
from embedcache.store.base import Positions, VectorBatch
from embedcache.store.pieces import Pieces, joined
from embedcache.store.shard import Shard
from embedcache.store.store import ShardStore

SHARD_ROWS = 1024
"""Waiting rows that become a shard."""

_MOST_PIECES = 32


class WaitingRows:
    """Waiting rows of one contract. Any number of processes may add to them.

    Args:
        derived: the cache's folder of derived files.
        contract: the contract.

    Attributes:
        unread: error of a piece that the last ``refresh`` could not read.
    """

    def __init__(self, derived: Path, contract: Contract) -> None:
        self._pieces = Pieces(derived / "waiting" / contract.id, contract)
        self._listed: list[str] | None = None
        self._opened: list[Shard] = []
        self._index = KeyIndex(np.empty(0, KEY_DTYPE))
        self.unread: UnreadableError | None = None

    def __len__(self) -> int:
        """Return the number of rows, as of the last ``refresh``."""
        return len(self._index)

    def refresh(self) -> None:
        """Open pieces that other processes have added; close pieces that were deleted.

        A piece that cannot be read is tried again at the next call.
        """
        listed = self._pieces.names()
        # Until two listings agree: pieces that another process merges are gone before they are opened.
        while listed != self._listed or self.unread is not None:
            known = {piece.name: piece for piece in self._opened}
            opened, self.unread = [known[name] for name in listed if name in known], None
            try:
                opened += self._pieces.open([name for name in listed if name not in known])
            except UnreadableError as error:
                self.unread = error
            self._show(listed, opened)
            if self.unread is not None:
                return
            listed = self._pieces.names()

    def _show(self, listed: list[str], opened: list[Shard]) -> None:
        self._listed, self._opened = listed, opened
        self._index = KeyIndex(np.concatenate([np.empty(0, KEY_DTYPE), *(one.keys for one in opened)]))

    def locate(self, keys: KeyArray) -> Positions:
        """Return a number for each key, valid until rows are added or refreshed; -1 where it is missing."""
        return self._index.locate(keys)

    def vectors(self, positions: Positions) -> Vectors:
        """Return the vectors at ``positions``, none of them -1; float32 of shape (n, d)."""
        return np.concatenate([piece.stored.vector for piece in self._opened])[positions]

    def pieces_at(self, positions: Positions) -> list[tuple[Shard, int]]:
        """Return the piece that holds each row, and the row's number in it."""
        ends = np.cumsum([len(piece) for piece in self._opened])
        numbers = np.searchsorted(ends, positions, side="right")
        return [
            (piece, int(position - ends[number] + len(piece)))
            for position, number in zip(positions.tolist(), numbers.tolist(), strict=True)
            for piece in [self._opened[number]]
        ]

    def add(self, rows: VectorBatch) -> None:
        """Write rows, durably.

        Raises:
            StorageError: if they cannot be written.
        """
        piece = self._pieces.add(rows)
        self._replace([], [piece])
        if len(self._opened) > _MOST_PIECES:
            for batch, pieces in self._groups():
                merged = self._pieces.add(batch)
                self._replace(pieces, [merged])

    def store(self, store: ShardStore) -> None:
        """Put all rows that a store lacks into it, as shards of one provenance each, and forget them.

        Raises:
            StorageError: if the store cannot be written.
        """
        for batch, pieces in self._groups():
            store.put(batch[np.flatnonzero(store.locate(batch.keys) < 0)])
            self._replace(pieces, [])

    def _groups(self) -> list[tuple[VectorBatch, list[Shard]]]:
        """Return the rows of each provenance, each key once, and the pieces they lie in."""
        groups = defaultdict[bytes, list[Shard]](list)
        for piece in self._opened:
            groups[canonical_json(piece.header.provenance)].append(piece)
        return [(joined(pieces), pieces) for pieces in groups.values()]

    def _replace(self, old: Sequence[Shard], new: Sequence[Shard]) -> None:
        replaced, added = {piece.name for piece in old}, {piece.name for piece in new}
        for name in replaced - added:
            self._pieces.remove(name)
        others = [piece for piece in self._opened if piece.name not in replaced | added]
        listed = sorted({*(self._listed or ())} - replaced | added)
        self._show(listed, [*others, *new])


def find_rows(store: ShardStore, waiting: WaitingRows, keys: KeyArray) -> tuple[NDArray[np.bool_], Vectors]:
    """Return a mask of the keys that are stored or wait, shape (n,), and their vectors, float32 (m, d).

    Raises:
        UnreadableError: if a key is missing, and a waiting piece could not be read.
    """
    positions = store.locate(keys)
    is_stored = positions >= 0
    if is_stored.all():
        return is_stored, store.vectors(positions)
    places = waiting.locate(keys)
    is_there = is_stored | (places >= 0)
    if waiting.unread is not None and not is_there.all():
        raise waiting.unread
    vectors = np.empty((len(keys), store.contract.dimension), np.float32)
    vectors[is_stored] = store.vectors(positions[is_stored])
    if (waits := is_there & ~is_stored).any():
        vectors[waits] = store.as_stored(waiting.vectors(places[waits]))
    return is_there, vectors[is_there]
