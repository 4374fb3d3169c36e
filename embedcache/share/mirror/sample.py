"""A sample of what a mirror trains on is compared with the live teacher, where that is on this machine.

Digests say that vectors are as they were pushed, not that they are the teacher's. The notes are those that
pulls keep: what a pull into the mirror has compared is not compared again, and the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from embedcache.cache import Cache, CachedTeacher
from embedcache.check.live import Computing
from embedcache.check.verify.deep import (
    BAD,
    LEAST_SAMPLE,
    DeepLine,
    compare_vectors,
    in_other_batches,
    worst_line,
    wrong_shards,
)
from embedcache.contract import Contract
from embedcache.errors import ContractMismatchError, InputError, TeacherError
from embedcache.keys import key_array
from embedcache.sample_notes import SampleNotes, bad_shards, forget_lost
from embedcache.share.mirror.streamed import StreamedStore
from embedcache.share.pulling.models_at_hand import missing_model_note
from embedcache.share.pulling.sample import digest_of
from embedcache.share.pulling.sample_check import NOT_COMPARED, SampleCheck
from embedcache.share.pulling.sample_states import found_bad, found_good
from embedcache.sizes import counted

SAMPLE = 32
"""Texts that are encoded; as for a build that reads through to a remote."""

_ROWS_AT_ONCE = 1 << 18
_REMEDY = (
    "do without them by --skip-manifest DIGITS ('embedcache remote ls' shows the manifests) or "
    "--require-signature KEYFILE; --no-sample-check trains on them all the same"
)

TextsOf = Callable[[NDArray[np.int64]], Sequence[str]]
"""Returns the texts of rows, by their numbers."""


class MirrorSamples:
    """Samples of what a mirror has of a remote; to be made before any vectors come.

    Args:
        cache: the mirror.
        remote_id: the id of the remote.
        contracts: the teachers, by contract id.
    """

    def __init__(self, cache: Cache, remote_id: str, contracts: Mapping[str, Contract]) -> None:
        self._cache = cache
        self._notes = SampleNotes(cache, remote_id)
        for contract_id, contract in contracts.items():
            if self._notes.of(contract_id).bad:
                here = cache.container(contract).names()
                self._notes.revise(contract_id, partial(forget_lost, here=here))

    def compare(
        self,
        teacher: CachedTeacher,
        store: StreamedStore,
        positions: NDArray[np.integer],
        texts_of: TextsOf,
        computing: Computing,
    ) -> SampleCheck | None:
        """Compare a sample of some rows with the live teacher.

        It is drawn from shards that were not compared before; where none of these is among the rows', nothing
        is compared. Shards with other vectors than the teacher's are noted as bad.

        Args:
            teacher: the teacher.
            store: its vectors.
            positions: of the rows in the store; their shards are fetched where the sample is of them.
            texts_of: returns the texts of rows, by their places in ``positions``.
            computing: how to run the teacher.

        Returns:
            What came of it; None where there is nothing to tell.

        Raises:
            RemoteError: if a shard cannot be had, or is refused.
            StorageError: if there is no room for it.
        """
        note, names = self._notes.of(teacher.contract.id), store.shard_names
        rows = _rows_by_shard(store, positions)
        used = {names[number] for number in np.flatnonzero(rows).tolist()}
        if bad := used & bad_shards(self._cache, teacher.contract.id):
            return SampleCheck(teacher.name, BAD, 0, self._still_bad(teacher.name, len(bad)))
        fresh = used - note.known
        if not fresh:
            return None
        check = self._compare(teacher, store, fresh, rows, positions, texts_of, computing)
        if check.verdict == NOT_COMPARED:
            # Once is enough for what a run can do nothing about.
            told = digest_of([check.told, names])
            if note.told == told:
                return None
            self._notes.revise(teacher.contract.id, partial(replace, told=told))
        return check

    def _compare(
        self,
        teacher: CachedTeacher,
        store: StreamedStore,
        fresh: Collection[str],
        rows: NDArray[np.int64],
        positions: NDArray[np.integer],
        texts_of: TextsOf,
        computing: Computing,
    ) -> SampleCheck:
        """Compare shards that were not compared before, and note what came of it."""
        if rows.sum() < LEAST_SAMPLE:
            told = (
                f"{counted(int(rows.sum()), 'row')} of the remote's to compare with the live teacher, "
                f"expected at least {LEAST_SAMPLE}"
            )
            return SampleCheck(teacher.name, NOT_COMPARED, 0, told)
        if (missing := missing_model_note(self._cache, teacher, computing, "a run")) is not None:
            return SampleCheck(teacher.name, NOT_COMPARED, 0, missing)
        drawn = np.fromiter((name in fresh for name in store.shard_names[:-1]), np.bool_, len(rows))
        if rows[drawn].sum() < LEAST_SAMPLE:
            # Rows that were compared before stand beside those few.
            drawn = np.ones_like(drawn)
        places = _draw(store, positions, drawn, int(rows[drawn].sum()), self._notes.secret_number())
        texts = list(texts_of(places))
        shards = store.opened(np.unique(store.shards_at(positions[places].astype(np.int64))))
        try:
            encoder = computing.encoder(
                teacher.contract,
                spec=self._cache.model_source(teacher),
                name=teacher.name,
                shards=shards.shards,
            )
            live = encoder.encode(texts).vectors
            again = in_other_batches(lambda some: encoder.encode(some).vectors, texts)
        except (TeacherError, ContractMismatchError, InputError) as error:
            return SampleCheck(teacher.name, NOT_COMPARED, 0, str(error))
        dtype = str(encoder.provenance["compute_dtype"])
        rows_here = shards.locate(key_array(texts))
        line = worst_line(compare_vectors(shards, rows_here, live, again, dtype))
        if line.verdict == BAD:
            wrong = wrong_shards(shards, rows_here, live, again)
            self._notes.revise(teacher.contract.id, partial(found_bad, shards=wrong))
            return SampleCheck(teacher.name, BAD, len(texts), self._bad(teacher.name, line, len(texts)))
        self._notes.revise(teacher.contract.id, partial(found_good, shards=fresh, verdict=line.verdict))
        return SampleCheck(teacher.name, line.verdict, len(texts), line.meaning)

    def _bad(self, teacher: str, line: DeepLine, texts: int) -> str:
        return (
            f"the remote has other vectors than the teacher's of {teacher!r} ({line.measure}: "
            f"{line.stored:.2g} of {texts} texts, the teacher itself {line.noise:.2g}): nothing was trained "
            f"on them; {_REMEDY}"
        )

    def _still_bad(self, teacher: str, shards: int) -> str:
        return (
            f"an earlier pull or run found other vectors than the teacher's of {teacher!r}, and this one "
            f"would train on {counted(shards, 'shard')} of these: {_REMEDY}; 'embedcache rm teacher "
            f"{teacher} --bad --cache {self._cache.folder}' deletes them from the mirror"
        )


def _rows_by_shard(store: StreamedStore, positions: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return how many of some rows each shard of the remote has."""
    shards = len(store.shard_names)
    rows = np.zeros(shards, dtype=np.int64)
    for start in range(0, len(positions), _ROWS_AT_ONCE):
        numbers = store.shards_at(positions[start : start + _ROWS_AT_ONCE].astype(np.int64))
        rows += np.bincount(numbers, minlength=shards)
    # What is in the mirror alone did not come from the remote.
    return rows[:-1]


def _draw(
    store: StreamedStore, positions: NDArray[np.integer], drawn: NDArray[np.bool_], rows: int, seed: int
) -> NDArray[np.int64]:
    """Return the places of a sample of rows, spread evenly over those in some shards.

    Args:
        store: the store.
        positions: of all rows.
        drawn: for each shard of the remote, whether rows of it may be in the sample.
        rows: how many rows there are in these shards.
        seed: says which row is the first; whoever has pushed the shards must not know it.
    """
    count = min(SAMPLE, rows)
    ranks = ((np.arange(count) + np.random.default_rng(seed).random()) * rows / count).astype(np.int64)
    is_drawn = np.append(drawn, False)
    parts, seen = [], 0
    for start in range(0, len(positions), _ROWS_AT_ONCE):
        block = positions[start : start + _ROWS_AT_ONCE].astype(np.int64)
        places = start + np.flatnonzero(is_drawn[store.shards_at(block)])
        parts.append(places[ranks[(ranks >= seen) & (ranks < seen + len(places))] - seen])
        seen += len(places)
    return np.concatenate(parts)
