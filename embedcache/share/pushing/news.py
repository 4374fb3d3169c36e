"""What of a cache is news to a remote."""

from __future__ import annotations

from embedcache.cache import Cache
from embedcache.check.progress import Meter
from embedcache.share.pushing.coarser import without_coarser
from embedcache.share.pushing.copies import without_copies
from embedcache.share.pushing.declared import Declared
from embedcache.share.pushing.selection import Selection
from embedcache.share.pushing.taken_shards import without_taken


def only_news(
    selection: Selection, there: Declared, cache: Cache, meter: Meter
) -> tuple[Selection, list[str]]:
    """Return ``selection`` without shards whose rows a remote has as good or better, and what to tell.

    These are copies that a pull has converted, rows that were taken from a remote, and rows that the remote
    has in a codec that keeps more.

    Args:
        selection: what is to be pushed.
        there: what the remote has.
        cache: the cache they are of.
        meter: counts the row indexes that are read for it; they are kept for the next time.

    Raises:
        CorruptCacheError: if a shard that is looked at is damaged.
        RemoteError: if the remote cannot be reached, or a row index is refused.
    """
    selection, of_copies = without_copies(selection, there, cache, meter)
    selection = without_taken(selection, there, cache, meter)
    selection, of_coarser = without_coarser(selection, there, cache, meter)
    return selection, [*of_copies, *of_coarser]
