"""Shards that a pull makes itself: of rows that it took, or of a shard that arrived, in another codec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from embedcache.codecs import Codec, Stored
from embedcache.share.temporaries import being_made
from embedcache.store.base import VectorBatch
from embedcache.store.containers import FolderShards, LmdbShards
from embedcache.store.shard import stored_shard

if TYPE_CHECKING:
    import pyarrow as pa

    from embedcache.store.store import ShardStore


def write_shard(container: FolderShards | LmdbShards, name: str, data: pa.Buffer) -> None:
    """Write a shard; killed meanwhile, it leaves a temporary that the next pull deletes.

    Args:
        container: where it goes.
        name: of the shard.
        data: its bytes.

    Raises:
        StorageError: if the cache cannot be written.
    """
    if isinstance(container, LmdbShards):
        container.add(name, data)
        return
    with being_made(container.path(name)) as temporary:
        temporary.write_bytes(data)
        container.adopt(name, temporary)


def write_rows(
    store: ShardStore, codec: Codec, stored: Stored, batch: VectorBatch, error: Mapping[str, float]
) -> None:
    """Store encoded rows as one shard, as :meth:`ShardStore.put_stored` does, with :func:`write_shard`.

    Args:
        store: a store on disk.
        codec: the codec of ``stored``.
        stored: the vectors as the codec keeps them.
        batch: keys, tokens, truncated and provenance of the rows; its vectors are not read.
        error: what the codec lost, for the header.

    Raises:
        StorageError: if the cache cannot be written.
    """
    container = store.container
    if not isinstance(container, (FolderShards, LmdbShards)):
        raise TypeError("rows are stored in a store on disk")
    name, data = stored_shard(store.contract, codec, stored, batch, error)
    write_shard(container, name, data)
    store.adopt(name)
