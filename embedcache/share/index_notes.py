"""Which row index each shard has, as far as it was made on this machine from the shard's own bytes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from embedcache.cache import Cache
from embedcache.corpus.description import checked_digest
from embedcache.errors import StorageError
from embedcache.fsio import read_sealed_json, write_sealed_json
from embedcache.share.manifest import MOST_INDEX_BYTES, IndexObject
from embedcache.store.containers.base import is_shard_name
from embedcache.store.digests import FileNotes

_MOST_BYTES = 64 << 20


class IndexNotes:
    """Digests of row indexes by shard, kept in a cache's derived files.

    A note that came along with somebody else's cache vouches for nothing: whether the file is the one that
    was written here is told as :mod:`embedcache.store.digests` does.

    Args:
        cache: where they are kept; without one they last as long as this object.
    """

    def __init__(self, cache: Cache | None) -> None:
        self._path = None if cache is None else cache.derived_folder / "remotes" / "indexes.json"
        self._known = {} if self._path is None else _read(self._path)

    def get(self, shard: str) -> IndexObject | None:
        """Return the row index of a shard, where it is known."""
        return self._known.get(shard)

    def add(self, found: Mapping[str, IndexObject]) -> None:
        """Remember row indexes that were made here of sound shards."""
        fresh = {shard: index for shard, index in found.items() if self._known.get(shard) != index}
        if not fresh:
            return
        if self._path is not None:
            # What other processes have added meanwhile is kept.
            self._known |= _read(self._path)
        self._known |= fresh
        if self._path is not None:
            with suppress(StorageError):
                said = {shard: [index.sha256, index.bytes] for shard, index in self._known.items()}
                write_sealed_json(self._path, said)
                _vouched(self._path).remember([self._path])


def _vouched(path: Path) -> FileNotes:
    return FileNotes(path.with_name("checked.json"))


def _read(path: Path) -> dict[str, IndexObject]:
    try:
        if not _vouched(path).knows(path):
            return {}
        value = read_sealed_json(path, _MOST_BYTES)
        return {shard: _index(said) for shard, said in value.items() if is_shard_name(shard)}
    except (OSError, ValueError):
        return {}


def _index(said: object) -> IndexObject:
    match said:
        case [sha256, int(size)] if 0 < size <= MOST_INDEX_BYTES:
            return IndexObject(checked_digest(sha256), size)
    raise ValueError("it holds something else than digests and sizes")
