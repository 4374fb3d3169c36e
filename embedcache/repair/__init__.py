"""Repair of a cache: what is damaged is moved aside, and made again where its content is known."""

from embedcache.repair.fixes import ENCODED, LEFT, LOST, MADE, MOVED, Fix, Repair
from embedcache.repair.repairer import repair

__all__ = ["ENCODED", "LEFT", "LOST", "MADE", "MOVED", "Fix", "Repair", "repair"]
