"""What notes of the tests say, and of which shards."""

from __future__ import annotations

import hashlib

SOURCE = "5" * 64


def shard(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()
