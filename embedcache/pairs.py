"""Pairs of texts: a row of two texts is one text with a separator, so keys and files need nothing new.

The separator is ASCII's unit separator. Tokenizing such a text gives both texts, with the model's own tokens
between them and the token types of each.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

Reads = Literal["texts", "pairs"]
"""Input of a classifier."""

SEPARATOR = "\x1f"
"""Character between the two texts of a pair; no single text may hold it."""


def join_pair(first: str, second: str) -> str:
    """Return a pair as one text.

    Raises:
        ValueError: if a text holds the separator itself.
    """
    if SEPARATOR in first or SEPARATOR in second:
        raise ValueError("a text of a pair holds the control character U+001F, which separates pairs")
    return f"{first}{SEPARATOR}{second}"


def split_pair(text: str) -> tuple[str, str] | None:
    """Return the two texts of a pair; None for a single text.

    Raises:
        ValueError: if there are more than two.
    """
    parts = text.split(SEPARATOR)
    if len(parts) > 2:
        raise ValueError("a text holds the control character U+001F, which separates pairs, more than once")
    return (parts[0], parts[1]) if len(parts) == 2 else None


def what_is_read(texts: Iterable[str]) -> Reads | None:
    """Return the kind of ``texts``: single ones or pairs; None where there are none, or some of both."""
    kinds: set[Reads] = {"pairs" if SEPARATOR in text else "texts" for text in texts}
    return kinds.pop() if len(kinds) == 1 else None
