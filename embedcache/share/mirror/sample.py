"""A sample of what a mirror trains on is compared with the live teacher, where that is on this machine.

Digests say that vectors are as they were pushed, not that they are the teacher's. The notes are those that
pulls keep: what a pull into the mirror has compared is not compared again, and the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

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
)
from embedcache.codecs import Vectors
from embedcache.contract import Contract
from embedcache.errors import ContractMismatchError, InputError, TeacherError
from embedcache.keys import key_array
from embedcache.reuse import shard_places
from embedcache.sample_notes import SampleNote, SampleNotes
from embedcache.share.mirror.streamed import StreamedStore
from embedcache.share.pulling.sample import NOT_COMPARED, SampleCheck, digest_of, missing_model_note
from embedcache.share.pulling.sample_states import forget_lost, found_bad, found_good
from embedcache.sizes import counted
from embedcache.store import Positions, ShardStore

SAMPLE = 32
"""Texts that are encoded; as for a build that reads through to a remote."""

_ROWS_AT_ONCE = 1 << 18
# Which shards of a bad sample are bad: a row may be so many times as far from the teacher's as its codec and
# other batches make it, and so much beside, which another compute dtype does not reach.
_TIMES_NOISE, _BESIDE = 3.0, 0.1
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
            note = self._notes.of(contract_id)
            if note.bad:
                self._notes.add({contract_id: forget_lost(note, cache.container(contract).names())})

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
        if bad := used & note.bad:
            return SampleCheck(teacher.name, BAD, 0, self._still_bad(teacher.name, len(bad)))
        fresh = used - note.known
        if not fresh:
            return None
        check, note = self._compare(teacher, store, note, fresh, rows, positions, texts_of, computing)
        if check is not None and check.verdict == NOT_COMPARED:
            # Once is enough for what a run can do nothing about.
            told = digest_of([check.told, names])
            check, note = (None, note) if note.told == told else (check, replace(note, told=told))
        self._notes.add({teacher.contract.id: note})
        return check

    def _compare(
        self,
        teacher: CachedTeacher,
        store: StreamedStore,
        note: SampleNote,
        fresh: Collection[str],
        rows: NDArray[np.int64],
        positions: NDArray[np.integer],
        texts_of: TextsOf,
        computing: Computing,
    ) -> tuple[SampleCheck | None, SampleNote]:
        """Return what came of comparing shards that were not compared before, and what is known then."""
        if rows.sum() < LEAST_SAMPLE:
            told = (
                f"{counted(int(rows.sum()), 'row')} of the remote's to compare with the live teacher, "
                f"expected at least {LEAST_SAMPLE}"
            )
            return SampleCheck(teacher.name, NOT_COMPARED, 0, told), note
        if (missing := missing_model_note(self._cache, teacher, computing, "a run")) is not None:
            return SampleCheck(teacher.name, NOT_COMPARED, 0, missing), note
        drawn = np.fromiter((name in fresh for name in store.shard_names[:-1]), np.bool_, len(rows))
        if rows[drawn].sum() < LEAST_SAMPLE:
            # Rows that were compared before stand beside those few.
            drawn = np.ones_like(drawn)
        places = _draw(store, positions, drawn, int(rows[drawn].sum()))
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
            return SampleCheck(teacher.name, NOT_COMPARED, 0, str(error)), note
        dtype = str(encoder.provenance["compute_dtype"])
        rows_here = shards.locate(key_array(texts))
        line = worst_line(compare_vectors(shards, rows_here, live, again, dtype))
        if line.verdict == BAD:
            note = found_bad(note, _bad_shards(shards, rows_here, live, again))
            return SampleCheck(teacher.name, BAD, len(texts), self._bad(teacher.name, line, len(texts))), note
        check = SampleCheck(teacher.name, line.verdict, len(texts), line.meaning)
        return check, found_good(note, fresh, line.verdict)

    def _bad(self, teacher: str, line: DeepLine, texts: int) -> str:
        return (
            f"the remote has other vectors than the teacher's of {teacher!r} ({line.measure}: "
            f"{line.stored:.2g} of {texts} texts, the teacher itself {line.noise:.2g}): nothing was trained "
            f"on them; {_REMEDY}"
        )

    def _still_bad(self, teacher: str, shards: int) -> str:
        return (
            f"an earlier sample found other vectors than the teacher's of {teacher!r}, and the run would "
            f"train on {counted(shards, 'shard')} that came with them: {_REMEDY}; 'embedcache rm teacher "
            f"{teacher} --cache {self._cache.folder}' takes away what has come"
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
    store: StreamedStore, positions: NDArray[np.integer], drawn: NDArray[np.bool_], rows: int
) -> NDArray[np.int64]:
    """Return the places of a sample of rows, spread evenly over those in some shards.

    Args:
        store: the store.
        positions: of all rows.
        drawn: for each shard of the remote, whether rows of it may be in the sample.
        rows: how many rows there are in these shards.
    """
    ranks = np.unique(np.linspace(0, rows - 1, min(SAMPLE, rows)).astype(np.int64))
    is_drawn = np.append(drawn, False)
    parts, seen = [], 0
    for start in range(0, len(positions), _ROWS_AT_ONCE):
        block = positions[start : start + _ROWS_AT_ONCE].astype(np.int64)
        places = start + np.flatnonzero(is_drawn[store.shards_at(block)])
        parts.append(places[ranks[(ranks >= seen) & (ranks < seen + len(places))] - seen])
        seen += len(places)
    return np.concatenate(parts)


def _bad_shards(shards: ShardStore, positions: Positions, live: Vectors, again: Vectors) -> frozenset[str]:
    """Return the shards that rows of a bad sample are wrong in; all, where none is by itself.

    Args:
        shards: the shards that the sample is of.
        positions: the rows of the sample.
        live: what the teacher returns for their texts.
        again: the same, computed in other batches.
    """
    stored = shards.vectors(positions)
    numbers, _ = shard_places(shards, positions)
    bad = set()
    for number in np.unique(numbers).tolist():
        mine, shard = numbers == number, shards.shards[number]
        noise = _largest_error(shard.codec.decode(shard.codec.encode(live[mine])), again[mine])
        if _largest_error(stored[mine], live[mine]) > _TIMES_NOISE * noise + _BESIDE:
            bad.add(shard.name)
    return frozenset(bad or (shard.name for shard in shards.shards))


def _largest_error(found: Vectors, expected: Vectors) -> float:
    """Return how far a row is at most from the one expected, relative to the length of that."""
    lengths = np.maximum(np.linalg.norm(expected, axis=1), np.finfo(np.float32).tiny)
    return float((np.linalg.norm(found - expected, axis=1) / lengths).max())
