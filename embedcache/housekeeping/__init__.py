"""Keeping a cache tidy: removing and collecting garbage."""

from embedcache.housekeeping.gc import Garbage, Sweep, collect_garbage, sweep
from embedcache.housekeeping.remove import remove_corpus, remove_teacher, remove_view

__all__ = [
    "Garbage",
    "Sweep",
    "collect_garbage",
    "remove_corpus",
    "remove_teacher",
    "remove_view",
    "sweep",
]
