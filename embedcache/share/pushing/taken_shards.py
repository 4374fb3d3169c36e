"""Shards of rows that were taken from a remote: where their keys are all there, they are no news."""

from __future__ import annotations

import numpy as np

from embedcache.cache import Cache
from embedcache.check.progress import Meter
from embedcache.check.verify.shards import open_without_codebook
from embedcache.keys import KeyArray
from embedcache.share.pushing.declared import Declared
from embedcache.share.pushing.selection import LocalFile, Selection
from embedcache.share.rows.remote_keys import RemoteKeys


def without_taken(selection: Selection, there: Declared, cache: Cache, meter: Meter) -> Selection:
    """Return what of ``selection`` is no shard of taken rows that a remote has every key of.

    One that the remote lists stays: it may be gone from there.

    Args:
        selection: what is to be pushed.
        there: what the remote has; it is looked at only where there are such shards.
        cache: the cache they are of.
        meter: counts the row indexes that are read for it; they are kept for the next time.

    Raises:
        CorruptCacheError: if such a shard is damaged.
        RemoteError: if the remote cannot be reached, or a row index is refused.
    """
    taken: dict[str, list[LocalFile]] = {}
    for local in selection.files:
        if local.is_taken:
            taken.setdefault(local.file.entry.teacher, []).append(local)
    if not taken:
        return selection
    stock = there.stock()
    dropped: set[str] = set()
    for contract_id, shards in taken.items():
        # What manifests list has to be there, and is sent where somebody has deleted it.
        files = [local for local in shards if local.file not in stock]
        if not files:
            continue
        mine = {one.file.sha256 for one in files}
        rows = RemoteKeys(there.remote, cache, stock, contract_id, without=mine)
        rows.load(meter)
        keys = [keys_of(local) for local in files]
        found = rows.locate(np.concatenate(keys))[0] >= 0
        edges = np.cumsum([0, *map(len, keys)])
        dropped |= {
            local.file.path
            for local, start, end in zip(files, edges[:-1], edges[1:], strict=True)
            if found[start:end].all()
        }
    return selection.reduced(tuple(local for local in selection.files if local.file.path not in dropped))


def keys_of(local: LocalFile) -> KeyArray:
    """Return the keys of a shard of the cache.

    Raises:
        CorruptCacheError: if it is damaged.
    """
    return open_without_codebook(local.open(), local.file.sha256, local.where).keys
