"""Shards that keep less than a remote has of the same rows: sent there, nobody who pulls all would read them.

Of a text in two shards a store reads the one in the finer codec.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embedcache.cache import Cache
from embedcache.check.findings import Kind
from embedcache.check.progress import Meter
from embedcache.codecs import CODEC_NAMES, get_codec, pq
from embedcache.keys import KEY_BYTES
from embedcache.share.pushing.declared import Declared
from embedcache.share.pushing.selection import LocalFile, Selection
from embedcache.share.pushing.taken_shards import keys_of
from embedcache.share.remote.manifest import SharedFile, Stock
from embedcache.share.remote.remote import Remote
from embedcache.share.rows.remote_keys import RemoteKeys
from embedcache.sizes import counted

_Mask = NDArray[np.bool_]


def without_coarser(
    selection: Selection, there: Declared, cache: Cache, meter: Meter
) -> tuple[Selection, list[str]]:
    """Return what of ``selection`` no shards in finer codecs stand for on a remote, and what is to be told.

    A shard is left out if the remote has each of its rows in its codec or in one that keeps more, and some in
    one that keeps more. Shards in the finest codec that the remote has are not looked at.

    Args:
        selection: what is to be pushed.
        there: what the remote has; it is looked at only where a shard has a codec that another could be
            finer than.
        cache: the cache they are of.
        meter: counts the row indexes that are read for it; they are kept for the next time.

    Raises:
        CorruptCacheError: if a shard that is looked at is damaged.
        RemoteError: if the remote cannot be reached, or a row index is refused.
    """
    if not any(_rank(local.codec) for local in selection.files if local.codec):
        return selection, []
    stock = there.stock()
    fresh: dict[str, list[LocalFile]] = {}
    for local in selection.files:
        if local.codec and _rank(local.codec) and local.file not in stock:
            fresh.setdefault(local.file.entry.teacher, []).append(local)
    dropped: set[str] = set()
    sent: list[_Overlap] = []
    unread = 0
    for contract_id, files in fresh.items():
        finer = _Finer(there.remote, cache, stock, contract_id, meter)
        for one in _overlaps(files, finer):
            if one.is_covered:
                dropped.add(one.local.file.path)
            else:
                sent.append(one)
        unread += len(finer.unread)
    left = selection.reduced(tuple(local for local in selection.files if local.file.path not in dropped))
    return left, _told(there.remote.where, len(dropped), sent, unread)


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

    Attributes:
        unread: sha256 of shards that were left out: they have no row index, and nobody is to fetch them whole
            for a push.
    """

    def __init__(self, remote: Remote, cache: Cache, stock: Stock, contract_id: str, meter: Meter) -> None:
        self._remote, self._cache, self._stock, self._meter = remote, cache, stock, meter
        self._contract = cache.teacher(contract_id).contract
        self.unread: set[str] = set()

    def keys(self, rank: int) -> RemoteKeys:
        """Return the rows in codecs up to number ``rank``; indexes of what may be in one alone are read."""
        too_small = {file.sha256 for file in self._stock if not self._may_keep(file, rank)}
        found = self._all_but(too_small)
        self.unread |= {file.sha256 for file in found.whole_to_load()}
        found = self._all_but(too_small | self.unread)
        if not found.shards:
            return found
        found.load(self._meter)
        return found.of_codecs(CODEC_NAMES[: rank + 1])

    def _all_but(self, without: set[str]) -> RemoteKeys:
        return RemoteKeys(self._remote, self._cache, self._stock, self._contract.id, without=without)

    def _may_keep(self, file: SharedFile, rank: int) -> bool:
        """Return whether a shard is large enough to be in a codec up to number ``rank``."""
        if file.entry.kind is not Kind.SHARD or CODEC_NAMES[rank] == pq.NAME:
            return file.entry.kind is Kind.SHARD
        row = get_codec(CODEC_NAMES[rank]).bytes_per_row(self._contract.dimension) + KEY_BYTES
        return file.bytes >= file.rows * row


def _rank(codec: str) -> int:
    """Return the number of a codec: one that comes before keeps more."""
    return CODEC_NAMES.index(codec)


def _overlaps(files: Sequence[LocalFile], there: _Finer) -> Iterator[_Overlap]:
    """Yield those shards of a teacher of which the remote has rows in a finer codec."""
    for rank in sorted({_rank(local.codec) for local in files}):
        better = there.keys(rank - 1)
        if not better.shards:
            continue
        mine = [local for local in files if _rank(local.codec) == rank]
        keys = [keys_of(local) for local in mine]
        together = np.concatenate(keys)
        finer = _split(better.locate(together)[0] >= 0, keys)
        as_good = _split(there.keys(rank).locate(together)[0] >= 0, keys)
        for local, some, all_of in zip(mine, finer, as_good, strict=True):
            if some.any():
                yield _Overlap(local, int(some.sum()), bool(all_of.all()))


def _split(found: _Mask, keys: Sequence[NDArray[np.void]]) -> list[_Mask]:
    return np.split(found, np.cumsum([len(one) for one in keys])[:-1])


def _told(where: str, dropped: int, sent: Sequence[_Overlap], unread: int) -> list[str]:
    told = []
    if dropped:
        told.append(
            f"{counted(dropped, 'shard')} not sent: {where} has all of {'its' if dropped == 1 else 'their'} "
            "rows in a codec that keeps more; push to another remote to share them so"
        )
    if sent:
        rows = sum(one.finer for one in sent)
        told.append(
            f"{counted(rows, 'row')} of {counted(len(sent), 'shard')} to be sent {_is(rows)} on {where} in a "
            "codec that keeps more, too: who pulls both reads that"
        )
    if unread:
        told.append(
            f"{counted(unread, 'shard')} of {where} without a row index {_is(unread)} not looked at for rows "
            "in a codec that keeps more; 'embedcache push' from a cache that has them adds it"
        )
    return told


def _is(count: int) -> str:
    return "is" if count == 1 else "are"
