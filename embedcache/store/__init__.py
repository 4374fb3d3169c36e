"""Vector stores: vectors of one contract, addressed by key."""

from embedcache.store.base import Positions, ShardContainer, VectorBatch
from embedcache.store.containers import FolderShards, MemoryShards
from embedcache.store.lmdb_shards import LmdbShards
from embedcache.store.shard import Shard, ShardHeader
from embedcache.store.store import ShardStore

__all__ = [
    "FolderShards",
    "LmdbShards",
    "MemoryShards",
    "Positions",
    "Shard",
    "ShardContainer",
    "ShardHeader",
    "ShardStore",
    "VectorBatch",
]
