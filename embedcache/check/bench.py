"""What a check works on: the folder of a cache, and what was found sound in it so far."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from embedcache.check.progress import Meter
from embedcache.store import Shard


@dataclass
class Bench:
    """What a check works on.

    Attributes:
        folder: the cache.
        meter: counts what is done.
        shards: contract id -> the sound shards found so far in that teacher's folder; vectors of ``pq`` in
            them cannot be decoded, for codebooks are not read.
    """

    folder: Path
    meter: Meter = field(default_factory=Meter)
    shards: defaultdict[str, list[Shard]] = field(default_factory=lambda: defaultdict(list))
