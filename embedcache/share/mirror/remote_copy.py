"""Whether a remote still has what was fetched from it: only then a mirror may delete its copy."""

from __future__ import annotations

import hashlib

from embedcache.share.remote.remote import BLOCK_BYTES, Remote, object_path
from embedcache.share.retry import retrying
from embedcache.share.transfer import Stopped


def has_copy(remote: Remote, sha256: str, size: int, changed: float | None) -> bool:
    """Return whether an object is on a remote as it was when it was fetched.

    It is read only where its time is another than at the fetch. Where a place tells no times, as over HTTP,
    an object of the right size is taken for what it was.

    Args:
        remote: the remote.
        sha256: the object's name, the digest of its bytes.
        size: how many bytes it should have.
        changed: when it was last written, as the place told before the fetch; None: it did not tell.

    Raises:
        RemoteError: if the remote cannot be reached.
        Stopped: if nothing is to be fetched any more.
    """
    stat = remote.stat(object_path(sha256))
    if stat is None or stat.bytes not in (None, size):
        return False
    return stat.changed == changed or _is_sound(remote, sha256, size)


def _is_sound(remote: Remote, sha256: str, size: int) -> bool:
    """Read an object and return whether its bytes are right; it is not read beyond its size."""
    path = object_path(sha256)

    def act() -> bool:
        digest, count = hashlib.sha256(), 0
        for block in remote.place.blocks(path, BLOCK_BYTES):
            if remote.stop.is_set():
                raise Stopped
            count += len(block)
            if count > size:
                return False
            digest.update(block)
        return digest.hexdigest() == sha256

    try:
        return retrying(f"read {path}", remote.where, act, remote.stop)
    except FileNotFoundError:
        return False
