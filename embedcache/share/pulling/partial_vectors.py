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
from embedcache.share.pulling.take_rows import WHOLE_SHARE, RowsPlan, TakenRows, plan_rows, take_rows
from embedcache.share.rows.remote_keys import RemoteKeys
from embedcache.share.rows.row_ranges import scattered_bytes
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
        bytes: about what they take on the way, with row indexes and codebooks, if they are neighbours.
        most_bytes: about what they take if they lie apart: of each its blocks are fetched.
        least_bytes: how much of that is fetched in any case.
        told: what is worth telling before they are fetched.
    """

    rows: int
    bytes: int
    most_bytes: int
    least_bytes: int
    told: tuple[str, ...]


def estimate_vectors(
    prepared: Preparation, codec: str | None, texts: int, keys: KeyArray | None
) -> VectorEstimate:
    """Estimate what the vectors of all teachers take; if the cache has what tells, it is no estimate.

    Args:
        prepared: what is known of the remote.
        codec: how vectors are to be kept; None: as they are.
        texts: how many texts there are at most.
        keys: of the texts, distinct; None where they are not known yet.

    Raises:
        RemoteError: if a row index that is here is refused.
    """
    rows = size = apart = least = 0
    incomplete = []
    for contract in prepared.plan.contracts.values():
        cache = prepared.cache
        remote_keys = RemoteKeys.lacking(prepared.source, cache, prepared.stock, contract)
        lacking = keys
        if cache is not None and keys is not None:
            lacking = keys[cache.store(contract).locate(keys) < 0]
        most = min(texts if lacking is None else len(lacking), len(remote_keys))
        if not most:
            continue
        index_bytes = remote_keys.bytes_to_load()
        if cache is not None and lacking is not None and not index_bytes:
            plan = plan_rows(cache.store(contract), remote_keys, lacking, codec=codec)
            rows, size = rows + len(plan), size + plan.bytes
            apart, least = apart + plan.bytes, least + plan.bytes
            continue
        incomplete.append(remote_keys)
        shard_bytes = sum(shard.bytes for shard in remote_keys.shards)
        book_bytes = remote_keys.codebook_bytes(prepared.stock.codebooks(contract.id))
        rows += most
        size += index_bytes + book_bytes + -(-shard_bytes * most // len(remote_keys))
        apart += index_bytes + book_bytes + _bytes_apart(remote_keys, most)
        # Where it is known that a vector is lacking, all row indexes are looked at.
        if lacking is not None or cache is None or not len(cache.store(contract)):
            least += index_bytes
    return VectorEstimate(rows, size, apart, least, tuple(no_index_notes(incomplete)))


def _bytes_apart(remote_keys: RemoteKeys, wanted: int) -> int:
    """Return about how many bytes rows take that lie anywhere in the shards of a teacher."""
    share = wanted / len(remote_keys)
    if share >= WHOLE_SHARE:
        return sum(shard.bytes for shard in remote_keys.shards)
    shards = [shard for shard in remote_keys.shards if shard.rows]
    return sum(scattered_bytes(shard.bytes, shard.rows, share * shard.rows) for shard in shards)


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
        sizes = [plan.bytes for plan in plans]
        names = {teacher.contract: teacher.name for teacher in reversed(self._cache.teachers())}
        for number, (vectors, plan) in enumerate(zip(self._lacking, plans, strict=True)):
            taken = TakenRows()
            of_next_teachers = sum(sizes[number + 1 :])

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
