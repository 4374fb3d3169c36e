"""Copying caches: merge, split, subset, convert and compact."""

from embedcache.copying.copy import CopyResult, copy
from embedcache.copying.options import CopyOptions
from embedcache.copying.vectors import VectorConflict, VectorConflictError

__all__ = ["CopyOptions", "CopyResult", "VectorConflict", "VectorConflictError", "copy"]
