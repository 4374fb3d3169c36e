"""The keys of shards of a cache, and which of them a remote has."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from embedcache.cache import Cache
from embedcache.check.progress import Meter
from embedcache.check.verify.shards import open_without_codebook
from embedcache.keys import KeyArray
from embedcache.share.limits import refuse_without_room
from embedcache.share.pushing.selection import LocalFile
from embedcache.share.rows.remote_keys import RemoteKeys

_LESS = "let a push look at fewer with --teacher"


def load_keys(remote_keys: RemoteKeys, cache: Cache, meter: Meter, jobs: int) -> None:
    """Fetch the row indexes of a remote that are not here, once it is seen that there is room for them.

    Args:
        remote_keys: what the remote has.
        cache: keeps the row indexes.
        meter: counts them and their bytes.
        jobs: transfers at once.

    Raises:
        RemoteError: if one cannot be had, or is refused.
        StorageError: if there is no room for them.
    """
    if size := remote_keys.bytes_to_load():
        refuse_without_room(cache.folder, size, _LESS)
    remote_keys.load(meter, jobs)


def keys_of(local: LocalFile) -> KeyArray:
    """Return the keys of a shard of the cache.

    Raises:
        CorruptCacheError: if it is damaged.
    """
    return open_without_codebook(local.open(), local.file.sha256, local.where).keys


def rows_on(remote_keys: RemoteKeys, keys: Sequence[KeyArray]) -> list[NDArray[np.bool_]]:
    """Return which rows of some shards a remote has.

    Args:
        remote_keys: what the remote has.
        keys: of each shard, dtype ``V16``, shape (n,); of one shard at least.

    Returns:
        For each shard a mask of shape (n,).

    Raises:
        RemoteError: if a row index cannot be had, or is refused.
    """
    mask = remote_keys.locate(np.concatenate(keys))[0] >= 0
    return np.split(mask, np.cumsum([len(each) for each in keys])[:-1])
