"""Damage to files, as disks and people do it."""

from __future__ import annotations

from pathlib import Path


def flip_middle(path: Path) -> bytes:
    """Flip a bit of the byte in the middle of a file; return what the file has now."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return bytes(data)
