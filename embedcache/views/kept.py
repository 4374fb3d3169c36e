"""Outcome of a recipe for a text: another text, or the reason why the text stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import TypeAlias


class Kept(Enum):
    """Reason why a row keeps its text; the values are counted and reported."""

    ONE_WORD = "one word"
    NO_SYNONYM = "no synonym"
    NOTHING_TO_MASK = "nothing to mask"
    EMPTY_CELL = "empty cell"
    UNUSABLE_CELL = "unusable cell"
    TOO_LONG = "longer than the model reads"
    EMPTY_OUTPUT = "empty output"
    SAME_TEXT = "same text"
    """Of a part of a corpus: unchanged, or kept for one of the reasons that were counted of the whole."""


Made: TypeAlias = str | Kept
Maker: TypeAlias = Callable[[Sequence[str]], list[Made]]
"""Texts -> outcome for each, which depends on that text alone."""
