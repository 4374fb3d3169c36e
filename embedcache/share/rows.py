"""Finding rows on a remote: one list of keys a shard, kept in ``derived/remotes/keys``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from embedcache.cache import Cache
from embedcache.errors import RemoteError
from embedcache.fsio import make_directory, sha256_file
from embedcache.keys import KEY_DTYPE, KeyArray, SortedKeys
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.share.manifest import SharedFile
from embedcache.share.remote import Remote
from embedcache.store.base import Positions
from embedcache.store.index import reading_rank, sort_keys


class RemoteKeys:
    """Keys of a teacher's shards on a remote.

    Positions count through the shards in the order of their names. A key in several shards has the position
    that a store with all of them reads: the finest codec first, then the first name.

    Args:
        cache: keeps the key lists.
        remote: the remote.
        shards: the teacher's shards there, sorted by name.
        progress: receives what is done.
    """

    def __init__(
        self, cache: Cache, remote: Remote, shards: Sequence[SharedFile], progress: Progress = NO_PROGRESS
    ) -> None:
        self.shards = list(shards)
        self._folder, self._remote = cache.derived_folder / "remotes" / "keys", remote
        self._progress = progress
        self.starts = np.cumsum([0, *(shard.rows for shard in self.shards)], dtype=np.int64)

    @property
    def missing_bytes(self) -> int:
        """Size of the key lists that are not here."""
        return sum(shard.key_bytes for shard in self.shards if not self._path(shard).is_file())

    @cached_property
    def arrays(self) -> list[KeyArray]:
        """Keys of each shard, dtype ``V16``, mapped; lists that are missing are downloaded.

        Raises:
            RemoteError, StorageError: as :meth:`Remote.fetch`.
        """
        make_directory(self._folder)
        self._remote.in_threads(self._fetch, self.shards)
        return [np.memmap(self._path(shard), dtype=KEY_DTYPE, mode="r") for shard in self.shards]

    def locate(self, keys: KeyArray) -> Positions:
        """Return the position of each key, -1 where it is missing."""
        if not self.shards:
            return np.full(len(keys), -1, np.int64)
        index, read, starts = self._index
        places = index.locate(keys)
        numbers = np.searchsorted(read, places, side="right") - 1
        return np.where(places < 0, -1, places - read[numbers] + starts[numbers])

    def shards_at(self, positions: Positions) -> Positions:
        """Return the number of the shard of each position."""
        return np.searchsorted(self.starts, positions, side="right") - 1

    def shards_with(self, keys: KeyArray) -> list[SharedFile]:
        """Return the shards that the vectors of ``keys`` are read from."""
        positions = self.locate(keys)
        numbers = np.unique(self.shards_at(positions[positions >= 0]))
        return [self.shards[number] for number in numbers.tolist()]

    @cached_property
    def _index(self) -> tuple[SortedKeys, Positions, Positions]:
        """Keys in the order in which shards are read, and where each shard starts in it and in positions."""
        ranks = [reading_rank((shard.sha256, shard.codec, shard.rows)) for shard in self.shards]
        order = sorted(range(len(ranks)), key=ranks.__getitem__)
        keys = sort_keys([self.arrays[number] for number in order])
        rows = np.diff(self.starts)[order]
        return keys, np.cumsum(rows) - rows, self.starts[order]

    def _fetch(self, shard: SharedFile) -> None:
        path = self._path(shard)
        if path.is_file() and path.stat().st_size == shard.key_bytes and sha256_file(path) == shard.keys:
            return
        try:
            self._remote.fetch(shard.keys, shard.key_bytes, path, self._progress.advance)
        except RemoteError as error:
            raise RemoteError(f"keys of shard {shard.sha256[:12]}: {error}") from error

    def _path(self, shard: SharedFile) -> Path:
        return self._folder / shard.keys
