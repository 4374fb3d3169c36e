"""Pending work: encoded batches of unfinished shards, so that a killed build loses half a minute at most.

While a shard is being encoded, its finished batches are written to ``derived/pending/<contract id>`` every
``KEEP_SECONDS``. The same build run again forms the same batches and takes those from there, so its shards
are the same to the byte. A piece is deleted once its rows are stored.
"""

from __future__ import annotations

import shutil
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from embedcache.codecs import Vectors
from embedcache.errors import EmbedCacheError, StorageError, UnreadableError
from embedcache.fsio import canonical_json
from embedcache.keys import KeyArray, key_array
from embedcache.store.base import VectorBatch
from embedcache.store.pieces import Pieces, Wanted, joined
from embedcache.store.shard import Shard
from embedcache.store.store import ShardStore
from embedcache.teacher import canary

if TYPE_CHECKING:
    from embedcache.teacher.batching import EncodedTexts
    from embedcache.teacher.text_encoder import TextEncoder

KEEP_SECONDS = 30.0
"""Seconds of the teacher's work that a kill may cost."""

_BATCHES = "batches"
"""Field of a piece's provenance: rows of each of its batches, separated by blanks."""


class PendingWork:
    """Keeper of the batches of one build; see ``embedcache.teacher.text_encoder.BatchKeeper``.

    A batch is reused only if its texts and the provenance are equal. Used as a context manager, it writes all
    finished batches when an error ends the block.

    Args:
        derived: the cache's folder of derived files.
        store: the store that the vectors go to in the end.
        encoder: the teacher.
        wanted: tells which keys are of rows that will be encoded; pieces of other rows are left alone.
    """

    def __init__(self, derived: Path, store: ShardStore, encoder: TextEncoder, wanted: Wanted) -> None:
        self._pieces, self._store, self._encoder = pieces_of(derived, store), store, encoder
        self._provenance = canonical_json(encoder.provenance)
        self._canary_rows = 0 if encoder.canary is None else len(canary.TEXTS)
        self._batches: dict[bytes, Vectors] = {}
        self._written: dict[str, KeyArray] = {}
        self._waiting: list[tuple[Sequence[str], EncodedTexts, NDArray[np.int64]]] = []
        self._kept = time.monotonic()
        for piece in _readable(self._pieces, wanted):
            if canonical_json(_without_batches(piece)) == self._provenance and _is_of_model(
                piece, encoder.canary
            ):
                self._written[piece.name] = piece.keys[self._canary_rows :]
                with suppress(ValueError):  # of a piece that only looks like one
                    self._read(piece)

    def _read(self, piece: Shard) -> None:
        start = self._canary_rows
        for rows in str(piece.header.provenance.get(_BATCHES, "")).split():
            end = start + int(rows)
            self._batches[piece.keys[start:end].tobytes()] = piece.stored.vector[start:end]
            start = end

    def find(self, texts: Sequence[str]) -> Vectors | None:
        """Return the vectors of a batch that was encoded before, float32 of shape (n, d); else None."""
        return self._batches.get(key_array(texts).tobytes()) if self._batches else None

    def add(self, texts: Sequence[str], encoded: EncodedTexts, batch: NDArray[np.int64]) -> None:
        """Take an encoded batch: the rows ``batch`` of a window."""
        self._waiting.append((texts, encoded, batch))

    def keep_if_due(self) -> None:
        """Write the batches taken so far if ``KEEP_SECONDS`` have passed; errors as ``keep``.

        On a full disk nothing is written: the shard itself will say so.
        """
        if time.monotonic() - self._kept >= KEEP_SECONDS:
            with suppress(StorageError):
                self.keep()

    def keep(self, *, retries: int | None = None) -> None:
        """Write the batches taken so far, unless the disk then lacks the room for the shard itself.

        Batches with NaN or infinity are left out. Most builds store a shard before anything is written here.

        Args:
            retries: retries of the canary request of a served teacher; default: as for texts.

        Raises:
            ContractMismatchError: if the server's model has changed; nothing is written.
            ServedTeacherError: if the server does not answer.
            StorageError: if they cannot be written.
        """
        self._kept = time.monotonic()
        self._waiting = [one for one in self._waiting if np.isfinite(one[1].vectors[one[2]]).all()]
        if not self._waiting or not self._has_room():
            return
        self._encoder.confirm(retries=retries)
        keys = [key_array([texts[row] for row in batch]) for texts, _, batch in self._waiting]
        rows = VectorBatch(
            keys=np.concatenate(keys),
            vectors=np.concatenate([one.vectors[batch] for _, one, batch in self._waiting]),
            tokens=np.concatenate([one.tokens[batch] for _, one, batch in self._waiting]),
            truncated=np.concatenate([one.truncated[batch] for _, one, batch in self._waiting]),
            provenance={**self._encoder.provenance, _BATCHES: " ".join(str(len(one)) for one in keys)},
        )
        if self._encoder.canary is not None:
            rows = rows.with_canary(key_array(canary.TEXTS), self._encoder.canary)
        piece = self._pieces.add(rows)
        self._waiting = []
        self._written[piece.name] = piece.keys[self._canary_rows :]

    def _has_room(self) -> bool:
        texts, encoded, _ = self._waiting[0]
        rows = len(texts) + sum(len(batch) for _, _, batch in self._waiting)
        place = next(one for one in (self._pieces.folder, *self._pieces.folder.parents) if one.is_dir())
        return bool(shutil.disk_usage(place).free > rows * encoded.vectors.shape[1] * 4)

    def __enter__(self) -> PendingWork:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Write the batches taken so far where the work is stopped; after Ctrl-C, say how many are kept."""
        if error is None:
            return
        with suppress(EmbedCacheError):
            self.keep(retries=0)
        rows = sum(map(len, self._written.values()))
        if isinstance(error, KeyboardInterrupt) and rows:
            raise KeyboardInterrupt(
                f"run the same command again: {rows:,} rows of unfinished shards are kept"
            ) from error

    def stored(self) -> None:
        """Delete what the store holds by now; called after each window."""
        self._waiting, self._kept = [], time.monotonic()
        for name, keys in list(self._written.items()):
            if (self._store.locate(keys) >= 0).all():
                self._pieces.remove(name)
                del self._written[name]


def store_pending(
    derived: Path,
    store: ShardStore,
    shard_rows: int,
    compute_dtype: str = "auto",
    served: Vectors | None = None,
) -> None:
    """Store what stopped builds left pending, as shards of their own.

    Several processes cut different batches in each run and cannot reuse them.

    Args:
        derived: the cache's folder of derived files.
        store: receives the rows.
        shard_rows: most rows of a shard.
        compute_dtype: compute dtype of the rows to store; ``auto``: any.
        served: of a served teacher, the canary's vectors now.

    Raises:
        StorageError: if the store cannot be written.
    """
    pieces, groups = pieces_of(derived, store), defaultdict[bytes, list[Shard]](list)
    found = [
        piece
        for piece in _readable(pieces)
        if _is_of_model(piece, served)
        and compute_dtype in ("auto", piece.header.provenance.get("compute_dtype"))
    ]
    for piece in found:
        groups[canonical_json(_without_batches(piece))].append(piece)
    for group in groups.values():
        batch = replace(joined(group), provenance=_without_batches(group[0]))
        batch = batch[np.flatnonzero(store.locate(batch.keys) < 0)]
        for start in range(0, len(batch.keys), shard_rows):
            store.put(batch[start : start + shard_rows])
    for piece in found:
        pieces.remove(piece.name)


def pieces_of(derived: Path, store: ShardStore) -> Pieces:
    """Return the pending pieces of a store."""
    return Pieces(derived / "pending" / store.contract.id, store.contract)


def _readable(pieces: Pieces, wanted: Wanted | None = None) -> list[Shard]:
    """Return the sound pieces; none if one of them cannot be read: their rows are encoded again."""
    with suppress(UnreadableError):
        return list(pieces.open(pieces.names(), wanted))
    return []


def _is_of_model(piece: Shard, served: Vectors | None) -> bool:
    """Return whether a piece is of the model that a server runs now, or of a model in this process."""
    return served is None or canary.vouches(piece.keys, piece.stored.vector, served)


def _without_batches(piece: Shard) -> dict[str, object]:
    return {name: value for name, value in piece.header.provenance.items() if name != _BATCHES}
