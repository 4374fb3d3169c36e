"""Contamination: what of a test set a model has seen, in its training or when its checkpoint was chosen.

Texts are compared without case, blanks and punctuation (:func:`embedcache.corpus.folding.fold`), so
that tokenised and plain spellings meet. A sentence that is the same but for a word is another one here: a
share of zero does not show that nothing alike was trained on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from distill.evaluation.set_items import Items
from embedcache.corpus.folding import fold


@dataclass(frozen=True)
class Seen:
    """What of one test set is among the training texts.

    Attributes:
        sentences: distinct texts of the set, folded.
        sentences_seen: those among the training texts.
        pairs: items of two texts or more.
        pairs_seen: those all of whose texts are among the training texts.
    """

    sentences: int
    sentences_seen: int
    pairs: int
    pairs_seen: int

    def to_json(self) -> dict[str, object]:
        """Return counts and shares (0 to 1); those of pairs are null for sets without pairs."""
        return {
            "sentences": self.sentences,
            "sentences_seen": self.sentences_seen,
            "sentences_share": _share(self.sentences_seen, self.sentences),
            "pairs": self.pairs or None,
            "pairs_seen": self.pairs_seen if self.pairs else None,
            "pairs_share": _share(self.pairs_seen, self.pairs),
        }


class Overlap:
    """Which texts of test sets occur in a stream of others; memory grows with the test sets alone.

    Args:
        sets: the items of each set; keys are given back by :meth:`seen`.
    """

    def __init__(self, sets: Mapping[tuple[str, str], Items]) -> None:
        self._sets = {
            key: [tuple(fold(text) for text in item) for item in items] for key, items in sets.items()
        }
        self._wanted = {text for items in self._sets.values() for item in items for text in item}
        self._met: set[str] = set()

    def meet(self, texts: Iterable[str]) -> None:
        """Look for the test sets' texts among ``texts``."""
        self._met |= self._wanted.intersection(map(fold, texts))

    def seen(self) -> dict[tuple[str, str], Seen]:
        """Return what was met so far, by set."""
        return {key: self._count(items) for key, items in self._sets.items()}

    def _count(self, items: Items) -> Seen:
        distinct = {text for item in items for text in item}
        pairs = [item for item in items if len(item) > 1]
        both = sum(all(text in self._met for text in item) for item in pairs)
        return Seen(len(distinct), len(distinct & self._met), len(pairs), both)


def pairs_in(items: Items, chosen_on: Iterable[tuple[str, str]]) -> int:
    """Return how many items of ``items`` are pairs of ``chosen_on``, whichever side comes first."""
    known = {_pair(pair) for pair in chosen_on}
    return sum(len(item) > 1 and _pair(item) in known for item in items)


def describe(seen: Mapping[str, Seen]) -> str:
    """Return what was met of each set in words; sets of which nothing was met are counted."""
    met = {name: one for name, one in seen.items() if one.sentences_seen}
    parts = []
    for name, one in met.items():
        part = f"{name} {_part_of(one.sentences_seen, one.sentences, 'sentences')}"
        if one.pairs_seen:
            part += f", both sides of {_part_of(one.pairs_seen, one.pairs, 'pairs')}"
        elif one.pairs:
            part += ", both sides of no pair"
        parts.append(part)
    clean = [name for name in seen if name not in met]
    if clean:
        parts.append(f"nothing of {', '.join(clean)}")
    return "; ".join(parts)


def per_cent(part: int, whole: int) -> str:
    """Return the share of ``part`` in words; what is there but rounds to nothing is not called nothing."""
    share = 100 * part / whole
    return "< 0.1 %" if 0 < share < 0.05 else f"{share:.1f} %"


def _part_of(part: int, whole: int, what: str) -> str:
    return f"{part} of {whole} {what} ({per_cent(part, whole)})"


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 6) if whole else None


def _pair(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(map(fold, texts)))
