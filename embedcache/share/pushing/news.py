"""Which files of a cache are news to a remote."""

from __future__ import annotations

from embedcache.cache import Cache
from embedcache.check.progress import Meter
from embedcache.share.pushing.coarser import without_coarser
from embedcache.share.pushing.copies import without_copies
from embedcache.share.pushing.remote_state import RemoteState
from embedcache.share.pushing.selection import Selection
from embedcache.share.pushing.taken_shards import without_taken
from embedcache.share.transfer import JOBS


def only_news(
    selection: Selection, state: RemoteState, cache: Cache, meter: Meter, jobs: int = JOBS
) -> tuple[Selection, list[str]]:
    """Return ``selection`` without shards whose rows a remote has as good or better, and notes on them.

    These are copies that a pull has converted, rows that were taken from a remote, and rows that the remote
    has in a codec that keeps more.

    Args:
        selection: what is to be pushed.
        state: what the remote has.
        cache: the cache they are of.
        meter: counts the row indexes that are read for it; they are kept for the next time.
        jobs: row indexes that are fetched at once.

    Raises:
        CorruptCacheError: if a shard that is looked at is damaged.
        RemoteError: if the remote cannot be reached, or a row index is refused.
        StorageError: if there is no room for row indexes.
    """
    selection, notes = without_copies(selection, state)
    for without in (without_taken, without_coarser):
        selection, told = without(selection, state, cache, meter, jobs)
        notes += told
    return selection, notes
