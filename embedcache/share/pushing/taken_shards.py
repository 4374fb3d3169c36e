"""Shards of rows that were taken from a remote are not pushed to it again while it has all of their keys."""

from __future__ import annotations

from embedcache.cache import Cache
from embedcache.check.progress import Meter
from embedcache.share.pushing.local_keys import keys_of, load_keys, rows_on
from embedcache.share.pushing.remote_state import RemoteState
from embedcache.share.pushing.selection import LocalFile, Selection
from embedcache.share.rows.remote_keys import RemoteKeys
from embedcache.share.transfer import JOBS


def without_taken(
    selection: Selection, state: RemoteState, cache: Cache, meter: Meter, jobs: int = JOBS
) -> tuple[Selection, list[str]]:
    """Return ``selection`` without shards of taken rows whose keys the remote all has, and no notes.

    A shard that the remote lists stays: its object may be missing there, and is sent then.

    Args:
        selection: what is to be pushed.
        state: what the remote has; it is looked at only where there are such shards.
        cache: the cache they are of.
        meter: counts the row indexes that are read for it; they are kept for the next time.
        jobs: row indexes that are fetched at once.

    Raises:
        CorruptCacheError: if such a shard is damaged.
        RemoteError: if the remote cannot be reached, or a row index is refused.
        StorageError: if there is no room for row indexes.
    """
    taken: dict[str, list[LocalFile]] = {}
    for local in selection.files:
        if local.is_taken:
            taken.setdefault(local.file.entry.teacher, []).append(local)
    if not taken:
        return selection, []
    stock = state.stock()
    dropped: set[str] = set()
    for contract_id, shards in taken.items():
        fresh = [local for local in shards if local.file not in stock]
        if not fresh:
            continue
        own = {local.file.sha256 for local in fresh}
        remote_keys = RemoteKeys(state.remote, cache, stock, contract_id, without=own)
        load_keys(remote_keys, cache, meter, jobs)
        masks = rows_on(remote_keys, [keys_of(local) for local in fresh])
        dropped |= {local.file.path for local, mask in zip(fresh, masks, strict=True) if mask.all()}
    return selection.without(dropped), []
