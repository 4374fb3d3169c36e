"""Keeping a cache tidy: removing, collecting garbage, merging small shards. It can all be interrupted."""

from embedcache.housekeeping.compact import Compacted, compact
from embedcache.housekeeping.gc import Garbage, Sweep, collect_garbage, sweep
from embedcache.housekeeping.remove import remove_corpus, remove_teacher, remove_view

__all__ = [
    "Compacted",
    "Garbage",
    "Sweep",
    "collect_garbage",
    "compact",
    "remove_corpus",
    "remove_teacher",
    "remove_view",
    "sweep",
]
