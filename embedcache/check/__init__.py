"""Checking a cache and bringing back what is damaged in it."""

from embedcache.check.findings import Finding, Kind
from embedcache.check.progress import CheckProgress
from embedcache.check.repair import Repair, repair
from embedcache.check.repair.mending import Mend
from embedcache.check.verify import Verification, Verifier, verify
from embedcache.live import Computing

__all__ = [
    "CheckProgress",
    "Computing",
    "Finding",
    "Kind",
    "Mend",
    "Repair",
    "Verification",
    "Verifier",
    "repair",
    "verify",
]
