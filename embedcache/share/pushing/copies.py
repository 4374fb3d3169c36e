"""Copies that a pull has converted are not pushed to a remote that has their originals."""

from __future__ import annotations

from embedcache.share.pushing.remote_state import RemoteState
from embedcache.share.pushing.selection import LocalFile, Selection
from embedcache.share.remote.manifest import SharedFile, Stock


def original_on_remote(stock: Stock, local: LocalFile) -> SharedFile | None:
    """Return the shard that a file of a cache was converted from, where it is in ``stock``."""
    if not local.copy_of:
        return None
    folder = local.file.path.rpartition("/")[0]
    return next(iter(stock.versions(f"{folder}/{local.copy_of}.arrow")), None)


def without_copies(selection: Selection, state: RemoteState) -> tuple[Selection, list[str]]:
    """Return ``selection`` without noted copies of shards that the remote has, and no notes.

    A copy that the remote lists stays: its object may be missing there, and is sent then.

    Args:
        selection: what is to be pushed.
        state: what the remote has; it is looked at only where there are copies.

    Raises:
        RemoteError: if the remote cannot be reached.
    """
    copies = [local for local in selection.files if local.copy_of]
    if not copies:
        return selection, []
    stock = state.stock()
    fresh = [local for local in copies if local.file not in stock]
    superfluous = {local.file.path for local in fresh if original_on_remote(stock, local) is not None}
    return selection.without(superfluous), []
