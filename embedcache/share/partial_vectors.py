"""The vectors of a part's texts: of each teacher those that the cache lacks, and no others."""

from __future__ import annotations

from dataclasses import dataclass

from embedcache.cache import Cache
from embedcache.check.progress import Meter
from embedcache.contract import Contract
from embedcache.keys import KeyArray
from embedcache.share.outcome import TakenVectors
from embedcache.share.pull_plan import Preparation, PullChoice
from embedcache.share.recode import sources_of
from embedcache.share.remote_keys import RemoteKeys
from embedcache.share.take_rows import plan_rows, take_rows


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


def estimate_vectors(prepared: Preparation, texts: int) -> tuple[int, int]:
    """Return how many vectors so many texts have at most, and about what they take on the way.

    Which shards they stand in is not known before row indexes are here, which count too.
    """
    rows = size = 0
    for contract_id in prepared.plan.contracts:
        there = _keys_there(prepared, prepared.cache, contract_id)
        some = min(texts, len(there))
        if some:
            rows += some
            size += there.bytes_to_load() + -(
                -sum(shard.bytes for shard in there.shards) * some // len(there)
            )
    return rows, size


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
        self._keys = keys
        self._wanted: list[_Wanted] = []
        for contract_id, contract in prepared.plan.contracts.items():
            there = _keys_there(prepared, cache, contract_id)
            lacking = keys[cache.store(contract).locate(keys) < 0]
            self._wanted.append(_Wanted(contract, there, lacking))
        # Where nothing is lacking nothing is looked up.
        self.index_bytes = sum(one.there.bytes_to_load() for one in self._wanted if len(one.keys))

    def plan(self) -> int:
        """Return what the rows take that will be fetched; row indexes are, to find them.

        Raises:
            RemoteError: if a row index cannot be had, or is refused.
        """
        return sum(
            plan_rows(
                self._cache.store(one.contract),
                one.there,
                one.keys,
                codec=self._codec,
                jobs=self._jobs,
                meter=self._meter,
            ).bytes
            for one in self._wanted
            if len(one.keys)
        )

    def take(self) -> tuple[list[TakenVectors], list[str]]:
        """Fetch them and return what became of each teacher's, and what is worth telling.

        The cache has to have the teachers' contracts and names.

        Raises:
            InputError: if a vector does not fit the codec.
            RemoteError: if something cannot be had, or is refused.
            StorageError: if the cache cannot be written; what has arrived stays.
        """
        done, told = [], []
        names = {teacher.contract: teacher.name for teacher in reversed(self._cache.teachers())}
        for one in self._wanted:
            taken, size = 0, 0
            if len(one.keys):
                store = self._cache.store(one.contract)
                try:
                    found = take_rows(
                        store, one.there, one.keys, codec=self._codec, jobs=self._jobs, meter=self._meter
                    )
                finally:
                    store.finish()
                taken, size = found.rows, found.bytes
                told += _told(names[one.contract], len(one.there.fetched_whole), found.unranged_shards)
            here = len(self._keys) - len(one.keys)
            missing = len(one.keys) - taken
            done.append(TakenVectors(names[one.contract], here, taken, missing, size))
        return done, told


def _keys_there(prepared: Preparation, cache: Cache | None, contract_id: str) -> RemoteKeys:
    """Return the keys of the shards of a teacher that the cache has neither as they are nor converted."""
    here: set[str] = set()
    if cache is not None:
        container = cache.container(prepared.plan.contracts[contract_id])
        here = {*container.names(), *sources_of(container)}
    return RemoteKeys(prepared.source, cache, prepared.stock, contract_id, without=here)


def _told(teacher: str, unindexed: int, unranged: int) -> list[str]:
    told = []
    if unindexed:
        told.append(
            f"{unindexed:,} shards of {teacher} have no row index and were fetched whole to find rows in: "
            "push them again with this embedcache to give them one"
        )
    if unranged:
        told.append(
            f"{unranged:,} shards of {teacher} were fetched whole for some of their rows: the remote gives "
            "no parts of files"
        )
    return told
