"""Doctor: judges a cache before a student is trained on it."""

from __future__ import annotations

from embedcache.doctor.examine import Diagnosis, examine
from embedcache.doctor.findings import Finding

__all__ = ["Diagnosis", "Finding", "examine"]
