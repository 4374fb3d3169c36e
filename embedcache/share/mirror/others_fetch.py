"""The wait for a shard that another process fetches into the same mirror."""

from __future__ import annotations

import time

from embedcache.errors import StorageError
from embedcache.share.mirror.known_notes import ShardKey
from embedcache.share.mirror.noted_shards import NotedShards

LONGEST_WAIT_SECONDS = 600.0
"""How long a shard is waited for of which nothing arrives."""

_LOOK_SECONDS = 1.0


class OthersFetch:
    """The wait for a shard that another process fetches.

    It may be large and the connection slow, so the time is measured that goes by without progress.
    """

    def __init__(self, shards: NotedShards, key: ShardKey) -> None:
        self._shards, self._key = shards, key
        self._since = self._looked = time.monotonic()
        self._arriving = shards.arriving(key)

    def require_progress(self) -> None:
        """See that more of the shard has arrived lately.

        Raises:
            StorageError: if none has for long.
        """
        now = time.monotonic()
        if now - self._looked >= _LOOK_SECONDS:
            self._looked = now
            arriving = self._shards.arriving(self._key)
            if arriving != self._arriving:
                self._arriving, self._since = arriving, now
        if now - self._since > LONGEST_WAIT_SECONDS:
            raise StorageError(
                f"cannot write {self._shards.path(self._key)}: another process on this mirror fetches it, "
                f"and nothing of it has arrived for {LONGEST_WAIT_SECONDS:.0f} seconds; end that process, "
                "or give another --mirror"
            )
