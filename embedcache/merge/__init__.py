"""Merging caches: their union, with an answer to every conflict."""

from embedcache.merge.conflicts import Conflict, MergeConflictError, Side
from embedcache.merge.merge import MergedCorpus, MergedTeacher, MergeResult, merge_caches

__all__ = [
    "Conflict",
    "MergeConflictError",
    "MergeResult",
    "MergedCorpus",
    "MergedTeacher",
    "Side",
    "merge_caches",
]
