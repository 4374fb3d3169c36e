"""Verification of a cache: every file against its digest, and against what refers to it."""

from embedcache.verify.files import Finding
from embedcache.verify.verifier import Verification, Verifier, verify

__all__ = ["Finding", "Verification", "Verifier", "verify"]
