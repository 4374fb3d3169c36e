"""Shards that are coarser than what the remote already has of the same rows are not pushed: nobody would
read them.

Of a text in two shards a store reads the one in the finer codec.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from embedcache.cache import Cache
from embedcache.check.progress import Meter
from embedcache.codecs import CODEC_NAMES, get_codec, pq
from embedcache.keys import KEY_BYTES
from embedcache.share.pushing.local_keys import keys_of, load_keys, rows_on
from embedcache.share.pushing.remote_state import RemoteState
from embedcache.share.pushing.selection import LocalFile, Selection
from embedcache.share.remote.manifest import SharedFile, Stock
from embedcache.share.remote.remote import Remote
from embedcache.share.rows.remote_keys import RemoteKeys
from embedcache.share.transfer import JOBS
from embedcache.sizes import counted


def without_coarser(
    selection: Selection, state: RemoteState, cache: Cache, meter: Meter, jobs: int = JOBS
) -> tuple[Selection, list[str]]:
    """Return ``selection`` without shards that the remote has all rows of in finer codecs, and notes on them.

    A shard is left out if the remote has each of its rows in the shard's codec or in a finer one, and some in
    a finer one. Shards in the finest codec that the remote has are not looked at.

    Args:
        selection: what is to be pushed.
        state: what the remote has; it is looked at only where a shard has a codec that another could be
            finer than.
        cache: the cache they are of.
        meter: counts the row indexes that are read for it; they are kept for the next time.
        jobs: row indexes that are fetched at once.

    Raises:
        CorruptCacheError: if a shard that is looked at is damaged.
        RemoteError: if the remote cannot be reached, or a row index is refused.
        StorageError: if there is no room for row indexes.
    """
    if not any(_rank(local.codec) for local in selection.files if local.codec):
        return selection, []
    stock = state.stock()
    fresh: dict[str, list[LocalFile]] = {}
    for local in selection.files:
        if local.codec and _rank(local.codec) and local.file not in stock:
            fresh.setdefault(local.file.entry.teacher, []).append(local)
    dropped: set[str] = set()
    sent: list[_Overlap] = []
    unindexed = 0
    for contract_id, files in fresh.items():
        originals = {local.says_copy_of for local in files}
        finer = _Finer(state.remote, cache, stock, contract_id, originals, meter, jobs)
        for overlap in _overlaps(files, finer):
            if overlap.is_covered:
                dropped.add(overlap.local.file.path)
            else:
                sent.append(overlap)
        unindexed += len(finer.unindexed)
    return selection.without(dropped), _notes(state.remote.where, len(dropped), sent, unindexed)


@dataclass(frozen=True)
class _Overlap:
    """A shard with rows that the remote has in a finer codec.

    Attributes:
        local: the shard.
        finer: how many such rows.
        is_covered: whether it has the others in the shard's own codec.
    """

    local: LocalFile
    finer: int
    is_covered: bool


class _Finer:
    """What a remote has of a teacher, by how much its codec keeps.

    Args:
        remote, cache, stock, contract_id: as for :class:`RemoteKeys`.
        originals: sha256 of shards that files of the push say they are copies of. These are fetched whole
            where they have no row index: only they tell whether the copies are superfluous.
        meter: counts the row indexes that are read.
        jobs: row indexes that are fetched at once.

    Attributes:
        unindexed: sha256 of shards that were left out: they have no row index, and are not fetched whole for
            a push.
    """

    def __init__(
        self,
        remote: Remote,
        cache: Cache,
        stock: Stock,
        contract_id: str,
        originals: Collection[str],
        meter: Meter,
        jobs: int,
    ) -> None:
        self._remote, self._cache, self._stock = remote, cache, stock
        self._originals, self._meter, self._jobs = originals, meter, jobs
        self._contract = cache.teacher(contract_id).contract
        self.unindexed: set[str] = set()

    def keys(self, rank: int) -> RemoteKeys:
        """Return the rows in codecs up to number ``rank``; shards too small for these are not looked into."""
        shards = self._stock.shards(self._contract.id)
        too_small = {shard.sha256 for shard in shards if not self._may_keep(shard, rank)}
        candidates = self._all_but(too_small)
        whole = {shard.sha256 for shard in candidates.whole_to_load()}
        self.unindexed |= whole.difference(self._originals)
        remote_keys = self._all_but(too_small | self.unindexed)
        if not remote_keys.shards:
            return remote_keys
        load_keys(remote_keys, self._cache, self._meter, self._jobs)
        return remote_keys.of_codecs(CODEC_NAMES[: rank + 1])

    def _all_but(self, without: set[str]) -> RemoteKeys:
        return RemoteKeys(self._remote, self._cache, self._stock, self._contract.id, without=without)

    def _may_keep(self, shard: SharedFile, rank: int) -> bool:
        """Return whether a shard is large enough to be in a codec up to number ``rank``."""
        if CODEC_NAMES[rank] == pq.NAME:
            return True
        row = get_codec(CODEC_NAMES[rank]).bytes_per_row(self._contract.dimension) + KEY_BYTES
        return shard.bytes >= shard.rows * row


def _rank(codec: str) -> int:
    """Return the number of a codec: one that comes before keeps more."""
    return CODEC_NAMES.index(codec)


def _overlaps(files: Sequence[LocalFile], remote: _Finer) -> Iterator[_Overlap]:
    """Yield those shards of a teacher of which the remote has rows in a finer codec."""
    for rank in sorted({_rank(local.codec) for local in files}):
        better = remote.keys(rank - 1)
        if not better.shards:
            continue
        of_rank = [local for local in files if _rank(local.codec) == rank]
        keys = [keys_of(local) for local in of_rank]
        finer = rows_on(better, keys)
        as_good = rows_on(remote.keys(rank), keys)
        for local, finer_rows, good_rows in zip(of_rank, finer, as_good, strict=True):
            if finer_rows.any():
                yield _Overlap(local, int(finer_rows.sum()), bool(good_rows.all()))


def _notes(where: str, dropped: int, sent: Sequence[_Overlap], unindexed: int) -> list[str]:
    notes = []
    if dropped:
        notes.append(
            f"{counted(dropped, 'shard')} not sent: {where} has all of {'its' if dropped == 1 else 'their'} "
            "rows in a codec that keeps more; push to another remote to share them so"
        )
    if sent:
        rows = sum(overlap.finer for overlap in sent)
        notes.append(
            f"{counted(rows, 'row')} of {counted(len(sent), 'shard')} to be sent {_is(rows)} on {where} in a "
            "codec that keeps more, too: who pulls both reads that"
        )
    if unindexed:
        notes.append(
            f"{counted(unindexed, 'shard')} of {where} without a row index {_is(unindexed)} not looked at "
            "for rows in a codec that keeps more; 'embedcache push' from a cache that has them adds it"
        )
    return notes


def _is(count: int) -> str:
    return "is" if count == 1 else "are"
