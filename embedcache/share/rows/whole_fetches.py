"""Messages on shards that are fetched whole though only some of their rows are wanted."""

from __future__ import annotations

from collections.abc import Sequence

from embedcache.share.rows.remote_keys import RemoteKeys
from embedcache.sizes import counted


def no_index_notes(several: Sequence[RemoteKeys]) -> list[str]:
    """Return the message, before anything is fetched, on shards without a row index and what they cost.

    Args:
        several: the keys of one teacher or of several on the same remote.
    """
    whole = [shard for keys in several for shard in keys.whole_to_load()]
    if not whole:
        return []
    size = sum(shard.bytes for shard in whole)
    told = (
        f"{counted(len(whole), 'shard')} of {several[0].remote.where} without a row index: fetched whole to "
    )
    return [f"{told}read the keys, {size:,} bytes; 'embedcache push' from a cache that has them adds it"]


def less_without_ranges(less: str, where: str) -> str:
    """Return how to fetch fewer bytes, for refusals, with why whole shards count.

    Args:
        less: how to fetch fewer bytes.
        where: a remote that gives no parts of files.
    """
    return f"{less}; {where} gives no parts of files, so whole shards would be fetched for some of their rows"


def no_ranges_notes(where: str, shards: int) -> list[str]:
    """Return the message on shards that were fetched whole because a remote gives no parts of files."""
    if not shards:
        return []
    told = f"{counted(shards, 'shard')} fetched whole for some of their rows"
    return [f"{told}: {where} gives no parts of files"]
