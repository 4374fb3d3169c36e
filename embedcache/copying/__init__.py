"""Copying caches: merge, split, subset, convert and compact."""

from embedcache.copying.conflicts import VectorConflict, VectorConflictError
from embedcache.copying.copy import CopyResult, copy
from embedcache.copying.options import CopyOptions

__all__ = ["CopyOptions", "CopyResult", "VectorConflict", "VectorConflictError", "copy"]
