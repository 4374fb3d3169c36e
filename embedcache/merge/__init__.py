"""Merging caches: their union, with an answer to every conflict."""

from embedcache.merge.conflicts import Conflict, MergeConflictError, Side
from embedcache.merge.merge import merge_caches
from embedcache.merge.result import MergedCorpus, MergedTeacher, MergeResult

__all__ = [
    "Conflict",
    "MergeConflictError",
    "MergeResult",
    "MergedCorpus",
    "MergedTeacher",
    "Side",
    "merge_caches",
]
