"""Vectors that a build is still making: rows are looked up as their shards come, and waited for.

What is trained on does not depend on when that was: rows, their order and who is held out are known from the
corpus, which is whole before its first vector is encoded.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from distill.data.picked import PickedKeys
from distill.errors import DataError
from embedcache.bad_rows import BadRows
from embedcache.cache import Cache, CachedTeacher
from embedcache.contract import Contract
from embedcache.corpus.corpus import Corpus
from embedcache.keys import KeyArray
from embedcache.store import ShardStore
from embedcache.store.digests import FileNotes
from embedcache.store.index import open_index
from embedcache.store.reading_order import in_reading_order

_POLL_SECONDS = 0.5
_TELL_SECONDS = 30.0

OnWait = Callable[[int, int], None]
"""Called with the rows that have vectors, and all rows, while some are waited for."""


@dataclass(frozen=True)
class Patience:
    """How long vectors are waited for.

    Attributes:
        minutes: give up once no shard has come for so long.
        on_wait: called as waiting begins, and now and then until it ends.
    """

    minutes: float
    on_wait: OnWait = lambda there, rows: None


def open_begun(
    open_store: Callable[[Contract], ShardStore], teacher: CachedTeacher, patience: Patience, rows: int
) -> ShardStore:
    """Return the store of a teacher once it has a shard: before that nobody knows where they will lie.

    Args:
        open_store: opens it.
        teacher: the teacher.
        patience: how long to wait.
        rows: how many rows are waited for, to be told.

    Raises:
        DataError: if none came for too long.
    """
    began = time.monotonic()
    store = open_store(teacher.contract)
    if not store.shards:
        patience.on_wait(0, rows)
    while not store.shards:
        if time.monotonic() - began > 60 * patience.minutes:
            raise DataError(
                f"no vectors of teacher {teacher.name!r} came for {patience.minutes:g} minutes: see whether "
                "'embedcache build' for this corpus and teacher runs, and start the training again"
            )
        time.sleep(_POLL_SECONDS)
        store = open_store(teacher.contract)
    return store


class Awaited:
    """Rows of a corpus and their places in stores that a build is adding to.

    A key that stands in several shards is read from the one that was found first, as a rule the only one:
    a build encodes no text twice.

    Args:
        cache: the cache that they are in.
        teachers: the teachers.
        stores: their stores.
        corpus: the corpus, or the view of it that is encoded.
        rows: uint32, ascending; distinct rows, those held out among them.
        patience: how long to wait.

    Raises:
        InputError: if a pull has found some of the vectors that are there bad. Of what a pull brings beside a
            build that is known once it has ended, and told when the next shard has come.
    """

    def __init__(
        self,
        cache: Cache,
        teachers: Sequence[CachedTeacher],
        stores: Sequence[ShardStore],
        corpus: Corpus,
        rows: NDArray[np.uint32],
        patience: Patience,
    ) -> None:
        self._cache, self._teachers, self._stores, self._corpus = cache, teachers, stores, corpus
        self._rows, self._patience = rows, patience
        self._lock, self._interrupted = threading.Lock(), threading.Event()
        mask = np.zeros(len(corpus), dtype=np.bool_)
        mask[rows] = True
        keys = PickedKeys(list(corpus.iter_keys()), mask)
        # The file stays readable once it is deleted.
        with TemporaryDirectory(prefix="distill-awaited-") as folder:
            names = [part.sha256 for part in corpus.parts]
            self._finder = open_index(Path(folder), names, keys, FileNotes())
        self._positions = [np.full(len(rows), -1, dtype=np.int64) for _ in stores]
        self._seen = [0 for _ in stores]
        self._bad: dict[int, BadRows] = {}
        self._take_in()
        self._refuse_bad()

    def positions(self, rows: NDArray[np.integer]) -> list[NDArray[np.int64]]:
        """Return where the vectors of ``rows`` lie in each store, once they are there.

        Raises:
            DataError: if no shard came for too long; it says how many rows are missing.
            InputError: if a pull has found some of those that came bad.
        """
        return self._wait(np.searchsorted(self._rows, rows.astype(self._rows.dtype, copy=False)))

    def positions_of_keys(self, keys: KeyArray) -> list[NDArray[np.int64]]:
        """Return the same for the rows that have these keys.

        Raises:
            IndexError: if a key is of none of the rows.
            DataError: as :meth:`positions`.
        """
        places = self._finder.locate(keys)
        if (places < 0).any():
            raise IndexError("a key of none of the rows that are waited for")
        return self._wait(places)

    def interrupt(self) -> None:
        """End all waiting for good."""
        self._interrupted.set()

    def _wait(self, places: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        # One thread looks for shards at a time; the others find what it has found.
        with self._lock:
            came, told = time.monotonic(), 0.0
            while True:
                self._refuse_bad()
                found = [positions[places] for positions in self._positions]
                if all((each >= 0).all() for each in found):
                    return found
                now = time.monotonic()
                if self._take_in():
                    came = now
                    continue
                if now - came > 60 * self._patience.minutes:
                    raise self._gave_up()
                if not told or now - told > _TELL_SECONDS:
                    told = now
                    self._patience.on_wait(self._there(), len(self._rows))
                if self._interrupted.wait(_POLL_SECONDS):
                    raise DataError("vectors are not waited for any more: the training has ended")

    def _refuse_bad(self) -> None:
        for bad in self._bad.values():
            bad.refuse()

    def _there(self) -> int:
        return min(int((positions >= 0).sum()) for positions in self._positions)

    def _take_in(self) -> int:
        """Look up what has come since the last time; return how many shards that was."""
        came = 0
        for number, store in enumerate(self._stores):
            store.open_new()
            shards = store.shards
            if len(shards) == self._seen[number]:
                continue
            starts = np.cumsum([0, *map(len, shards)], dtype=np.int64)
            # Of a key in several shards the one that the store itself would give, if they came at once.
            new = {shards[place].name: int(starts[place]) for place in range(self._seen[number], len(shards))}
            for shard in in_reading_order(shards[self._seen[number] :]):
                start = new[shard.name]
                places = self._finder.locate(shard.keys)
                inside = np.flatnonzero(places >= 0)
                inside = inside[self._positions[number][places[inside]] < 0]
                # Of a key that stands twice in a shard the first row is read.
                self._positions[number][places[inside[::-1]]] = start + inside[::-1]
                came += 1
            # A pull marks what it has brought when it ends: rows that were there before may be bad by now.
            self._bad[number] = BadRows(self._cache, self._teachers[number].contract, store)
            self._bad[number].add(self._positions[number])
            self._seen[number] = len(shards)
        return came

    def _gave_up(self) -> DataError:
        missing = [int((positions < 0).sum()) for positions in self._positions]
        told = ", ".join(
            f"{count:,} of teacher {teacher.name!r}"
            for teacher, count in zip(self._teachers, missing, strict=True)
            if count
        )
        return DataError(
            f"of {len(self._rows):,} rows of {self._corpus.title} vectors are missing ({told}), and none "
            f"came for {self._patience.minutes:g} minutes: see whether 'embedcache build' for this corpus "
            "and teacher still runs, or start it again; then go on with --resume, or begin anew with "
            "a larger --wait-for-build"
        )
