"""Writing shards into another store: whole ones as they are, of others the rows that are wanted."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embedcache.codecs import pq
from embedcache.errors import CorruptCacheError
from embedcache.merge.files import Carrier
from embedcache.merge.weigh import Taken
from embedcache.store import FolderShards, Shard, ShardStore, VectorBatch

OnShard = Callable[[int, int], None]
"""Called with the number of shards done and their total."""


@dataclass
class Written:
    """What became of shards.

    Attributes:
        whole: taken as they are.
        cut: written anew with some of their rows.
        left: not taken, as no row of them was.
        there: of the whole and cut ones, how many were there already.
    """

    whole: int = 0
    cut: int = 0
    left: int = 0
    there: int = 0


def write_shards(
    taken: Sequence[Taken],
    givers: Sequence[ShardStore],
    store: ShardStore,
    codebooks: Path,
    carrier: Carrier,
    on_shard: OnShard | None = None,
) -> tuple[Written, set[str]]:
    """Put what is taken into ``store``, and return what became of it, and the names of the shards.

    Nothing is taken away. Killed at any moment and run again it goes on: the same rows give the same shards.

    Args:
        taken: the shards, and which rows of them.
        givers: the stores that they are of, by their numbers; ``store`` may be among them.
        store: the store that is written.
        codebooks: its folder of the codebooks of ``pq``.
        carrier: carries files and counts them.
        on_shard: called as shards are done.

    Raises:
        CorruptCacheError: if the bytes of a shard have another digest.
        StorageError: if the store cannot be written.
    """
    written, new = Written(), set[str]()
    before = set(store.container.names())
    for number, one in enumerate(taken):
        if not one.rows:
            written.left += 1
        else:
            if isinstance(one.shard.codec, pq.PQCodec):
                _keep_codebook(codebooks, one.shard.codec)
            if one.keep is None:
                name = one.shard.name
                if name not in before:
                    _put_whole(one.shard, givers[one.store], store, carrier)
                written.whole += 1
            else:
                name = _put_cut(one.shard, np.flatnonzero(one.keep), store, before, carrier)
                written.cut += 1
            written.there += name in before
            new.add(name)
        if on_shard is not None:
            on_shard(number + 1, len(taken))
    store.container.finish()
    return written, new


def _put_whole(shard: Shard, giver: ShardStore, store: ShardStore, carrier: Carrier) -> None:
    if isinstance(giver.container, FolderShards) and isinstance(store.container, FolderShards):
        carrier.carry(giver.container.path(shard.name), store.container.path(shard.name), shard.name)
        return
    data = giver.container.open(shard.name)
    if hashlib.sha256(data).hexdigest() != shard.name:
        raise CorruptCacheError(
            f"shard {shard.where} is damaged (its bytes are not those its name is the sha256 of): mend its "
            "cache with 'embedcache repair', and run the same command again"
        )
    store.container.add(shard.name, data)
    carrier.count(data.size)


def _put_cut(
    shard: Shard, rows: NDArray[np.int64], store: ShardStore, before: set[str], carrier: Carrier
) -> str:
    batch = VectorBatch(
        keys=shard.keys[rows],
        vectors=np.empty((0, store.contract.dimension), dtype=np.float32),
        tokens=shard.tokens[rows],
        truncated=shard.truncated[rows],
        provenance=shard.header.provenance,
    )
    # What the codec lost of all rows bounds what it lost of some.
    name = store.put_stored(shard.codec, shard.stored.take(rows), batch, dict(shard.header.error))
    if name not in before:
        carrier.count(store.shards[-1].bytes)
    return name


def _keep_codebook(folder: Path, codec: pq.PQCodec) -> None:
    if codec.codebook is not None and not (folder / f"{codec.codebook}.npy").exists():
        pq.save(folder, codec)
