"""What has come from a remote must not contradict the vectors that were here before.

Of two vectors of a text the one in the finer codec is read, whoever made it. So vectors that come could take
the place of one's own, and that shows without the teacher: both are here, and can be compared.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embedcache.cache import Cache
from embedcache.check.progress import Meter, OnCheck
from embedcache.contract import Contract
from embedcache.key_index import KeyIndex
from embedcache.merge.noise import compare_rows, noise_angle
from embedcache.reuse import shard_places
from embedcache.sampling import ranks
from embedcache.store import Shard, ShardStore
from embedcache.store.containers import ChosenShards
from embedcache.store.digests import CHECKED, FileNotes

MOST_ROWS = 1000
"""Rows that are compared of a shard."""


@dataclass(frozen=True)
class Contradiction:
    """What was found of shards that came, beside those that were here before.

    Attributes:
        shards: the shards with other vectors than were here, beyond what noise explains.
        compared: rows that were compared, of all that came.
        differ: how many of them are other vectors.
        lowest: the lowest cosine of these and what was here.
    """

    shards: frozenset[str] = frozenset()
    compared: int = 0
    differ: int = 0
    lowest: float = 1.0

    def __or__(self, other: Contradiction) -> Contradiction:
        """Return what was found of the shards of either."""
        return Contradiction(
            self.shards | other.shards,
            self.compared + other.compared,
            self.differ + other.differ,
            min(self.lowest, other.lowest),
        )


def contradiction(
    cache: Cache,
    contract: Contract,
    came: Collection[str],
    before: Collection[str],
    seed: int,
    on_progress: OnCheck | None = None,
) -> Contradiction:
    """Compare the vectors of shards that have come with those of the same texts that were here before.

    Of a shard up to :data:`MOST_ROWS` rows are compared. What was here answers with one vector of a text, the
    one that was read before.

    Args:
        cache: the cache.
        contract: the teacher's.
        came: names of the shards that have come.
        before: names of those that were here.
        seed: chooses the rows; whoever wrote the shards must not know it, or the rest could be anything.
        on_progress: called as the work goes on.

    Raises:
        CorruptCacheError: if a shard is damaged.
    """
    container, codebooks = cache.container(contract), cache.teacher_folder(contract) / "codebooks"
    folder = cache.derived_folder / "index" / contract.id
    # If all that was here is compared with, this is the index that the last reader has left.
    index = (folder, FileNotes(folder / CHECKED))
    old = ShardStore(ChosenShards(container, before), contract, codebooks=codebooks, index=index)
    new = ShardStore(ChosenShards(container, came), contract, codebooks=codebooks)
    old_angles = np.array([noise_angle(shard.header) for shard in old.shards])
    meter = Meter(on_progress)
    meter.begin("compare with what was here", total_rows=sum(map(len, new.shards)))
    found = Contradiction()
    for shard in new.shards:
        cosines, beyond = _compare(shard, old, old_angles, seed)
        shards = frozenset([shard.name] if beyond.any() else [])
        lowest = float(cosines[beyond].min(initial=1.0))
        found |= Contradiction(shards, len(cosines), int(beyond.sum()), lowest)
        meter.add(rows=len(shard))
    return found


def _compare(
    shard: Shard, old: ShardStore, old_angles: NDArray[np.float64], seed: int
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Compare rows of a shard with what ``old`` has of the same keys; returns as :func:`compare_rows`."""
    # Each key once: repeated, a few could fill the sample.
    rows = KeyIndex(shard.keys).first_places()
    positions = old.locate(shard.keys[rows])
    common = np.flatnonzero(positions >= 0)
    drawn = np.sort(common[np.argsort(ranks(shard.keys[rows[common]], seed), kind="stable")[:MOST_ROWS]])
    rows, positions = rows[drawn], positions[drawn]
    numbers, _ = shard_places(old, positions)
    mine = np.asarray(shard.codec.decode(shard.stored.take(rows)), dtype=np.float32)
    return compare_rows(mine, old.vectors(positions), noise_angle(shard.header) + old_angles[numbers])
