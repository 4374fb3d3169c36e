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

    def summary(self) -> dict[str, str]:
        """Return the headline figures as column -> cell."""
        ...


@dataclass(frozen=True)
class PairOutcomes:
    """Scored pairs; their figure is Spearman's rank correlation, times 100.

    Attributes:
        gold: (n,) float64, what people said.
        predicted: (n,) float64, the cosines.
    """

    gold: NDArray[np.float64]
    predicted: NDArray[np.float64]

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.gold)


@dataclass(frozen=True)
class MeanOutcomes:
    """Items whose values are averaged; their figure is the mean, times 100.

    Attributes:
        values: (n,) float64 in 0..1: right or wrong, recall, reciprocal rank ...
    """

    values: NDArray[np.float64]

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.values)


Outcomes = PairOutcomes | MeanOutcomes


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
    """

    label: str
    measure: str
    value: float
    items: int
    skipped: int = 0
    others: Mapping[str, float | None] = field(default_factory=dict)
    outcomes: Outcomes | None = None
    interval: tuple[float, float] | None = None

    def to_json(self) -> dict[str, object]:
        """Return the score as a JSON object, figures with 4 decimals; the outcomes are not in it."""
        return {
            "measure": self.measure,
            "score": round(self.value, 4),
            "interval": None if self.interval is None else [round(end, 4) for end in self.interval],
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
    """

    sets: Mapping[str, SetScore]
    sets_of: int
    average_interval: tuple[float, float] | None = None

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
        whole = self.average_interval
        return {
            "sets": {name: score.to_json() for name, score in self.sets.items()},
            "average": round(self.average, 4),
            "average_interval": None if whole is None else [round(end, 4) for end in whole],
            "sets_scored": len(self.sets),
            "sets_of": self.sets_of,
        }

    def rows(self) -> list[tuple[str, dict[str, str]]]:
        """Return one row per measure, one column per set; a row of intervals where they were drawn."""
        table: dict[str, dict[str, str]] = {}
        for score in self.sets.values():
            table.setdefault(score.measure, {})[score.label] = f"{score.value:.2f}"
        if any(score.interval for score in self.sets.values()):
            table["95 % interval"] = {
                score.label: f"{score.interval[0]:.1f}-{score.interval[1]:.1f}"
                for score in self.sets.values()
                if score.interval
            }
        for score in self.sets.values():
            for name, value in score.others.items():
                cell = "-" if value is None else f"{value:.2f}"
                table.setdefault(name.replace("_", " "), {})[score.label] = cell
        return list(table.items())

    def summary(self) -> dict[str, str]:
        """Return the average, named with the number of its sets, and its interval where there is one."""
        cells = {f"average of {len(self.sets)}/{self.sets_of}": f"{self.average:.2f}"}
        if self.average_interval is not None:
            low, high = self.average_interval
            cells["95 % interval"] = f"{low:.1f}-{high:.1f}"
        return cells
