"""Doctor: judges a cache before a student is trained on it."""

from __future__ import annotations

from embedcache.doctor.diagnosis import Diagnosis, Verdict
from embedcache.doctor.examine import examine

__all__ = ["Diagnosis", "Verdict", "examine"]
