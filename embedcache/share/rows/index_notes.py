"""Which row index each shard has, as far as it was made on this machine from the shard's own bytes."""

from __future__ import annotations

from embedcache.cache import Cache
from embedcache.corpus.description import checked_digest
from embedcache.own_notes import OwnNotes
from embedcache.share.remote.manifest import MOST_INDEX_BYTES, IndexObject


class IndexNotes(OwnNotes[IndexObject]):
    """Digests of row indexes by shard.

    Args:
        cache: where they are kept; without one they last as long as this object.
    """

    def __init__(self, cache: Cache | None) -> None:
        super().__init__(cache, "indexes.json", _index, lambda index: [index.sha256, index.bytes])


def _index(said: object) -> IndexObject:
    match said:
        case [sha256, int(size)] if 0 < size <= MOST_INDEX_BYTES:
            return IndexObject(checked_digest(sha256), size)
    raise ValueError("it holds something else than digests and sizes")
