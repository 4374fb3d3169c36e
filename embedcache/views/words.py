"""Words of a text, and putting others in their place.

A word is what stands between blanks (``str.split``); its core is it without the punctuation around it.
"""

from __future__ import annotations

import re

CORE = re.compile(r"(\W*)(\w(?:.*\w)?)(\W*)", re.DOTALL)
"""Matches a whole word that has a core: what is before it, the core, what is behind it."""


def words_of_share(words: int, share: float) -> int:
    """Return how many of ``words`` words a share is: rounded, at least one."""
    return max(int(share * words + 0.5), 1)


def put(words: list[str], place: int, new: str) -> None:
    """Put ``new`` in the place of a word's core, in its case and with its punctuation."""
    core = CORE.fullmatch(words[place])
    if core is not None:
        words[place] = core[1] + _in_case_of(core[2], new) + core[3]


def _in_case_of(old: str, new: str) -> str:
    if old.isupper() and len(old) > 1:
        return new.upper()
    return new[:1].upper() + new[1:] if old[:1].isupper() else new
