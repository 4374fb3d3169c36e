"""Opening a remote to read it: which manifests count, and what they list together."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from pathlib import Path

from embedcache.cache import Cache
from embedcache.share.limits import Allowance
from embedcache.share.remote.lines import listed_so, with_right_sizes
from embedcache.share.remote.manifest import Stock
from embedcache.share.remote.remote import Remote
from embedcache.share.remote.sign import PublicKey, signed_manifests
from embedcache.share.remotes import location_of


def open_remote(remote: str | Remote) -> Remote:
    """Return a remote by its name or URL; one that is open already stays the same.

    Raises:
        InputError: if there is no remote of that name.
    """
    return remote if isinstance(remote, Remote) else Remote(location_of(remote))


def open_stock(
    remote: str | Remote,
    cache: Cache | None,
    require_signature: str | Path | None = None,
    skip: Collection[str] = (),
    *,
    allowance: Allowance | None = None,
) -> tuple[Remote, Stock]:
    """Return a remote and what it has.

    Args:
        remote: the name or the URL of the remote, or the remote itself.
        cache: keeps copies of the manifests for the next time; None where there is none yet.
        require_signature: file of a public ed25519 key; only manifests that it signed are looked at.
        skip: leave out manifests whose names begin with these six digits or more.
        allowance: how much may be fetched; default: any number of bytes. Manifests count that have no copy.

    Raises:
        InputError: if there is no remote of that name, the key cannot be used, or manifests are more than
            may be fetched.
        RemoteError: if the remote cannot be reached, or a manifest is refused.
    """
    # A key that cannot be used is told of before anybody asks the remote.
    key = None if require_signature is None else PublicKey.load(Path(require_signature))
    source = open_remote(remote)
    source.require()
    signed = None if key is None else signed_manifests(source, key)
    check_size = None if allowance is None else allowance.read_manifests
    survey = source.survey(cache, signed, skip, check_size=check_size)
    survey.require_all(
        source.where,
        lambda name: (
            f"do without it with --skip-manifest {name}, take what one key has signed with "
            "--require-signature,"
        ),
    )
    manifests = with_right_sizes(source, survey.manifests)
    source.listed_so = partial(listed_so, manifests)
    return source, Stock(manifests)
