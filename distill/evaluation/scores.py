"""What a suite measured of one model, and the single outcomes that its figures rest on.

A figure of a set is a statistic of outcomes, one per item: a pair with its gold score and its cosine, an
example that was classified rightly or not, a query and the rank of what it asked for. Keeping them makes it
possible to draw items again with replacement (:mod:`distill.evaluation.bootstrap`) and to compare two models
item by item.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


PEARSON, SUBSET_MEAN = "pearson", "spearman_mean_of_subsets"
"""Further measures of pairs: Pearson's correlation, the mean of the subsets' own Spearman correlations."""

INTERVAL = "95 % interval"
"""What a row or column of the intervals of main figures is called."""

BESIDE = f", {INTERVAL}"
"""What the row of a further measure's intervals is called, after the measure."""

RETENTION_INTERVAL = f"its {INTERVAL}"
"""What the column of the intervals of retention, which stands after that, is called."""

# Rows of a table that hold an interval each are easily read beside so many further measures.
_FEW_MEASURES = 2

Interval = tuple[float, float]
"""Lower and upper end of a 95 % confidence interval."""


class Scores(Protocol):
    """What one suite found out about one model."""

    @property
    def headline(self) -> float | None:
        """The one figure that models are compared by, higher is better; None where there is none."""
        ...

    def to_json(self) -> dict[str, object]:
        """Return the scores as a JSON object with stable keys."""
        ...

    def rows(self) -> list[tuple[str, dict[str, str]]]:
        """Return detail rows as (measure, column -> cell); empty where the summary says it all."""
        ...

    def figures(self) -> dict[str, float | None]:
        """Return the numbers of the headline figures, by the columns of :meth:`summary`."""
        ...

    def summary(self) -> dict[str, str]:
        """Return the headline figures as column -> cell."""
        ...


@dataclass(frozen=True)
class PairOutcomes:
    """Scored pairs; their figure is Spearman's rank correlation, times 100.

    Attributes:
        gold: (n,) float64, what people said.
        predicted: (n,) float64, the cosines.
        subsets: (n,) float64, the number of the subset that each pair is of; None where it is not known.
        items: digest of the pairs' texts; None where it is not known.
    """

    gold: NDArray[np.float64]
    predicted: NDArray[np.float64]
    subsets: NDArray[np.float64] | None = None
    items: str | None = None

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.gold)


@dataclass(frozen=True)
class RatioOutcomes:
    """What items add to the two parts of a fraction; their figure is the one sum by the other, times 100.

    Attributes:
        above: (n,) float64, what each item adds to the numerator.
        below: (n,) float64, what it adds to the denominator.
    """

    above: NDArray[np.float64]
    below: NDArray[np.float64]


@dataclass(frozen=True)
class MeanOutcomes:
    """Items whose values are averaged; their figure is the mean, times 100.

    Attributes:
        values: (n,) float64 in 0..1: right or wrong, recall, reciprocal rank ...
        others: the same items by further measures, by name: values to be averaged, or a fraction's parts.
        items: digest of the items' texts; None where it is not known.
    """

    values: NDArray[np.float64]
    others: Mapping[str, NDArray[np.float64] | RatioOutcomes] = field(default_factory=dict)
    items: str | None = None

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.values)


Outcomes = PairOutcomes | MeanOutcomes


@dataclass(frozen=True)
class PercentileOutcomes:
    """Items of whose values a percentile is the figure, as it is.

    Attributes:
        values: (n,) float64.
        percent: which percentile, 0 to 100.
    """

    values: NDArray[np.float64]
    percent: float


@dataclass(frozen=True)
class Draws:
    """Which draws the intervals of some scores rest on.

    Attributes:
        samples: how many there were.
        seed: what chose them.
        averages: (samples,) float64, of scores of sets the average over the sets of every draw; None where
            it is not known.
    """

    samples: int
    seed: int
    averages: NDArray[np.float64] | None = None

    def are(self, samples: int, seed: int) -> bool:
        """Return whether these are the draws that ``samples`` and ``seed`` ask for."""
        return (self.samples, self.seed) == (samples, seed)


@dataclass(frozen=True, kw_only=True)
class WholeScores:
    """Scores of a suite that measures a model as a whole: what is drawn again, and what came of it.

    Attributes:
        outcomes: measure -> (n,) float64 whose mean is the figure as it is, or a percentile's items. Not
            every measure has some. Of a measure over all pairs of n sentences each sentence has the figure
            and its own part in it to the first order (Hoeffding, "A Class of Statistics with Asymptotically
            Normal Distribution", Annals of Mathematical Statistics 19, 1948).
        intervals: measure -> 95 % confidence interval; empty where none were drawn.
        drawn: the draws of the intervals; None where there are none, or it is not known.
    """

    outcomes: Mapping[str, NDArray[np.float64] | PercentileOutcomes] = field(
        default_factory=dict, compare=False
    )
    intervals: Mapping[str, Interval | None] = field(default_factory=dict)
    drawn: Draws | None = field(default=None, compare=False)


@dataclass(frozen=True)
class SetScore:
    """One model's figure on one set.

    Attributes:
        label: the set's name in tables.
        measure: what the figure is: ``spearman``, ``accuracy``, ``recall@1`` ...
        value: the figure, times 100.
        items: how many items it is over.
        skipped: rows of the file that were left out.
        others: further measures of the same set, times 100; None where one is not defined.
        outcomes: what the figure rests on.
        interval: 95 % confidence interval of the figure; None where none was drawn.
        intervals: those of ``others``, by name; what cannot be drawn from the outcomes is not in it.
    """

    label: str
    measure: str
    value: float
    items: int
    skipped: int = 0
    others: Mapping[str, float | None] = field(default_factory=dict)
    outcomes: Outcomes | None = None
    interval: Interval | None = None
    intervals: Mapping[str, Interval | None] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """Return the score as a JSON object, figures with 4 decimals; the outcomes are not in it."""
        return {
            "measure": self.measure,
            "score": round(self.value, 4),
            "interval": rounded(self.interval),
            "intervals": {name: rounded(ends) for name, ends in self.intervals.items()},
            **{name: None if value is None else round(value, 4) for name, value in self.others.items()},
            "items": self.items,
            "skipped": self.skipped,
        }


@dataclass(frozen=True)
class SetScores:
    """One model on every set of a suite that is there.

    Attributes:
        sets: the scores by set, in the suite's order.
        sets_of: how many sets the suite has.
        average_interval: 95 % confidence interval of the average; None where none was drawn.
        drawn: the draws of all intervals; None where there are none, or it is not known.
    """

    sets: Mapping[str, SetScore]
    sets_of: int
    average_interval: Interval | None = None
    drawn: Draws | None = field(default=None, compare=False)

    @property
    def average(self) -> float:
        """Mean figure over the sets that are there."""
        return sum(score.value for score in self.sets.values()) / len(self.sets)

    @property
    def headline(self) -> float | None:
        """The average."""
        return self.average

    def to_json(self) -> dict[str, object]:
        """Return ``sets``, ``average`` with its ``average_interval``, ``sets_scored`` and ``sets_of``."""
        return {
            "sets": {name: score.to_json() for name, score in self.sets.items()},
            "average": round(self.average, 4),
            "average_interval": rounded(self.average_interval),
            "sets_scored": len(self.sets),
            "sets_of": self.sets_of,
        }

    def rows(self) -> list[tuple[str, dict[str, str]]]:
        """Return one row per measure, one column per set; rows of intervals where they were drawn.

        Those of further measures are rows where there are few such measures; the JSON has them all.
        """
        table: dict[str, dict[str, str]] = {}
        scores = list(self.sets.values())
        for score in scores:
            table.setdefault(score.measure, {})[score.label] = f"{score.value:.2f}"
        if any(score.interval for score in scores):
            table[INTERVAL] = {score.label: ends_of(score.interval) for score in scores if score.interval}
        others = dict.fromkeys(name for score in scores for name in score.others)
        for name in others:
            said = name.replace("_", " ")
            table[said] = {
                score.label: "-" if (value := score.others[name]) is None else f"{value:.2f}"
                for score in scores
                if name in score.others
            }
            drawn = {score.label: ends_of(ends) for score in scores if (ends := score.intervals.get(name))}
            if drawn and len(others) <= _FEW_MEASURES:
                table[said + BESIDE] = drawn
        return list(table.items())

    def figures(self) -> dict[str, float | None]:
        """Return the average, named with the number of its sets."""
        return {f"average of {len(self.sets)}/{self.sets_of}": self.average}

    def summary(self) -> dict[str, str]:
        """Return the average, and its interval where there is one."""
        cells = {name: f"{value:.2f}" for name, value in self.figures().items()}
        if self.average_interval is not None:
            cells[INTERVAL] = ends_of(self.average_interval)
        return cells


def rounded(interval: Interval | None, digits: int = 4) -> list[float] | None:
    """Return an interval's two ends as JSON has them; None for none."""
    return None if interval is None else [round(end, digits) for end in interval]


def ends_of(interval: Interval, form: str = ".1f") -> str:
    """Return an interval as tables print it; in words, as a dash would look like the sign of an end."""
    return f"{interval[0]:{form}} to {interval[1]:{form}}"
