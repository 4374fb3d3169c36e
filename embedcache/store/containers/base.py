"""Old place of the protocol of containers."""

from embedcache.store.base import ShardContainer, is_shard_name

__all__ = ["ShardContainer", "is_shard_name"]
