"""Finding rows on a remote: one list of keys per shard, kept in ``derived/remotes/keys``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from embedcache.fsio import map_regular
from embedcache.keys import KEY_DTYPE, KeyArray
from embedcache.share.incoming import Incoming
from embedcache.share.manifest import SharedFile
from embedcache.store.base import Positions
from embedcache.store.index import StoreIndex, reading_rank


class RemoteKeys:
    """Keys of a teacher's shards on a remote.

    Args:
        incoming: downloads the lists of keys that are not here.
        shards: the teacher's shards there.

    Attributes:
        shards: the shards in reading order.
        index: index of their keys.

    Raises:
        InputError, RemoteError, StorageError: as ``Incoming.download``.
    """

    def __init__(self, incoming: Incoming, shards: Sequence[SharedFile]) -> None:
        folder = incoming.cache.derived_folder / "remotes" / "keys"

        def parts() -> Iterator[KeyArray]:
            for shard in self.shards:
                yield np.frombuffer(map_regular(folder / shard.keys), KEY_DTYPE)

        lists = {shard.keys: shard.key_bytes for shard in shards}
        incoming.download("fetch keys", [(name, size, folder / name) for name, size in lists.items()])
        rows = {shard.sha256: (shard.sha256, shard.codec, shard.rows) for shard in shards}
        self.shards = sorted(shards, key=lambda shard: reading_rank(rows[shard.sha256]))
        self.index = StoreIndex.of([rows[shard.sha256] for shard in self.shards], parts)
        self._starts = np.cumsum([0, *(shard.rows for shard in self.shards)])[:-1]

    def locate(self, keys: KeyArray) -> Positions:
        """Return the position of each key in a store with all shards, -1 where it is missing."""
        names = [shard.sha256 for shard in self.shards]
        return self.index.locate(keys, dict(zip(names, self._starts.tolist(), strict=True)))

    def shards_with(self, keys: KeyArray) -> list[SharedFile]:
        """Return the shards that the vectors of ``keys`` are read from."""
        positions = self.locate(keys)
        numbers = np.searchsorted(self._starts, positions[positions >= 0], side="right") - 1
        return [self.shards[number] for number in np.unique(numbers).tolist()]
