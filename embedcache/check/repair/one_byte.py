"""A sealed file of which one byte was changed, as it was: only the right byte gives it back its seal."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from embedcache.fsio import parsed_json, sealed, spelled_json

# Each byte is tried in turn, with every value: some seconds.
_LARGEST = 4096


def undo_one_byte(data: bytes) -> dict[str, Any] | None:
    """Return what a sealed file said, without its seal; None where more than a byte of it was changed.

    Args:
        data: its content now.
    """
    if len(data) > _LARGEST:
        return None
    candidate = bytearray(data)
    for place, changed in enumerate(data):
        for byte in range(256):
            candidate[place] = byte
            # Nearly all are no JSON, or not spelled as embedcache spells it.
            with suppress(ValueError, RecursionError):
                value = parsed_json(bytes(candidate))
                if not isinstance(value, dict):
                    continue
                value.pop("sha256", None)
                if spelled_json(sealed(value)) == candidate:
                    return value
        candidate[place] = changed
    return None
