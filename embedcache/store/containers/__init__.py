"""Where the bytes of shards lie: a folder, one LMDB file, or memory."""

from embedcache.store.base import ShardContainer
from embedcache.store.containers.folder import FolderShards
from embedcache.store.containers.lmdb import LmdbShards
from embedcache.store.containers.memory import MemoryShards

__all__ = ["FolderShards", "LmdbShards", "MemoryShards", "ShardContainer"]
