"""Verification of a cache: every file against its digest, and against what refers to it."""

from embedcache.verify.findings import Finding, Verification
from embedcache.verify.verifier import Verifier, verify

__all__ = ["Finding", "Verification", "Verifier", "verify"]
