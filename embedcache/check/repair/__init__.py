"""Bringing back what is damaged in a cache, identical to what it was wherever that can be done."""

from embedcache.check.repair.repairer import Repair, repair

__all__ = ["Repair", "repair"]
