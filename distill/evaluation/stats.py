"""Confidence intervals and paired comparisons of evaluation figures.

Items are drawn with replacement, as many as there are, and the figure is taken of every draw; the 95 %
interval reaches from the 2.5th to the 97.5th percentile (Efron and Tibshirani, "An Introduction to the
Bootstrap", 1993, chapter 13). The draws of a set depend on its name, its number of items and the seed alone,
so models that are compared share them, and what makes items hard for both drops out of their difference.

``scipy.stats.bootstrap`` ranks every draw again: 1000 draws of Spearman's correlation of 1,000, 3,000 and
10,000 pairs take it 0.25, 0.89 and 4.4 s on one core. Counting how often an item was drawn takes 0.06, 0.19
and 0.5 s, because the items' order stays the same.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from distill.errors import DataError
from distill.evaluation.result import AVERAGE, Figure, Interval, Outcomes, SuiteResult

DRAWS = 1000
"""Draws of an interval."""

DRAWS_OF_COMPARISON = 2000
"""Draws of a comparison: enough for p-values that are multiplied by tens of sets."""

LEVEL = 0.05
"""A difference is shown where its corrected p-value is below it."""

# Counts of one block, which fit the processor's cache.
_BLOCK = 160_000
# Draws of a small set may hold one item only and have no correlation.
_LEAST_DEFINED = 0.9

Array: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Comparison:
    """Difference of two models on a set, or of their averages over sets.

    Attributes:
        label: the set's name in tables.
        measure: measure of the figures.
        items: number of items they are over.
        a, b: the figures.
        interval: 95 % confidence interval of ``a - b``; None if too few draws have one.
        p_value: two-sided p-value of "no difference"; None likewise.
        p_corrected: the same, corrected for the number of sets; of the average ``p_value`` itself.
    """

    label: str
    measure: str
    items: int
    a: float
    b: float
    interval: Interval | None
    p_value: float | None
    p_corrected: float | None

    @property
    def difference(self) -> float:
        """``a - b``."""
        return self.a - self.b

    @property
    def verdict(self) -> str:
        """``A is better``, ``B is better`` or ``no difference shown``."""
        if self.p_corrected is None or self.p_corrected >= LEVEL:
            return "no difference shown"
        return "A is better" if self.difference > 0 else "B is better"


def with_intervals(result: SuiteResult, draws: int = DRAWS, seed: int = 0) -> SuiteResult:
    """Return a result with an interval for each figure that has outcomes, and one for the average.

    Args:
        result: a model's figures.
        draws: number of draws; 0 removes the intervals.
        seed: choice of the draws.
    """
    found, average = draws_of(result, draws, seed), averages(result, draws, seed)
    figures = {
        name: replace(
            figure,
            interval=percentiles(found[name]) if name in found else None,
            other_intervals=_others(figure, name, draws, seed) if name in found else {},
        )
        for name, figure in result.figures.items()
    }
    ends = None if average is None else percentiles(average)
    return replace(result, figures=figures, average_interval=ends)


def _others(figure: Figure, name: str, draws: int, seed: int) -> dict[str, Interval]:
    """Return the interval of Pearson's correlation, where it stands beside another measure of ranks."""
    if "pearson" not in figure.others or figure.outcomes is None or figure.outcomes.gold is None:
        return {}
    ends = percentiles(drawn(replace(figure.outcomes, ranking="pearson"), name, draws, seed))
    return {} if ends is None else {"pearson": ends}


def retention_interval(
    student: SuiteResult, teacher: SuiteResult, draws: int = DRAWS, seed: int = 0
) -> Interval | None:
    """Return the interval of the student's average in per cent of the teacher's, taken draw by draw.

    None if the two are not of the same items, or the teacher's average is not above zero in most draws.
    """
    own, whole = averages(student, draws, seed), averages(teacher, draws, seed)
    if own is None or whole is None or not have_same_items(student, teacher):
        return None
    return percentiles(np.divide(100 * own, whole, out=np.full(draws, np.nan), where=whole > 0))


def have_same_items(a: SuiteResult, b: SuiteResult) -> bool:
    """Return True if the figures of two results rest on the outcomes of the same items."""
    return a.figures.keys() == b.figures.keys() and all(
        _same_items(figure, b.figures[name]) for name, figure in a.figures.items()
    )


def _same_items(a: Figure, b: Figure) -> bool:
    one, other = a.outcomes, b.outcomes
    if one is None or other is None:
        return False
    if (a.measure, len(one), one.texts) != (b.measure, len(other), other.texts):
        return False
    if one.gold is None or other.gold is None:
        return one.gold is other.gold
    return np.array_equal(one.gold, other.gold)


def compare(
    a: SuiteResult, b: SuiteResult, draws: int = DRAWS_OF_COMPARISON, seed: int = 0
) -> list[Comparison]:
    """Compare two models on each set of a suite and, where there are several, on their average.

    The p-values of the sets are corrected for their number (Holm, "A simple sequentially rejective multiple
    test procedure", Scandinavian Journal of Statistics 6, 1979); the average is a separate test.

    Raises:
        DataError: if the suite averages no sets, the items differ, or the draws are too few to show anything.
    """
    if a.headline != AVERAGE or not have_same_items(a, b):
        raise DataError(
            f"nothing to compare item by item: one model has {_describe(a)}, the other {_describe(b)}; "
            "evaluate both by a suite of sets, as sts or transfer, on the same files"
        )
    least = round(2 * len(a.figures) / LEVEL)
    if draws < least:
        raise DataError(
            f"{draws} draws cannot show a difference on one of {len(a.figures)} sets; use {least}"
        )
    rows, of_a, of_b = [], draws_of(a, draws, seed), draws_of(b, draws, seed)
    for name, figure in a.figures.items():
        facts = (figure.label or name, figure.measure, figure.items or 0, figure.value, b.figures[name].value)
        rows.append(_compared(*facts, of_a[name] - of_b[name]))
    corrected = holm([row.p_value for row in rows])
    rows = [replace(row, p_corrected=p) for row, p in zip(rows, corrected, strict=True)]
    own, others = averages(a, draws, seed), averages(b, draws, seed)
    if len(rows) > 1 and own is not None and others is not None:
        items = sum(row.items for row in rows)
        rows.append(_compared(AVERAGE, "mean of sets", items, a.average, b.average, own - others))
    return rows


def _describe(result: SuiteResult) -> str:
    return ", ".join(f"{name} ({one.items} items)" for name, one in result.figures.items())


def _compared(label: str, measure: str, items: int, a: float, b: float, apart: Array) -> Comparison:
    p = p_value(apart)
    return Comparison(label, measure, items, a, b, percentiles(apart), p, p)


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Return p-values corrected for their number; those that are None stay so and are not counted."""
    known = sorted((value, place) for place, value in enumerate(values) if value is not None)
    corrected: list[float | None] = [None] * len(values)
    highest = 0.0
    for rank, (value, place) in enumerate(known):
        highest = max(highest, min(1.0, value * (len(known) - rank)))
        corrected[place] = highest
    return corrected


def p_value(differences: Array) -> float | None:
    """Return the two-sided p-value of "no difference" from the differences of the draws.

    Twice the smaller share of draws on one side of zero, with one added to counts and draws, so that it is
    never 0 (Davison and Hinkley, "Bootstrap Methods and their Application", 1997, section 4.2). None if too
    few draws have a figure.
    """
    defined = _defined(differences)
    if defined is None:
        return None
    below, above = int((defined <= 0).sum()), int((defined >= 0).sum())
    return min(1.0, 2 * (1 + min(below, above)) / (1 + len(defined)))


def percentiles(figures: Array) -> Interval | None:
    """Return the 2.5th and the 97.5th percentile; None if too few draws have a figure."""
    defined = _defined(figures)
    if defined is None:
        return None
    low, high = np.percentile(defined, (2.5, 97.5))
    return float(low), float(high)


def _defined(figures: Array) -> Array | None:
    defined = figures[np.isfinite(figures)]
    return defined if len(defined) >= _LEAST_DEFINED * len(figures) else None


def averages(result: SuiteResult, draws: int, seed: int) -> Array | None:
    """Return the average over sets of every draw, (draws,); None if a set has no outcomes."""
    found = list(draws_of(result, draws, seed).values())
    if result.headline != AVERAGE or len(found) < len(result.figures):
        return None
    average: Array = np.mean(found, axis=0)
    return average


def draws_of(result: SuiteResult, draws: int, seed: int) -> dict[str, Array]:
    """Return set -> its figure of every draw, (draws,), of the sets that have outcomes."""
    outcomes = {name: figure.outcomes for name, figure in result.figures.items()}
    return {name: drawn(one, name, draws, seed) for name, one in outcomes.items() if one and draws}


@lru_cache(maxsize=256)  # a figure's draws serve its interval, the average's, the retention's and comparisons
def drawn(outcomes: Outcomes, name: str, draws: int, seed: int) -> Array:
    """Return the figure of every draw, (draws,); NaN where a draw has none.

    Args:
        outcomes: n items.
        name: the set's name.
        draws: number of draws of n items.
        seed: choice of the draws.
    """
    values, gold = outcomes.values, outcomes.gold
    figure = _mean(values) if gold is None else RANKINGS[outcomes.ranking](gold, values)
    found = np.concatenate([figure(counts) for counts in _counts(len(values), name, draws, seed)])
    found.setflags(write=False)
    return found


def _counts(items: int, name: str, draws: int, seed: int) -> Iterator[Array]:
    """Yield blocks of draws, (items, b): how often each item was drawn."""
    rng = np.random.default_rng((seed, zlib.crc32(name.encode())))
    block = max(1, _BLOCK // items)
    for first in range(0, draws, block):
        width = min(block, draws - first)
        places = rng.integers(items, size=(items, width)) * width + np.arange(width)
        yield np.bincount(places.ravel(), minlength=items * width).reshape(items, width).astype(np.float64)


def _mean(values: Array) -> Callable[[Array], Array]:
    """Return a function of (n, b) counts to means of the items drawn, (b,)."""
    return lambda counts: values @ counts / len(values)


def _spearman(gold: Array, predicted: Array) -> Callable[[Array], Array]:
    """Return a function of (n, b) counts to Spearman's correlations of the items drawn, times 100, (b,)."""
    ranks = _ranks(gold), _ranks(predicted)

    def figure(counts: Array) -> Array:
        a, b = (rank(counts) for rank in ranks)
        together, of_a, of_b = (np.einsum("ij,ij,ij->j", x, y, counts) for x, y in ((a, b), (a, a), (b, b)))
        with np.errstate(invalid="ignore"):
            correlation: Array = 100 * together / np.sqrt(of_a * of_b)
        return correlation

    return figure


def _pearson(gold: Array, predicted: Array) -> Callable[[Array], Array]:
    """Return a function of (n, b) counts to Pearson's correlations of the items drawn, times 100, (b,)."""
    # Sums of squares of numbers far from zero would lose digits.
    x, y = gold - gold.mean(), predicted - predicted.mean()

    def figure(counts: Array) -> Array:
        of_x, of_y, xx, yy, xy = (one @ counts / len(x) for one in (x, y, x * x, y * y, x * y))
        with np.errstate(invalid="ignore", divide="ignore"):
            correlation: Array = 100 * (xy - of_x * of_y) / np.sqrt((xx - of_x**2) * (yy - of_y**2))
        return correlation

    return figure


def _average_precision(gold: Array, predicted: Array) -> Callable[[Array], Array]:
    """Return a function of (n, b) counts to average precisions of the items drawn, times 100, (b,).

    Precision is taken at every distinct value of ``predicted``, and weighted by the recall gained there.
    """
    order = np.argsort(-predicted, kind="stable")
    # Items of one value are found together.
    ends = np.flatnonzero(np.diff(predicted[order], append=-np.inf))
    is_right = gold[order][:, None]

    def figure(counts: Array) -> Array:
        drawn = counts[order]
        right, found = (np.cumsum(one, axis=0)[ends] for one in (drawn * is_right, drawn))
        precision = np.divide(right, found, out=np.zeros_like(right), where=found > 0)
        gained = np.diff(right, axis=0, prepend=0)
        with np.errstate(invalid="ignore"):
            average: Array = 100 * (precision * gained).sum(axis=0) / right[-1]
        return average

    return figure


def _ranks(values: Array) -> Callable[[Array], Array]:
    """Return a function of (n, b) counts to the items' average ranks less their mean, (n, b).

    An item's rank in a draw is the number of drawn items below it and half of those that tie with it.
    """
    distinct, group = np.unique(values, return_inverse=True)
    order = np.argsort(group, kind="stable")
    starts = np.searchsorted(group[order], np.arange(len(distinct)))

    def centred(counts: Array) -> Array:
        tied = np.add.reduceat(counts[order], starts, axis=0)
        rank: Array = (np.cumsum(tied, axis=0) - (tied + len(counts)) / 2)[group]
        return rank

    return centred


RANKINGS = {"spearman": _spearman, "pearson": _pearson, "average precision": _average_precision}
