"""Findings of the doctor, and the table of thresholds that judges them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import TypeAlias

from embedcache.keys import KeyArray
from embedcache.live import Level

TextsOf: TypeAlias = Callable[[KeyArray], list[str]]
"""Texts of keys, for examples."""

EXAMPLES = 5
"""Most examples of a finding."""


@dataclass(frozen=True)
class Finding:
    """A figure and its verdict.

    Attributes:
        name: name of the figure.
        figure: the figure as text.
        value: the number that is judged.
        level: ``ok``, ``look`` (look at it before training) or ``bad`` (mend it before training).
        advice: reason and remedy; empty for ``ok``.
        examples: groups of texts it was seen on; texts of equal or near vectors are one group.
    """

    name: str
    figure: str
    value: float
    level: Level
    advice: str = ""
    examples: tuple[tuple[str, ...], ...] = ()


_REBUILD = "'embedcache explain TEXT' names the shard. Delete it and build again, or leave the text out."

# Name -> value above which it is a warning, value above which it is bad, advice.
THRESHOLDS: dict[str, tuple[float, float, str]] = {
    "missing vectors": (0, 0, "Not trained on. Build the corpus again, or project it again."),
    "repeated texts": (0.1, 0.5, "A text is trained on once: the corpus is smaller than it looks."),
    "NaN or infinite": (0, 0, f"Such a vector spoils every weight. {_REBUILD}"),
    "zero vectors": (0, 0, f"Such a vector has no direction. {_REBUILD}"),
    # Largest deviation from length one, as a multiple of what codec and compute dtype round.
    "lengths of vectors": (1, 1, "The contract promises length one. A deep examination names the shards."),
    # Longest vector as a multiple of the mean. A loss on differences follows the squares.
    "outliers": (10, inf, "The longest vector dominates losses such as mse. Use a cosine loss."),
    # Spellings that a tokenizer does not tell apart share a vector; mostly fewer than one text in a hundred.
    "identical vectors": (0.01, 0.1, "A student cannot tell these texts apart. See what they share."),
    "truncated texts": (0.05, 0.25, "Only their beginning was seen. Split them, or raise max_length."),
    # Contrastively trained teachers lie at 0 to 0.3, bare masked language models at 0.5 to 0.8.
    "mean cosine": (0.5, 0.9, "All vectors point one way. Use a teacher trained for similarity."),
    # Share of the directions that is not in use. Sentence encoders use a third and more.
    "unused directions": (0.9, 0.98, "A narrower student will do, or the teacher has collapsed."),
    # Below one in a hundred, a score moves less than between two seeds.
    "evaluation texts": (0, 0.01, "Take these out of the source, or report no score of this set."),
}


def judge(
    name: str, value: float, figure: str, *, of: str = "", examples: Sequence[Sequence[str]] = ()
) -> Finding:
    """Return the finding of a figure.

    Args:
        name: name in ``THRESHOLDS``.
        value: value to judge; NaN is bad.
        figure: the value as text.
        of: corpus or evaluation set, added to the name.
        examples: groups of texts; kept if the level is not ``ok``.
    """
    look, bad, advice = THRESHOLDS[name]
    title = f"{name}: {of}" if of else name
    if value <= look:
        return Finding(title, figure, value, "ok")
    level: Level = "look" if value <= bad else "bad"
    return Finding(title, figure, value, level, advice, tuple(map(tuple, examples)))


def share(count: int, total: int, noun: str) -> tuple[float, str]:
    """Return a share as a number and as text; the share of nothing is 0."""
    return count / max(total, 1), f"{count:,} of {total:,} {noun}".rstrip()
