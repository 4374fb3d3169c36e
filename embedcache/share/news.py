"""What of a cache is news to a remote."""

from __future__ import annotations

from embedcache.cache import Cache
from embedcache.check.progress import Meter
from embedcache.share.coarser import without_coarser
from embedcache.share.copies import without_copies
from embedcache.share.remote import Remote
from embedcache.share.selection import Selection
from embedcache.share.sign import Signer
from embedcache.share.taken_shards import without_taken


def only_news(
    selection: Selection, remote: Remote, cache: Cache, signer: Signer | None, meter: Meter
) -> tuple[Selection, list[str]]:
    """Return ``selection`` without shards whose rows ``remote`` has as good or better, and what to tell.

    These are copies that a pull has converted, rows that were taken from a remote, and rows that the remote
    has in a codec that keeps more.

    Args:
        selection: what is to be pushed.
        remote: where to.
        cache: the cache they are of.
        signer: who signs the push: then what others have signed does not count.
        meter: counts the row indexes that are read for it; they are kept for the next time.

    Raises:
        CorruptCacheError: if a shard that is looked at is damaged.
        RemoteError: if the remote cannot be reached, or a row index is refused.
    """
    selection, of_copies = without_copies(selection, remote, cache, signer, meter)
    selection = without_taken(selection, remote, cache, signer, meter)
    selection, of_coarser = without_coarser(selection, remote, cache, signer, meter)
    return selection, [*of_copies, *of_coarser]
