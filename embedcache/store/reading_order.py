"""Which row is read of a key that stands in several shards: the first in the order that is said here.

Shards in finer codecs come first, and those in one codec in the order of their names. So the order depends on
the shards alone: not on how they came together, nor on who reads.
"""

from __future__ import annotations

from collections.abc import Iterable

from embedcache.codecs import CODEC_NAMES
from embedcache.store.shard import Shard


def reading_rank(codec: str, name: str) -> tuple[int, str]:
    """Return what shards are sorted by: how much their codec keeps, the most first, and their names."""
    return CODEC_NAMES.index(codec), name


def in_reading_order(shards: Iterable[Shard]) -> list[Shard]:
    """Return shards in the order in which a key is looked for."""
    return sorted(shards, key=lambda shard: reading_rank(shard.header.codec, shard.name))
