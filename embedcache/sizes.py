"""Numbers of bytes as people write them."""

from __future__ import annotations

import re

_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def parse_size(text: str) -> int:
    """Return the number of bytes that ``text`` means: ``500000``, ``20MB``, ``1.5 GB``.

    Raises:
        ValueError: if it is none.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kMGT]?)B?", text.strip())
    if match is None:
        raise ValueError(f"{text[:40]!r} is no size: expected bytes, or a number with kB, MB, GB or TB")
    return round(float(match[1]) * _UNITS[match[2]])
