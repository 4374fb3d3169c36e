"""Old place of the origin in :mod:`embedcache.teacher.resolve`."""

from embedcache.teacher.resolve import is_local, origin_of

__all__ = ["is_local", "origin_of"]
