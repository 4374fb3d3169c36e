"""Stores of vectors: one interface, several implementations."""

from embedcache.store.arrow import ArrowStore
from embedcache.store.base import VectorBatch, VectorStore

__all__ = ["ArrowStore", "VectorBatch", "VectorStore"]
