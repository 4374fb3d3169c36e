"""Checking a cache and bringing back what is damaged in it."""

from embedcache.check.findings import Finding, Kind
from embedcache.check.live import Computing
from embedcache.check.progress import CheckProgress
from embedcache.check.repair import Repair, repair
from embedcache.check.repair.mending import Mend
from embedcache.check.verify import Verification, Verifier, verify
from embedcache.check.verify.deep import DeepCheck, DeepLine, check_deep

__all__ = [
    "CheckProgress",
    "Computing",
    "DeepCheck",
    "DeepLine",
    "Finding",
    "Kind",
    "Mend",
    "Repair",
    "Verification",
    "Verifier",
    "check_deep",
    "repair",
    "verify",
]
