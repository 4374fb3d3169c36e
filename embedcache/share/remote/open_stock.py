"""Opening a remote to read it: which manifests count, and what they list together."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from embedcache.cache import Cache
from embedcache.share.remote.manifest import Stock
from embedcache.share.remote.remote import Remote
from embedcache.share.remote.sign import PublicKey, signed_manifests
from embedcache.share.remotes import location_of


def open_stock(
    remote: str,
    cache: Cache | None,
    require_signature: str | Path | None = None,
    skip: Collection[str] = (),
) -> tuple[Remote, Stock]:
    """Return a remote and what it has.

    Args:
        remote: the name or the URL of the remote.
        cache: keeps copies of the manifests for the next time; None where there is none yet.
        require_signature: file of a public ed25519 key; only manifests that it signed are looked at.
        skip: leave out manifests whose names begin with these six digits or more.

    Raises:
        InputError: if there is no remote of that name, or the key cannot be used.
        RemoteError: if the remote cannot be reached, or a manifest is refused.
    """
    # A key that cannot be used is told of before anybody asks the remote.
    key = None if require_signature is None else PublicKey.load(Path(require_signature))
    source = Remote(location_of(remote))
    source.require()
    signed = None if key is None else signed_manifests(source, key)
    return source, Stock(source.manifests(cache, signed, skip))
