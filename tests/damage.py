"""Damage to files, as disks and people do it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from embedcache.inventory import entry_at
from embedcache.progress import NO_PROGRESS
from embedcache.verify.files import FileChecks


def flip_middle(path: Path) -> bytes:
    """Flip a bit of the byte in the middle of a file; return what the file has now."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return bytes(data)


def damage_finder(cache: Path) -> Callable[[str], bool]:
    """Return a function that says whether ``verify`` finds a file damaged, given its path in the cache."""
    checks = FileChecks(cache, NO_PROGRESS)

    def is_damaged(name: str) -> bool:
        entry = entry_at(name, (cache / name).lstat().st_size)
        return any(finding.is_damage for finding in checks.check(entry))

    return is_damaged
