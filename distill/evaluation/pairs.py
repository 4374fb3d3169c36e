"""Sets of pairs and triplets, and the figures of a model on them.

Pairs have a score each (Spearman, and Pearson beside it) or a label 0 or 1 (average precision, and the best
F1 and the area under the ROC curve beside it). Of triplets the positive has to be nearer than the negative.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from distill.errors import DataError
from distill.evaluation.files import (
    Row,
    count_repeats,
    describe_skipped,
    items_digest,
    parse_score,
    read_rows,
    skipped_note,
)
from distill.evaluation.models import Encode, Vectors
from distill.evaluation.result import Figure, Outcomes, SuiteResult
from distill.evaluation.task import Encoded
from distill.vectors import unit

PAIR_COLUMNS = ("subset", "score", "sentence1", "sentence2")
"""Columns of a test file of scored pairs."""

Kind: TypeAlias = Literal["scores", "labels", "triplets"]

MEASURES: dict[Kind, str] = {
    "scores": "spearman",
    "labels": "average precision",
    "triplets": "accuracy",
}
"""Kind of a set -> the measure that models are ranked by."""

# Cosines of float32 vectors are exact to about 1e-7: ranking a smaller spread would rank noise.
_SMALLEST_SPREAD = 1e-6


@dataclass(frozen=True)
class PairSet:
    """Pairs or triplets, in file order.

    Attributes:
        name: key of the set in results.
        kind: scores or labels 0 and 1 of two texts, or an anchor, a positive and a negative.
        texts: the texts by column: two, or three of triplets.
        gold: (n,) float64; scores or labels, of triplets all 1.
        subsets: subset of each row; empty without a column of subsets.
        skipped: reason -> rows left out.
        label: name in tables; default: ``name``.
    """

    name: str
    kind: Kind
    texts: tuple[list[str], ...]
    gold: NDArray[np.float64]
    subsets: tuple[str, ...] = ()
    skipped: Counter[str] = field(default_factory=Counter)
    label: str = ""

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.gold)

    @property
    def items(self) -> list[tuple[str, ...]]:
        """The texts by row."""
        return list(zip(*self.texts, strict=True))

    @property
    def digest(self) -> str:
        """The sha256 of everything that decides a figure."""
        whole = hashlib.sha256(f"{self.kind} {items_digest(self.items)}".encode())
        whole.update(self.gold.tobytes() + items_digest([self.subsets]).encode())
        return whole.hexdigest()


def cosines(vectors: Sequence[Vectors]) -> NDArray[np.float64]:
    """Return the cosine of each pair; of each triplet, that to its positive less that to its negative.

    Args:
        vectors: the vectors of each column of texts, (n, d); rows that are zero have cosine 0.
    """
    first, *others = (unit(one.astype(np.float64)) for one in vectors)
    near, *far = (np.einsum("ij,ij->i", first, other) for other in others)
    # What is equal but for rounding, as are vectors of signs at one distance, has to tie.
    found: NDArray[np.float64] = np.round(near - far[0] if far else near, 12)
    return found


def measure(kind: Kind, gold: NDArray[np.float64], cosines: NDArray[np.float64]) -> float:
    """Return the measure of a kind of set, -1 to 1 of scores and else 0 to 1.

    NaN where cosines are not finite; 0 where all of them are equal, which ranks nothing.

    Args:
        kind: kind of the set.
        gold, cosines: as of ``PairSet``, (n,).
    """
    if not np.isfinite(cosines).all():
        return math.nan
    if kind == "triplets":
        # Not "as near as": to a model whose vectors are all alike, everything is.
        return float((cosines > 0).mean())
    if np.ptp(cosines) < _SMALLEST_SPREAD or np.ptp(gold) == 0:
        return 0.0
    if kind == "scores":
        from scipy.stats import spearmanr

        return float(spearmanr(gold, cosines).statistic)
    from sklearn.metrics import average_precision_score

    return float(average_precision_score(gold, cosines))


def read_pairs(path: str | Path, name: str, label: str = "", subset: str | None = None) -> PairSet:
    """Read a file of scored pairs, all of them or those of one subset.

    Raises:
        DataError: as ``read_rows``, and if no scored pair is left.
    """
    rows, skipped = read_rows(Path(path), PAIR_COLUMNS)
    return scored_pairs(name, label or name, [row for row in rows if subset in (None, row[0])], skipped)


def scored_pairs(name: str, label: str, rows: Iterable[Row], skipped: Counter[str]) -> PairSet:
    """Return the set of rows (subset, score, sentence1, sentence2); ``skipped`` is counted on.

    Raises:
        DataError: if no scored pair is left.
    """
    kept = []
    for subset, cell, left, right in rows:
        if not math.isfinite(score := parse_score(cell)):
            skipped["no usable score"] += 1
        elif not (left.strip() and right.strip()):
            skipped["empty sentence"] += 1
        else:
            kept.append((subset, score, left, right))
    if not kept:
        raise DataError(f"{name}: no scored pair (skipped: {describe_skipped(skipped)}); check the file")
    subsets, scores, first, second = zip(*kept, strict=True)
    gold = np.array(scores, np.float64)
    return PairSet(name, "scores", (list(first), list(second)), gold, subsets, skipped, label)


def score_set(own: PairSet, vectors: Sequence[Vectors]) -> Figure:
    """Score a model by its vectors of each column of texts, (n, d).

    Raises:
        DataError: if no measure is defined: fewer than two rows, or all scores or all cosines equal.
    """
    found, title = cosines(vectors), own.label or own.name
    if len(own) < 2 or (own.kind != "triplets" and np.ptp(own.gold) == 0):
        raise DataError(f"{title}: {len(own)} pairs with equal scores cannot be ranked; check the file")
    if np.ptp(found) < _SMALLEST_SPREAD:
        raise DataError(
            f"{title}: all {len(own)} cosines are equal ({found[0]:.6f}), the model has collapsed to "
            "one vector; train it again with another loss or a lower learning rate"
        )
    texts, skipped = items_digest(own.items), own.skipped.total()
    facts: dict[str, Any] = {"measure": MEASURES[own.kind], "items": len(own), "label": title}
    value = 100 * measure(own.kind, own.gold, found)
    if own.kind == "triplets":
        outcomes = Outcomes(np.where(found > 0, 100.0, 0.0), texts=texts)
        return Figure(value, outcomes=outcomes, skipped=skipped, **facts)
    others: dict[str, float] = {}
    if own.kind == "labels":
        others = _of_labels(own.gold, found)
    else:
        others["pearson"] = 100 * float(np.corrcoef(own.gold, found)[0, 1])
        rows = [np.array(own.subsets) == subset for subset in dict.fromkeys(own.subsets)]
        if rows and all(np.ptp(own.gold[one]) and np.ptp(found[one]) for one in rows):
            of_subsets = [100 * measure("scores", own.gold[one], found[one]) for one in rows]
            others["spearman_mean_of_subsets"] = float(np.mean(of_subsets))
    outcomes = Outcomes(found, own.gold, texts, MEASURES[own.kind])
    return Figure(value, outcomes=outcomes, others=others, skipped=skipped, **facts)


def _of_labels(gold: NDArray[np.float64], cosines: NDArray[np.float64]) -> dict[str, float]:
    """Return the best F1 over all thresholds, that threshold times 100, and the area under the ROC curve."""
    from sklearn.metrics import precision_recall_curve, roc_auc_score

    precision, recall, thresholds = precision_recall_curve(gold, cosines)
    both = precision + recall
    f1 = np.divide(2 * precision * recall, both, out=np.zeros_like(both), where=both > 0)[:-1]
    return {
        "best_f1": 100 * float(f1.max()),
        "threshold": 100 * float(thresholds[f1.argmax()]),
        "auc": 100 * float(roc_auc_score(gold, cosines)),
    }


def score_sets(
    encode: Encode, sets: Sequence[PairSet], notes: Sequence[str] = (), **facts: Any
) -> SuiteResult:
    """Score a model on sets; ``facts`` are further attributes of the result."""
    # Sets share sentences, and a correlation of ranks hardly depends on a vector's last bits.
    vectors = Encoded(encode, (text for one in sets for column in one.texts for text in column))
    figures, found = {}, list(notes)
    for one in sets:
        figures[one.name] = score_set(one, [vectors(column) for column in one.texts])
        found += skipped_note(one.label or one.name, one.skipped)
        if repeats := count_repeats(one.items):
            found.append(f"{one.label or one.name}: {repeats} repeated rows, each counted")
    settings = {**facts.pop("settings", {}), "sentences": len(vectors)}
    return SuiteResult(figures, notes=tuple(found), settings=settings, **facts)
