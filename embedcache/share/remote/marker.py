"""The file that makes a folder a remote: always the same bytes."""

from __future__ import annotations

from embedcache.cache import REMOTE_MARKER
from embedcache.errors import RemoteError
from embedcache.fsio import parsed_json, sealed, spelled_json

REMOTE_VERSION = 1
MARKER_BYTES = spelled_json(sealed({"format": "embedcache-remote", "version": REMOTE_VERSION}))


def is_cut_off(data: bytes) -> bool:
    """Return whether ``data`` is the beginning of a marker and no more."""
    return MARKER_BYTES.startswith(data) and data != MARKER_BYTES


def check_marker(data: bytes, where: str) -> None:
    """See that a marker is what this version of embedcache writes.

    Args:
        data: its bytes.
        where: the remote.

    Raises:
        RemoteError: if it is another's, or a newer version's.
    """
    if data == MARKER_BYTES:
        return
    try:
        value = parsed_json(data)
    except ValueError:
        value = None
    version = value.get("version") if isinstance(value, dict) else None
    newer = type(version) is int and version > REMOTE_VERSION
    advice = "upgrade embedcache" if newer else "it was not made by embedcache, or is damaged"
    raise RemoteError(f"{REMOTE_MARKER} of {where} is not as this embedcache writes it: {advice}")
