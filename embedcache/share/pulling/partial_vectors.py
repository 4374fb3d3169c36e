"""The vectors of a part's texts: of each teacher those that the cache lacks, and no others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from embedcache.cache import Cache
from embedcache.check.progress import Meter
from embedcache.contract import Contract
from embedcache.keys import KeyArray
from embedcache.share.pulling.outcome import TakenVectors
from embedcache.share.pulling.plan import Preparation, PullChoice
from embedcache.share.pulling.take_rows import RowsPlan, TakenRows, plan_rows, take_rows
from embedcache.share.rows.remote_keys import RemoteKeys
from embedcache.share.rows.whole_fetches import no_index_notes, no_ranges_notes


@dataclass(frozen=True)
class _Wanted:
    """The vectors of one teacher that the cache lacks.

    Attributes:
        contract: the teacher.
        there: those that the remote has.
        keys: the texts' keys.
    """

    contract: Contract
    there: RemoteKeys
    keys: KeyArray


@dataclass(frozen=True)
class VectorEstimate:
    """What the vectors of some texts are before row indexes say which shards they stand in.

    Attributes:
        rows: how many there are at most.
        bytes: about what they take on the way, row indexes included.
        told: what is worth telling before they are fetched.
    """

    rows: int
    bytes: int
    told: tuple[str, ...]


def estimate_vectors(prepared: Preparation, texts: int) -> VectorEstimate:
    """Return what so many texts' vectors of all teachers are about to take."""
    rows = size = 0
    several = [
        RemoteKeys.lacking(prepared.source, prepared.cache, prepared.stock, contract)
        for contract in prepared.plan.contracts.values()
    ]
    for there in several:
        some = min(texts, len(there))
        if some:
            rows += some
            size += there.bytes_to_load() + -(
                -sum(shard.bytes for shard in there.shards) * some // len(there)
            )
    return VectorEstimate(rows, size, tuple(no_index_notes(several)))


class PartVectors:
    """The vectors of some texts, of all teachers that were asked for.

    Args:
        prepared: what is known of the remote.
        choice: what is wanted.
        cache: where they go.
        keys: of the texts, distinct.
        jobs: transfers at once.
        meter: counts what arrives.

    Attributes:
        index_bytes: what the row indexes take that have to be fetched for them.
        told: what is worth telling.
    """

    def __init__(
        self,
        prepared: Preparation,
        choice: PullChoice,
        cache: Cache,
        keys: KeyArray,
        jobs: int,
        meter: Meter,
    ) -> None:
        self._cache, self._codec, self._jobs, self._meter = cache, choice.codec, jobs, meter
        self._keys, self._where = keys, prepared.source.where
        self._wanted: list[_Wanted] = []
        for contract in prepared.plan.contracts.values():
            there = RemoteKeys.lacking(prepared.source, cache, prepared.stock, contract)
            lacking = keys[cache.store(contract).locate(keys) < 0]
            self._wanted.append(_Wanted(contract, there, lacking))
        # Where nothing is lacking nothing is looked up.
        needed = [one.there for one in self._wanted if len(one.keys)]
        self.index_bytes = sum(there.bytes_to_load() for there in needed)
        self.told = no_index_notes(needed)

    def plan(self) -> list[RowsPlan]:
        """Return what will be fetched of each teacher; row indexes are, to find it.

        Raises:
            RemoteError: if a row index cannot be had, or is refused.
        """
        return [
            plan_rows(
                self._cache.store(one.contract),
                one.there,
                one.keys,
                codec=self._codec,
                jobs=self._jobs,
                meter=self._meter,
            )
            for one in self._wanted
        ]

    def take(self, plans: Sequence[RowsPlan]) -> list[TakenVectors]:
        """Fetch what :meth:`plan` has returned, and return what became of each teacher's.

        The cache has to have the teachers' contracts and names.

        Raises:
            InputError: if a vector does not fit the codec.
            RemoteError: if something cannot be had, or is refused.
            StorageError: if the cache cannot be written; what has arrived stays.
        """
        done, unranged = [], 0
        names = {teacher.contract: teacher.name for teacher in reversed(self._cache.teachers())}
        for one, plan in zip(self._wanted, plans, strict=True):
            found = TakenRows()
            if len(plan):
                store = self._cache.store(one.contract)
                try:
                    found = take_rows(store, one.there, plan, jobs=self._jobs, meter=self._meter)
                finally:
                    store.finish()
            unranged += found.unranged_shards
            here, missing = len(self._keys) - len(one.keys), len(one.keys) - found.rows
            done.append(TakenVectors(names[one.contract], here, found.rows, missing, found.bytes))
        self.told += no_ranges_notes(self._where, unranged)
        return done
