"""Checking a cache: every file for itself, what belongs together, and a sample against the live teacher."""

from embedcache.check.verify.verifier import Verification, Verifier, verify

__all__ = ["Verification", "Verifier", "verify"]
