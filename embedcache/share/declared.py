"""What a remote has in the eyes of somebody who is about to push."""

from __future__ import annotations

from embedcache.cache import Cache
from embedcache.share.manifest import Stock
from embedcache.share.remote import Remote
from embedcache.share.sign import Signer, is_signed


def declared(remote: Remote, cache: Cache, signer: Signer | None) -> Stock:
    """Return what ``remote`` has, as far as its manifests can be read.

    Args:
        remote: where is pushed to.
        cache: keeps copies of manifests for the next time.
        signer: who signs the push: then what others have signed does not count.

    Raises:
        RemoteError: if the remote cannot be reached.
    """
    manifests = remote.survey(cache).manifests
    if signer is not None:
        manifests = tuple(one for one in manifests if is_signed(remote, one.id, signer.public))
    return Stock(manifests)
