"""The vectors of the texts of a part: of each teacher those that the cache lacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from embedcache.cache import Cache
from embedcache.check.progress import Meter
from embedcache.contract import Contract
from embedcache.keys import KeyArray
from embedcache.share.pulling.choice import PullChoice
from embedcache.share.pulling.outcome import TakenVectors
from embedcache.share.pulling.plan import Preparation
from embedcache.share.pulling.take_rows import RowsPlan, TakenRows, plan_rows, take_rows
from embedcache.share.rows.remote_keys import RemoteKeys
from embedcache.share.rows.whole_fetches import no_index_notes, no_ranges_notes


@dataclass(frozen=True)
class _LackingVectors:
    """The vectors of one teacher that the cache lacks.

    Attributes:
        contract: the teacher.
        remote_keys: all vectors that the remote has of it and the cache lacks.
        keys: keys of the texts whose vector the cache lacks.
    """

    contract: Contract
    remote_keys: RemoteKeys
    keys: KeyArray


@dataclass(frozen=True)
class VectorEstimate:
    """How many vectors some texts have, estimated before row indexes are fetched.

    Attributes:
        rows: how many there are at most.
        bytes: about what they take on the way, row indexes included.
        told: what is worth telling before they are fetched.
    """

    rows: int
    bytes: int
    told: tuple[str, ...]


def estimate_vectors(prepared: Preparation, texts: int) -> VectorEstimate:
    """Estimate what the vectors of all teachers take, for so many texts."""
    rows = size = 0
    several = [
        RemoteKeys.lacking(prepared.source, prepared.cache, prepared.stock, contract)
        for contract in prepared.plan.contracts.values()
    ]
    for remote_keys in several:
        wanted = min(texts, len(remote_keys))
        if wanted:
            rows += wanted
            shard_bytes = sum(shard.bytes for shard in remote_keys.shards)
            size += remote_keys.bytes_to_load() + -(-shard_bytes * wanted // len(remote_keys))
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
        self._lacking: list[_LackingVectors] = []
        for contract in prepared.plan.contracts.values():
            remote_keys = RemoteKeys.lacking(prepared.source, cache, prepared.stock, contract)
            lacking_keys = keys[cache.store(contract).locate(keys) < 0]
            self._lacking.append(_LackingVectors(contract, remote_keys, lacking_keys))
        # Row indexes are only fetched for teachers of which a vector is lacking.
        needed = [vectors.remote_keys for vectors in self._lacking if len(vectors.keys)]
        self.index_bytes = sum(remote_keys.bytes_to_load() for remote_keys in needed)
        self.told = no_index_notes(needed)

    def plan(self) -> list[RowsPlan]:
        """Return what will be fetched of each teacher; row indexes are fetched to find out.

        Raises:
            RemoteError: if a row index cannot be had, or is refused.
        """
        return [
            plan_rows(
                self._cache.store(vectors.contract),
                vectors.remote_keys,
                vectors.keys,
                codec=self._codec,
                jobs=self._jobs,
                meter=self._meter,
            )
            for vectors in self._lacking
        ]

    def take(self, plans: Sequence[RowsPlan], check_size: Callable[[int], None]) -> list[TakenVectors]:
        """Fetch what :meth:`plan` has returned, and return what became of each teacher's vectors.

        The cache has to have the teachers' contracts and names.

        Args:
            plans: what is fetched of each teacher.
            check_size: called where the remote serves no ranges, before whole shards are fetched instead,
                with the bytes that are then still to be fetched; raises if that is too much.

        Raises:
            InputError: if a vector does not fit the codec, or as ``check_size``.
            RemoteError: if something cannot be had, or is refused.
            StorageError: if the cache cannot be written; what has arrived stays.
        """
        results, unranged = [], 0
        names = {teacher.contract: teacher.name for teacher in reversed(self._cache.teachers())}
        for number, (vectors, plan) in enumerate(zip(self._lacking, plans, strict=True)):
            taken = TakenRows()
            of_next_teachers = sum(plan.bytes for plan in plans[number + 1 :])

            def check_with_next(size: int, more: int = of_next_teachers) -> None:
                check_size(size + more)

            if len(plan):
                store = self._cache.store(vectors.contract)
                try:
                    taken = take_rows(
                        store,
                        vectors.remote_keys,
                        plan,
                        jobs=self._jobs,
                        meter=self._meter,
                        check_size=check_with_next,
                    )
                finally:
                    store.finish()
            unranged += taken.unranged_shards
            results.append(
                TakenVectors(
                    teacher=names[vectors.contract],
                    present=len(self._keys) - len(vectors.keys),
                    taken=taken.rows,
                    missing=len(vectors.keys) - taken.rows,
                    bytes=taken.bytes,
                )
            )
        self.told += no_ranges_notes(self._where, unranged)
        return results
