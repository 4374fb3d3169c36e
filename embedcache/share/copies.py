"""Shards that a pull has converted: to the remote that has what they were made of, they are no news."""

from __future__ import annotations

from embedcache.cache import Cache
from embedcache.share.manifest import SharedFile, Stock
from embedcache.share.remote import Remote
from embedcache.share.selection import LocalFile, Selection
from embedcache.share.sign import Signer, is_signed


def source_in(stock: Stock, local: LocalFile) -> SharedFile | None:
    """Return the shard that a file of a cache was converted from, where it is in ``stock``."""
    if not local.copy_of:
        return None
    folder = local.file.path.rpartition("/")[0]
    return next(iter(stock.versions(f"{folder}/{local.copy_of}.arrow")), None)


def without_copies(selection: Selection, remote: Remote, cache: Cache, signer: Signer | None) -> Selection:
    """Return what of ``selection`` is no copy of a shard that ``remote`` has.

    Args:
        selection: what is to be pushed.
        remote: where to; it is read only where there are copies.
        cache: the cache they are of.
        signer: who signs the push: then what others have signed does not count.

    Raises:
        RemoteError: if the remote cannot be reached.
    """
    if not any(local.copy_of for local in selection.files) or not remote.is_there():
        return selection
    manifests = remote.survey(cache).manifests
    if signer is not None:
        manifests = tuple(one for one in manifests if is_signed(remote, one.id, signer.public))
    stock = Stock(manifests)
    kept = tuple(local for local in selection.files if source_in(stock, local) is None)
    return selection.reduced(kept)
