"""Folded texts: equal for texts that differ only in case, spacing or punctuation."""

from __future__ import annotations

import unicodedata


class _Letters(dict[int, int | None]):
    """Table for ``str.translate`` that drops blanks, punctuation, symbols and control characters."""

    def __missing__(self, code: int) -> int | None:
        dropped = unicodedata.category(chr(code))[0] in "ZPSC"
        self[code] = None if dropped else code
        return self[code]


_LETTERS = _Letters()
_ASCII_DROPPED = bytes(code for code in range(128) if _LETTERS[code] is None)


def fold(text: str) -> str:
    """Return a text without case, blanks and punctuation, in Unicode's compatibility form (NFKC).

    Tokenised and plain spellings are equal (``do n't``, ``Don't``). A text of nothing else stays as it is.
    """
    if text.isascii():
        return text.lower().encode().translate(None, _ASCII_DROPPED).decode() or text
    return unicodedata.normalize("NFKC", text).casefold().translate(_LETTERS) or text
