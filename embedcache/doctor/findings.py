"""Findings of the doctor, and the table of thresholds that judges them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal, TypeAlias

Level: TypeAlias = Literal["ok", "look", "bad"]
LEVELS: tuple[Level, ...] = ("ok", "look", "bad")

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


@dataclass(frozen=True)
class Threshold:
    """A value above ``look`` or ``bad`` has that level."""

    look: float
    bad: float
    advice: str


_REBUILD = "'embedcache explain TEXT' names the shard. Delete it and build again, or leave the text out."

THRESHOLDS = {
    "missing vectors": Threshold(0, 0, "Not trained on. Build the corpus again, or project it again."),
    "repeated texts": Threshold(0.1, 0.5, "A text is trained on once: the corpus is smaller than it looks."),
    "respelled texts": Threshold(0.05, 0.25, "Equal but for case, spacing and punctuation. Thin them out."),
    "largest label": Threshold(0.9, 0.99, "One label dominates. A classifier learns little of the others."),
    "NaN or infinite": Threshold(0, 0, f"Such a vector spoils every weight. {_REBUILD}"),
    "zero vectors": Threshold(0, 0, f"Such a vector has no direction. {_REBUILD}"),
    # Largest deviation from length one, as a multiple of what codec and compute dtype round.
    "lengths of vectors": Threshold(1, 1, "The contract promises length one. --deep names the shards."),
    # Longest vector as a multiple of the mean. A loss on differences follows the squares.
    "outliers": Threshold(10, inf, "The longest vector dominates losses such as mse. Use a cosine loss."),
    # Spellings that a tokenizer does not tell apart share a vector; mostly fewer than one text in a hundred.
    "identical vectors": Threshold(
        0.01, 0.1, "A student cannot tell these texts apart. See what they share."
    ),
    "truncated texts": Threshold(
        0.05, 0.25, "Only their beginning was seen. Split them, or raise --max-length."
    ),
    "near-identical vectors": Threshold(0.05, 0.25, "Such texts are one target twice. Thin them out."),
    # Contrastively trained teachers lie at 0 to 0.3, bare masked language models at 0.5 to 0.8.
    "mean cosine": Threshold(0.5, 0.9, "All vectors point one way. Use a teacher trained for similarity."),
    # Share of the directions that is not in use. Sentence encoders use a third and more.
    "unused directions": Threshold(0.9, 0.98, "A narrower student will do, or the teacher has collapsed."),
    "first component": Threshold(0.3, 0.6, "One direction dominates. See what the texts at its ends share."),
    "dead dimensions": Threshold(0.01, 0.1, "These hardly vary. See --truncate-dim and the last layer."),
    # Below one in a hundred, a score moves less than between two seeds.
    "evaluation texts": Threshold(0, 0.01, "Take these out of the source, or report no score of this set."),
}


def judge(
    name: str, value: float, figure: str, *, of: str = "", examples: Sequence[Sequence[str]] = ()
) -> Finding:
    """Return the finding of a figure.

    Args:
        name: name in :data:`THRESHOLDS`.
        value: value to judge; NaN is bad.
        figure: the value as text.
        of: corpus or evaluation set, added to the name.
        examples: groups of texts; kept if the level is not ``ok``.
    """
    threshold = THRESHOLDS[name]
    level: Level = "ok" if value <= threshold.look else "look" if value <= threshold.bad else "bad"
    title = f"{name}: {of}" if of else name
    if level == "ok":
        return Finding(title, figure, value, level)
    return Finding(title, figure, value, level, threshold.advice, tuple(map(tuple, examples)))
