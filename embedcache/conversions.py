"""Which shards a pull into this cache has converted, and what they were made of.

A copy says that in its provenance too, but so could a stranger's shard, of any other: whoever believed it
would never fetch the shard that it names. Only what was noted here counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from embedcache.cache import Cache
from embedcache.check.verify.shards import open_without_codebook
from embedcache.errors import CacheFormatError, CorruptCacheError
from embedcache.note_log import NoteLog
from embedcache.store.base import CONVERTED_FROM
from embedcache.store.containers import ShardContainer
from embedcache.store.shard import Shard


class Conversions(NoteLog):
    """The shards that copies of this cache were made of, by copy.

    Args:
        cache: the cache.
    """

    def __init__(self, cache: Cache) -> None:
        # Other threads read it meanwhile: its sets never change.
        self._copies: dict[str, frozenset[str]] = {}
        super().__init__(cache, "converted.log")

    def _learn(self, notes: Mapping[str, str]) -> None:
        super()._learn(notes)
        for copy, source in notes.items():
            self._copies[source] = self._copies.get(source, frozenset()) | {copy}

    def source_of(self, name: str) -> str:
        """Return what the shard called ``name`` was made of; empty where it is no copy."""
        return self.get(name) or ""

    def carry_from(self, other: Conversions, names: Iterable[str]) -> None:
        """Take over what another cache of this machine has noted of shards that come from there unchanged."""
        known = {name: other.source_of(name) for name in names}
        self.add({name: source for name, source in known.items() if source})

    def has_copy(self, container: ShardContainer, source: str) -> bool:
        """Return whether ``container`` has a copy of ``source``, noted here or by another process by now."""
        self.refresh()
        return any(_is_readable(container, name) for name in sorted(self._copies.get(source, ())))

    def sources(self, container: ShardContainer) -> frozenset[str]:
        """Return the names of the shards whose copies are in ``container``."""
        there = [name for name in container.names() if self.get(name) is not None]
        return frozenset(self.source_of(name) for name in there if _is_readable(container, name))


def converted_from(shard: Shard) -> str:
    """Return the name of the shard that ``shard`` says it was converted from; empty where it says nothing."""
    return str(shard.header.provenance.get(CONVERTED_FROM, ""))


def _is_readable(container: ShardContainer, name: str) -> bool:
    try:
        open_without_codebook(container.open(name), name, container.where(name))
    except (CorruptCacheError, CacheFormatError):
        # Of what cannot be read the source is fetched again; verify tells of it.
        return False
    return True
