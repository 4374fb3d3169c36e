"""Counts and sizes in bytes as readable text, and sizes parsed from text."""

from __future__ import annotations

import re
from collections.abc import Iterable

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def counted(count: int, noun: str, ending: str = "s") -> str:
    """Return ``1 row``, ``2 rows``: a count with its noun; ``ending`` makes the plural."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}{ending}"


def first_of(names: Iterable[str], most: int = 8) -> str:
    """Return names in one phrase; of more than ``most``, the first and the number of the others."""
    found = list(names)
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more


def parse_size(text: str) -> int:
    """Return the number of bytes that ``text`` means: ``500000``, ``20MB``, ``1.5 GB``, in capitals or not.

    Raises:
        ValueError: if it is none.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)b?", text.strip().lower())
    if match is None:
        raise ValueError(f"{text[:40]!r} is not a size: expected bytes, or a number with kB, MB, GB or TB")
    return round(float(match[1]) * _UNITS[match[2]])


def readable(count: int, *, up: bool = False) -> str:
    """Return a number of bytes as ``parse_size`` reads it: ``288kB``.

    Args:
        count: number of bytes, at least 1.
        up: round up, for a limit that ``count`` bytes fit in.
    """
    unit, scale = max((item for item in _UNITS.items() if item[1] <= count), key=lambda item: item[1])
    tenths = -(-10 * count // scale) if up else 10 * count // scale
    name = "k" if unit == "k" else unit.upper()
    return f"{tenths // 10}{f'.{tenths % 10}' if tenths % 10 else ''}{name}B"


def size(count: float) -> str:
    """Return a readable number of bytes, in powers of ten."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"
