"""Bootstrap: how much a figure would vary if other items of the same kind had been tested on.

Items are drawn with replacement, as many as there are, and the figure is taken of every such draw; the 95 %
interval reaches from the 2.5th to the 97.5th percentile of these figures (Efron and Tibshirani, "An
Introduction to the Bootstrap", 1993, chapter 13). Models that are compared are given the same draws, so that
what makes items hard or easy for both drops out of their difference.

All measures of a set are taken of the same draws. Only the choice of items is drawn anew: the spread over
seeds of a training is another one.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from distill.evaluation.options import BOOTSTRAP
from distill.evaluation.scores import (
    PEARSON,
    SUBSET_MEAN,
    Draws,
    Interval,
    MeanOutcomes,
    Outcomes,
    PairOutcomes,
    PercentileOutcomes,
    RatioOutcomes,
    Scores,
    SetScore,
    SetScores,
    WholeScores,
)

# Draws are worked on in blocks of so many drawn items: what the processor's own memory holds is quickest.
_BLOCK = 160_000
# Of small sets, draws may hold a single item again and again and have no correlation.
_LEAST_DEFINED = 0.9

# Of values that differ by less than this share of their size, a correlation would be one of rounding.
_LEAST_SPREAD = 1e-12

Counts = NDArray[np.float64]
Figure = Callable[[Counts], NDArray[np.float64]]
"""Takes (n, b) counts, how often each item was drawn, to the figures of the b draws."""

S = TypeVar("S")
# What the figure of a set is called among its measures, and what draws of sentences are called among sets.
_MAIN = ""
_WHOLE = "sentences"


def with_intervals(scores: S, samples: int = BOOTSTRAP, seed: int = 0) -> S:
    """Return ``scores`` with an interval for every measure that has outcomes, and one for the average.

    Nothing is drawn where the intervals are those of the same draws already.

    Args:
        scores: what a suite measured; one that has no outcomes is returned as it is.
        samples: how many draws; 0 for no interval, not even one that is there already.
        seed: chooses the draws.
    """
    if not isinstance(scores, SetScores | WholeScores):
        return scores
    if scores.drawn is not None and scores.drawn.are(samples, seed):
        return scores
    if isinstance(scores, WholeScores):
        if samples == 0:
            return replace(scores, intervals={}, drawn=None)
        intervals = _intervals_of_whole(scores, samples, seed)
        return replace(scores, intervals=intervals, drawn=Draws(samples, seed))
    if samples == 0:
        without = {name: replace(score, interval=None, intervals={}) for name, score in scores.sets.items()}
        return replace(scores, sets=without, average_interval=None, drawn=None)
    drawn: dict[str, NDArray[np.float64]] = {}
    sets = {}
    for name, score in scores.sets.items():
        sets[name] = score
        if score.outcomes is not None and len(score.outcomes):
            figures = _all_figures(score, score.outcomes)
            found = _taken(figures, len(score.outcomes), samples, _seed_of(name, seed))
            drawn[name] = found.pop(_MAIN)
            others = {measure: percentile_interval(values) for measure, values in found.items()}
            sets[name] = replace(score, interval=percentile_interval(drawn[name]), intervals=others)
    averages = average_of(drawn) if drawn and len(drawn) == len(sets) else None
    whole = None if averages is None else percentile_interval(averages)
    return replace(scores, sets=sets, average_interval=whole, drawn=Draws(samples, seed, averages))


def retention_interval(student: Scores, teacher: Scores) -> Interval | None:
    """Return the interval of the student's average in per cent of the teacher's, draw by draw.

    Both were given the same draws of each set, so that what makes its items hard for both drops out.

    Returns:
        None where the two were not drawn alike on the same items, or too many draws have no ratio, as the
        teacher's average is not above zero.
    """
    if not isinstance(student, SetScores) or not isinstance(teacher, SetScores):
        return None
    own, whole = student.drawn, teacher.drawn
    if own is None or whole is None or own.averages is None or whole.averages is None:
        return None
    if not own.are(whole.samples, whole.seed) or _items_of(student) != _items_of(teacher):
        return None
    ratios = np.full(own.samples, np.nan)
    np.divide(100 * own.averages, whole.averages, out=ratios, where=whole.averages > 0)
    return percentile_interval(ratios)


def _items_of(scores: SetScores) -> dict[str, int]:
    return {name: score.items for name, score in scores.sets.items()}


def drawn_figures(scores: SetScores, samples: int, seed: int = 0) -> dict[str, NDArray[np.float64]]:
    """Return the figure of every draw, (samples,) by set; sets without outcomes are not in it.

    The draws of a set depend on its name, its number of items and ``seed`` alone: they are the same for
    every model, and those of one set have nothing to do with those of another.
    """
    return {
        name: resampled(score.outcomes, samples, _seed_of(name, seed))
        for name, score in scores.sets.items()
        if score.outcomes is not None and len(score.outcomes)
    }


def average_of(drawn: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the average over sets of every draw, (samples,)."""
    average: NDArray[np.float64] = np.mean(list(drawn.values()), axis=0)
    return average


def resampled(outcomes: Outcomes, samples: int, seed: int | tuple[int, ...]) -> NDArray[np.float64]:
    """Return the figure of each of ``samples`` draws of as many items as there are, float64, times 100.

    A draw in which a correlation is not defined gives NaN. For one seed the draws are the same for all
    outcomes of as many items.
    """
    return _taken({_MAIN: _main_figure(outcomes)}, len(outcomes), samples, seed)[_MAIN]


def percentile_interval(figures: NDArray[np.float64]) -> Interval | None:
    """Return the 2.5th and the 97.5th percentile; None where too many draws have no figure."""
    defined = figures[np.isfinite(figures)]
    if len(defined) < _LEAST_DEFINED * len(figures):
        return None
    low, high = np.percentile(defined, (2.5, 97.5))
    return float(low), float(high)


def p_value(differences: NDArray[np.float64]) -> float | None:
    """Return the two-sided p-value of "there is no difference", from the differences of the draws.

    Twice the smaller share of draws on one side of zero, those at zero counted on both; one is added to the
    draws, as no finite number of them shows a p of 0 (Davison and Hinkley, "Bootstrap Methods and their
    Application", 1997, section 4.2). None where too many draws have no figure.
    """
    defined = differences[np.isfinite(differences)]
    if len(defined) < _LEAST_DEFINED * len(differences):
        return None
    below, above = int((defined <= 0).sum()), int((defined >= 0).sum())
    return min(1.0, 2 * (1 + min(below, above)) / (1 + len(defined)))


def _seed_of(name: str, seed: int) -> tuple[int, int]:
    return seed, zlib.crc32(name.encode())


def _taken(
    figures: Mapping[str, Figure], items: int, samples: int, seed: int | tuple[int, ...]
) -> dict[str, NDArray[np.float64]]:
    """Return (samples,) by name: every figure of the same draws."""
    taken: dict[str, list[NDArray[np.float64]]] = {name: [] for name in figures}
    for counts in _draws(items, samples, seed):
        for name, figure in figures.items():
            taken[name].append(figure(counts))
    return {name: np.concatenate(blocks) for name, blocks in taken.items()}


def _main_figure(outcomes: Outcomes) -> Figure:
    if isinstance(outcomes, PairOutcomes):
        return _spearman_of_counts(outcomes.gold, outcomes.predicted)
    return _mean_of_counts(100 * outcomes.values)


def _all_figures(score: SetScore, outcomes: Outcomes) -> dict[str, Figure]:
    """Return the set's figure and, by name, those of the further measures that have a value and outcomes."""
    main = _main_figure(outcomes)
    others: dict[str, Figure] = {}
    if isinstance(outcomes, MeanOutcomes):
        for name, one in outcomes.others.items():
            if isinstance(one, RatioOutcomes):
                others[name] = _ratio_of_counts(one)
            else:
                others[name] = _mean_of_counts(100 * one)
    else:
        others[PEARSON] = _pearson_of_counts(outcomes.gold, outcomes.predicted)
        if outcomes.subsets is not None and score.others.get(SUBSET_MEAN) is not None:
            others[SUBSET_MEAN] = _subset_mean_of_counts(outcomes, outcomes.subsets)
    known = {name: figure for name, figure in others.items() if score.others.get(name) is not None}
    return {_MAIN: main, **known}


def _intervals_of_whole(scores: WholeScores, samples: int, seed: int) -> dict[str, Interval | None]:
    """Return the intervals by measure; measures of as many items, the same sentences, share their draws."""
    alike: dict[int, dict[str, Figure]] = {}
    for name, one in scores.outcomes.items():
        if isinstance(one, PercentileOutcomes):
            alike.setdefault(len(one.values), {})[name] = _percentile_of_counts(one)
        else:
            alike.setdefault(len(one), {})[name] = _mean_of_counts(one)
    found: dict[str, NDArray[np.float64]] = {}
    for items, figures in alike.items():
        found |= _taken(figures, items, samples, _seed_of(_WHOLE, seed))
    return {name: percentile_interval(found[name]) for name in scores.outcomes}


def _draws(items: int, samples: int, seed: int | tuple[int, ...]) -> Iterator[Counts]:
    """Yield blocks of draws, (items, b): how often each item was drawn."""
    rng = np.random.default_rng(seed)
    block = max(1, _BLOCK // items)
    for first in range(0, samples, block):
        width = min(block, samples - first)
        drawn = rng.integers(items, size=(items, width))
        drawn *= width
        drawn += np.arange(width)
        counts = np.bincount(drawn.reshape(-1), minlength=items * width).reshape(items, width)
        yield counts.astype(np.float64)


def _mean_of_counts(values: NDArray[np.float64]) -> Figure:
    return lambda counts: (values @ counts) / len(values)


def _ratio_of_counts(parts: RatioOutcomes) -> Figure:
    def figure(counts: Counts) -> NDArray[np.float64]:
        with np.errstate(invalid="ignore"):
            ratio: NDArray[np.float64] = 100 * (parts.above @ counts) / (parts.below @ counts)
        return ratio

    return figure


def _percentile_of_counts(outcomes: PercentileOutcomes) -> Figure:
    """Return percentiles as numpy takes them: linearly between two neighbouring items."""
    order = np.argsort(outcomes.values)
    values = outcomes.values[order]
    place = (len(values) - 1) * outcomes.percent / 100
    share = place - int(place)

    def figure(counts: Counts) -> NDArray[np.float64]:
        up_to = np.cumsum(counts[order], axis=0)
        at, after = (values[(up_to > bound).argmax(axis=0)] for bound in (int(place), int(np.ceil(place))))
        percentile: NDArray[np.float64] = at + share * (after - at)
        return percentile

    return figure


def _pearson_of_counts(gold: NDArray[np.float64], predicted: NDArray[np.float64]) -> Figure:
    a, b = gold - gold.mean(), predicted - predicted.mean()
    products = np.stack([a, b, a * a, b * b, a * b])

    def figure(counts: Counts) -> NDArray[np.float64]:
        sum_a, sum_b, of_a, of_b, together = products @ counts
        spread_a, spread_b = of_a - sum_a**2 / len(a), of_b - sum_b**2 / len(a)
        defined = (spread_a > _LEAST_SPREAD * of_a) & (spread_b > _LEAST_SPREAD * of_b)
        with np.errstate(invalid="ignore", divide="ignore"):
            correlation = (together - sum_a * sum_b / len(a)) / np.sqrt(spread_a * spread_b)
        return np.where(defined, 100 * correlation, np.nan)

    return figure


def _subset_mean_of_counts(outcomes: PairOutcomes, subsets: NDArray[np.float64]) -> Figure:
    """Return the mean of the subsets' Spearman correlations; not defined where one of them is not."""
    parts = [np.flatnonzero(subsets == one) for one in np.unique(subsets)]
    figures = [_spearman_of_counts(outcomes.gold[rows], outcomes.predicted[rows]) for rows in parts]

    def figure(counts: Counts) -> NDArray[np.float64]:
        mean: NDArray[np.float64] = np.mean(
            [one(counts[rows]) for one, rows in zip(figures, parts, strict=True)], axis=0
        )
        return mean

    return figure


def _spearman_of_counts(gold: NDArray[np.float64], predicted: NDArray[np.float64]) -> Figure:
    """Return what takes (n, b) counts to (b,) Spearman correlations of the items so often repeated.

    Nothing is sorted for a draw: an item's average rank in it is the number of drawn items below it, and half
    of those that tie with it.
    """
    ranks = _Ranks(gold), _Ranks(predicted)

    def figure(counts: Counts) -> NDArray[np.float64]:
        a, b = (rank.centred(counts) for rank in ranks)
        weighted = b * counts
        together = np.einsum("ij,ij->j", a, weighted)
        spread_b = np.einsum("ij,ij->j", b, weighted)
        spread_a = np.einsum("ij,ij,ij->j", a, a, counts)
        with np.errstate(invalid="ignore"):
            correlation: NDArray[np.float64] = 100 * together / np.sqrt(spread_a * spread_b)
        return correlation

    return figure


class _Ranks:
    """Average ranks of values, each repeated as often as a draw has it.

    Args:
        values: (n,).
    """

    def __init__(self, values: NDArray[np.float64]) -> None:
        distinct, self._group = np.unique(values, return_inverse=True)
        self._order = np.argsort(self._group, kind="stable")
        self._starts = np.searchsorted(self._group[self._order], np.arange(len(distinct)))

    def centred(self, counts: Counts) -> NDArray[np.float64]:
        """Return every item's average rank in each draw less their mean, of the shape of ``counts``."""
        inside = counts[self._order]
        if len(self._starts) < len(inside):
            inside = np.add.reduceat(inside, self._starts, axis=0)
        rank = np.cumsum(inside, axis=0)
        rank -= (inside + counts.sum(axis=0)) / 2
        centred: NDArray[np.float64] = rank[self._group]
        return centred
