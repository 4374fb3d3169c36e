"""Old place of :func:`embedcache.teacher.load.load_by_contract`."""

from embedcache.teacher.load import load_by_contract

__all__ = ["load_by_contract"]
