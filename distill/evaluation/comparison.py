"""Two models on the same items: how far their figures lie apart, and whether other items might turn it round.

Both models are given the same draws of the bootstrap (:mod:`distill.evaluation.bootstrap`). Of the sets of a
suite each is a test of its own, so their p-values are corrected for their number as Holm has it ("A simple
sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6, 1979). The average is
one test and needs no correction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from distill.errors import DataError
from distill.evaluation.bootstrap import average_of, drawn_figures, p_value, percentile_interval
from distill.evaluation.encoding import Progress, silent
from distill.evaluation.runner import evaluate_suites
from distill.evaluation.scores import Interval, MeanOutcomes, Outcomes, PairOutcomes, SetScores
from distill.evaluation.tasks import Spec

DRAWS = 2000
"""Draws, where a caller does not say how many: enough for p-values that are multiplied by seven sets."""

LEVEL = 0.05
"""A difference is called shown where its p-value, corrected where it has to be, is below it."""


@dataclass(frozen=True)
class Difference:
    """How two models differ on a set, or in the average over sets. Figures are times 100.

    Attributes:
        label: the set's name in tables.
        measure: what the figures are.
        items: how many items they are over.
        a, b: the figures of the two models.
        interval: 95 % confidence interval of ``a - b``; None where too few draws have one.
        p: two-sided p-value of "there is no difference", uncorrected; None likewise.
        p_corrected: the same, corrected for the number of sets; of the average ``p`` itself.
    """

    label: str
    measure: str
    items: int
    a: float
    b: float
    interval: Interval | None
    p: float | None
    p_corrected: float | None

    @property
    def difference(self) -> float:
        """What ``a`` has more than ``b``."""
        return self.a - self.b

    @property
    def verdict(self) -> str:
        """``A is better``, ``B is better`` or ``no difference shown``."""
        if self.p_corrected is None or self.p_corrected >= LEVEL:
            return "no difference shown"
        return "A is better" if self.difference > 0 else "B is better"

    def to_json(self) -> dict[str, object]:
        """Return all figures as a JSON object, p-values with 6 decimals."""
        interval = None if self.interval is None else [round(end, 4) for end in self.interval]
        return {
            "measure": self.measure,
            "items": self.items,
            "a": round(self.a, 4),
            "b": round(self.b, 4),
            "difference": round(self.difference, 4),
            "interval": interval,
            "p": None if self.p is None else round(self.p, 6),
            "p_corrected": None if self.p_corrected is None else round(self.p_corrected, 6),
            "verdict": self.verdict,
        }


@dataclass(frozen=True)
class SuiteComparison:
    """Two models on the sets of one suite.

    Attributes:
        suite: the suite.
        sets: the differences by set.
        average: that of the averages; None where there is one set only.
    """

    suite: str
    sets: Mapping[str, Difference]
    average: Difference | None

    def to_json(self) -> dict[str, object]:
        """Return ``suite``, ``sets`` and ``average``."""
        return {
            "suite": self.suite,
            "sets": {name: one.to_json() for name, one in self.sets.items()},
            "average": None if self.average is None else self.average.to_json(),
        }


@dataclass(frozen=True)
class Comparison:
    """Two models on one or several suites.

    Attributes:
        a, b: their names.
        suites: one comparison a suite.
        draws: how many draws the intervals and p-values rest on.
        notes: what a reader must know.
    """

    a: str
    b: str
    suites: tuple[SuiteComparison, ...]
    draws: int
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return the comparison as a JSON object."""
        return {
            "a": self.a,
            "b": self.b,
            "draws": self.draws,
            "correction": "holm, over the sets of a suite",
            "suites": [one.to_json() for one in self.suites],
            "notes": list(self.notes),
        }


def compare(
    a: Spec,
    b: Spec,
    *,
    suites: Sequence[str] | None = ("sts",),
    data: str | Path | None = None,
    device: str = "auto",
    compute_dtype: str = "float32",
    draws: int = DRAWS,
    seed: int = 0,
    contamination: bool = True,
    again: bool = False,
    progress: Progress = silent,
) -> Comparison:
    """Compare two models item by item.

    Args:
        a, b: the models, as :func:`distill.evaluation.runner.evaluate_suites` takes them.
        suites: suites that consist of sets; None for every one that finds its files.
        data: the folder of test files.
        device, compute_dtype: as for an evaluation.
        draws: draws of the bootstrap.
        seed: chooses the draws.
        contamination, again: as for an evaluation.
        progress: called while sentences are encoded.

    Raises:
        DataError: if both are the same model, or a suite that was named has no items to compare on.
        DistillError, EmbedCacheError: as :func:`distill.evaluation.runner.evaluate_suites`.
    """
    if a == b or (isinstance(a, str | Path) and isinstance(b, str | Path) and Path(a) == Path(b)):
        raise DataError(f"{a} is to be compared with itself; name two models")
    results = evaluate_suites(
        [a, b],
        suites=suites,
        data=data,
        beside_teacher=False,
        device=device,
        compute_dtype=compute_dtype,
        bootstrap=0,
        contamination=contamination,
        keep=True,
        again=again,
        progress=progress,
    )
    compared, notes, without = [], [], []
    for result in results:
        first, second = result.models
        notes += [note for note in result.notes if note not in notes]
        if isinstance(first.scores, SetScores) and isinstance(second.scores, SetScores):
            compared.append(compare_scores(result.suite, first.scores, second.scores, draws, seed))
        else:
            without.append(result.suite)
    if without and (suites is not None or not compared):
        raise DataError(
            f"{', '.join(without)} measures models as a whole, there are no items to compare them on: name "
            "suites that consist of sets, as sts or transfer"
        )
    if without:
        notes.append(f"not compared, there are no items: {', '.join(without)}")
    most = max(len(one.sets) for one in compared)
    if most * 2 / (1 + draws) >= LEVEL:
        notes.append(
            f"{draws} draws are too few to show a difference on one of {most} sets: no p can be below {LEVEL}"
        )
    names = (results[0].models[0].name, results[0].models[1].name)
    return Comparison(*names, tuple(compared), draws, tuple(notes))


def compare_scores(
    suite: str, a: SetScores, b: SetScores, draws: int = DRAWS, seed: int = 0
) -> SuiteComparison:
    """Compare the scores that two models have on the same items.

    Raises:
        DataError: if the items are not the same, or were not kept.
    """
    _require_same_items(suite, a, b)
    drawn_a, drawn_b = drawn_figures(a, draws, seed), drawn_figures(b, draws, seed)
    apart = {name: drawn_a[name] - drawn_b[name] for name in a.sets}
    values = [p_value(differences) for differences in apart.values()]
    corrected = holm(values)
    sets = {}
    for number, (name, differences) in enumerate(apart.items()):
        one, other = a.sets[name], b.sets[name]
        sets[name] = Difference(
            one.label,
            one.measure,
            one.items,
            one.value,
            other.value,
            percentile_interval(differences),
            values[number],
            corrected[number],
        )
    average = _average(a, b, average_of(apart)) if len(sets) > 1 else None
    return SuiteComparison(suite, sets, average)


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Return p-values corrected for their number; those that are None stay so and are not counted."""
    there = sorted((value, place) for place, value in enumerate(values) if value is not None)
    corrected: list[float | None] = [None] * len(values)
    highest = 0.0
    for rank, (value, place) in enumerate(there):
        highest = max(highest, min(1.0, value * (len(there) - rank)))
        corrected[place] = highest
    return corrected


def _average(a: SetScores, b: SetScores, differences: NDArray[np.float64]) -> Difference:
    p = p_value(differences)
    items = sum(score.items for score in a.sets.values())
    interval = percentile_interval(differences)
    return Difference("average", "mean of sets", items, a.average, b.average, interval, p, p)


def _require_same_items(suite: str, a: SetScores, b: SetScores) -> None:
    if list(a.sets) != list(b.sets):
        raise DataError(
            f"{suite}: one model was scored on {', '.join(a.sets)}, the other on {', '.join(b.sets)}; "
            "evaluate both on the same files"
        )
    for name, one in a.sets.items():
        other = b.sets[name]
        if one.outcomes is None or other.outcomes is None:
            raise DataError(f"{suite}, {name}: single outcomes were not kept; evaluate again with --again")
        if one.measure != other.measure or not _same_items(one.outcomes, other.outcomes):
            texts = "" if one.outcomes.items == other.outcomes.items else ", of other texts"
            raise DataError(
                f"{suite}, {name}: the models were not scored on the same items ({one.items} and "
                f"{other.items}, {one.measure} and {other.measure}{texts}); evaluate both on the same files"
            )


def _same_items(a: Outcomes, b: Outcomes) -> bool:
    if len(a) != len(b) or type(a) is not type(b):
        return False
    # Evaluations of earlier versions do not say which items they are of.
    if None not in (a.items, b.items) and a.items != b.items:
        return False
    if isinstance(a, PairOutcomes) and isinstance(b, PairOutcomes):
        return bool(np.array_equal(a.gold, b.gold))
    return isinstance(a, MeanOutcomes)
