"""Bootstrap: how much a figure would vary if other items of the same kind had been tested on.

Items are drawn with replacement, as many as there are, and the figure is taken of every such draw; the 95 %
interval reaches from the 2.5th to the 97.5th percentile of these figures (Efron and Tibshirani, "An
Introduction to the Bootstrap", 1993, chapter 13). Models that are compared are given the same draws, so that
what makes items hard or easy for both drops out of their difference.

Only the choice of items is drawn anew: the spread over seeds of a training is another one.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from distill.evaluation.scores import MeanOutcomes, Outcomes, PairOutcomes, SetScores

SAMPLES = 1000
"""Draws, where a caller does not say how many."""

# Draws are worked on in blocks of so many drawn items: what the processor's own memory holds is quickest.
_BLOCK = 160_000
# Of small sets, draws may hold a single item again and again and have no correlation.
_LEAST_DEFINED = 0.9

Interval = tuple[float, float]
Counts = NDArray[np.float64]
S = TypeVar("S")


def with_intervals(scores: S, samples: int = SAMPLES, seed: int = 0) -> S:
    """Return ``scores`` with an interval for every set that has outcomes, and one for the average.

    Args:
        scores: what a suite measured; of a suite that does not consist of sets it is returned as it is.
        samples: how many draws; 0 for no interval, not even one that is there already.
        seed: chooses the draws.
    """
    if not isinstance(scores, SetScores):
        return scores
    if samples == 0:
        without = {name: replace(score, interval=None) for name, score in scores.sets.items()}
        return replace(scores, sets=without, average_interval=None)
    drawn = drawn_figures(scores, samples, seed)
    sets = {
        name: replace(score, interval=percentile_interval(drawn[name])) if name in drawn else score
        for name, score in scores.sets.items()
    }
    whole = percentile_interval(average_of(drawn)) if drawn and len(drawn) == len(sets) else None
    return replace(scores, sets=sets, average_interval=whole)


def drawn_figures(scores: SetScores, samples: int, seed: int = 0) -> dict[str, NDArray[np.float64]]:
    """Return the figure of every draw, (samples,) by set; sets without outcomes are not in it.

    The draws of a set depend on its name, its number of items and ``seed`` alone: they are the same for
    every model, and those of one set have nothing to do with those of another.
    """
    return {
        name: resampled(score.outcomes, samples, (seed, zlib.crc32(name.encode())))
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
    match outcomes:
        case PairOutcomes(gold, predicted):
            figure = _spearman_of_counts(gold, predicted)
        case MeanOutcomes(values):
            figure = _mean_of_counts(values)
    return np.concatenate([figure(counts) for counts in _draws(len(outcomes), samples, seed)])


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


def _mean_of_counts(values: NDArray[np.float64]) -> Callable[[Counts], NDArray[np.float64]]:
    return lambda counts: 100 * (values @ counts) / len(values)


def _spearman_of_counts(
    gold: NDArray[np.float64], predicted: NDArray[np.float64]
) -> Callable[[Counts], NDArray[np.float64]]:
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
        rank -= (inside + len(counts)) / 2
        centred: NDArray[np.float64] = rank[self._group]
        return centred
