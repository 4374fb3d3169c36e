"""Results of an evaluation: figures of sets, with the outcomes they rest on, of models beside their teacher.

Figures of sets are times 100. Results are plain data: ``to_json`` and ``from_json`` are exact inverses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Interval = tuple[float, float]
"""Lower and upper end of a 95 % confidence interval."""

AVERAGE = "average"
"""Headline of a suite whose sets are averaged."""

PAIRS, VALUES = "pairs", "values"
"""Kinds of outcomes."""

_ARRAYS = ("gold", "predicted", "values")


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Outcomes of the items that a figure rests on.

    Attributes:
        kind: ``pairs``: the figure is Spearman's correlation of ``gold`` and ``predicted``, times 100;
            ``values``: the figure is the mean of ``values``.
        gold, predicted: (n,) float64; of ``pairs``.
        values: (n,) float64, on the figure's scale; of ``values``.
        texts: digest of the items' texts, which tells if two figures are of the same items; "" if unknown.
    """

    kind: str
    gold: NDArray[np.float64] | None = None
    predicted: NDArray[np.float64] | None = None
    values: NDArray[np.float64] | None = None
    texts: str = ""

    @classmethod
    def of_pairs(cls, gold: NDArray[np.float64], predicted: NDArray[np.float64], texts: str = "") -> Outcomes:
        """Return outcomes of pairs that are ranked."""
        return cls(PAIRS, gold=gold, predicted=predicted, texts=texts)

    @classmethod
    def of_values(cls, values: NDArray[np.float64], texts: str = "") -> Outcomes:
        """Return outcomes whose values are averaged."""
        return cls(VALUES, values=values, texts=texts)

    def __len__(self) -> int:
        """Return the number of items."""
        array = self.values if self.gold is None else self.gold
        return 0 if array is None else len(array)

    def to_json(self) -> dict[str, Any]:
        """Return ``kind``, ``texts`` and the arrays as lists."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        there = {name: array.tolist() for name, array in arrays.items() if array is not None}
        return {"kind": self.kind, "texts": self.texts, **there}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Outcomes:
        """Return outcomes as :meth:`to_json` gives them."""
        arrays = {name: np.array(value[name], np.float64) for name in _ARRAYS if name in value}
        return cls(value["kind"], texts=value["texts"], **arrays)


@dataclass(frozen=True)
class Figure:
    """One figure of a model.

    Attributes:
        value: the figure.
        measure: what it is: ``spearman``, ``accuracy``, ``recall@1`` ...
        interval: 95 % confidence interval; None if none was drawn.
        items: number of items it is over.
        others: further measures of the same items; undefined ones are left out.
        outcomes: what it rests on; None if there are no items to draw.
        label: name of the set in tables.
        skipped: rows of the file that were left out.
    """

    value: float
    measure: str
    interval: Interval | None = None
    items: int | None = None
    others: Mapping[str, float] = field(default_factory=dict)
    outcomes: Outcomes | None = field(default=None, compare=False)
    label: str = ""
    skipped: int = 0

    def to_json(self, *, outcomes: bool = True) -> dict[str, Any]:
        """Return the figure as a JSON object; its single outcomes can be left out."""
        found: dict[str, Any] = {
            "value": self.value,
            "measure": self.measure,
            "interval": None if self.interval is None else list(self.interval),
            "items": self.items,
            "others": dict(self.others),
            "label": self.label,
            "skipped": self.skipped,
        }
        if outcomes:
            found["outcomes"] = None if self.outcomes is None else self.outcomes.to_json()
        return found

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Figure:
        """Return a figure as :meth:`to_json` gives it."""
        outcomes = value.get("outcomes")
        return cls(
            **{**value, "interval": _interval(value["interval"])}
            | {"outcomes": None if outcomes is None else Outcomes.from_json(outcomes)}
        )


@dataclass(frozen=True)
class SuiteResult:
    """Figures of one model on one suite.

    Attributes:
        figures: set, or measure of the model as a whole -> its figure, in the suite's order.
        headline: what models are ranked by: ``average`` over the figures, or one of them; None for nothing.
        notes: one line each for what a reader must know: rows skipped, pairs that occur twice.
        settings: what was read and how: the data, the number of sentences, the seed.
        missing: sets of the suite whose files are missing.
        average_interval: 95 % confidence interval of the average; None if none was drawn.
        marks: what the figures are marked with: ``contamination``, ``trained_on``, ``selected_on``.
    """

    figures: Mapping[str, Figure]
    headline: str | None = AVERAGE
    notes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    average_interval: Interval | None = None
    marks: Mapping[str, Any] = field(default_factory=dict)

    @property
    def average(self) -> float:
        """Mean of the figures."""
        return sum(figure.value for figure in self.figures.values()) / len(self.figures)

    @property
    def main(self) -> Figure | None:
        """Figure that models are ranked by; None of a suite without one, or where it is undefined."""
        if self.headline == AVERAGE:
            return Figure(self.average, AVERAGE, self.average_interval, len(self.figures))
        return None if self.headline is None else self.figures.get(self.headline)

    def to_json(self, *, outcomes: bool = True) -> dict[str, Any]:
        """Return the result as a JSON object; ``average`` is in it where the sets are averaged."""
        return {
            "figures": {name: one.to_json(outcomes=outcomes) for name, one in self.figures.items()},
            "headline": self.headline,
            **({"average": self.average} if self.headline == AVERAGE else {}),
            "average_interval": None if self.average_interval is None else list(self.average_interval),
            "missing": list(self.missing),
            "settings": dict(self.settings),
            "marks": dict(self.marks),
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SuiteResult:
        """Return a result as :meth:`to_json` gives it."""
        return cls(
            figures={name: Figure.from_json(one) for name, one in value["figures"].items()},
            headline=value["headline"],
            notes=tuple(value["notes"]),
            settings=value["settings"],
            missing=tuple(value["missing"]),
            average_interval=_interval(value["average_interval"]),
            marks=value["marks"],
        )


@dataclass(frozen=True)
class ModelFacts:
    """A model as reports describe it.

    Attributes:
        name: its name.
        role: ``teacher`` or ``student``.
        parameters: number of parameters; None if unknown.
        megabytes: size of the saved weights in units of 10^6 bytes; None if unknown.
        dimension: width of its vectors.
        run: folder of the run that it is the student of; None of another model.
        seed: seed of that run, of several stages as in ``0+1``; None if unknown.
        setting: digest of what the run was trained with but its seeds; None if unknown.
    """

    name: str
    role: str = "student"
    parameters: int | None = None
    megabytes: float | None = None
    dimension: int | None = None
    run: str | None = None
    seed: int | str | None = None
    setting: str | None = None


@dataclass(frozen=True)
class Spread:
    """Figures over the seeds of a training.

    Attributes:
        name: what the models' names share.
        models: their names.
        figures: set (and ``average``, ``retention``) -> mean, sample standard deviation, number of models.
    """

    name: str
    models: tuple[str, ...]
    figures: Mapping[str, tuple[float, float, int]]


@dataclass(frozen=True)
class Evaluation:
    """Figures of one or more models on one suite.

    Attributes:
        suite: name of the suite.
        models: facts and result of each model, the teacher's first where there is one.
        teacher: name of the teacher among ``models``; None if it was not evaluated.
        notes: one line each for what a reader must know beside the notes of the results.
        retention_intervals: model -> 95 % confidence interval of its retention.
        over_seeds: spread of each group of models that differ by their seed alone.
    """

    suite: str
    models: tuple[tuple[ModelFacts, SuiteResult], ...]
    teacher: str | None = None
    notes: tuple[str, ...] = ()
    retention_intervals: Mapping[str, Interval] = field(default_factory=dict)
    over_seeds: tuple[Spread, ...] = ()

    def __getitem__(self, name: str) -> SuiteResult:
        """Return the result of the model called ``name``.

        Raises:
            KeyError: if no model has that name.
        """
        for facts, result in self.models:
            if facts.name == name:
                return result
        raise KeyError(f"no model {name!r}; there are {', '.join(facts.name for facts, _ in self.models)}")

    @property
    def students(self) -> tuple[tuple[ModelFacts, SuiteResult], ...]:
        """All models but the teacher."""
        return tuple(pair for pair in self.models if pair[0].role != "teacher")

    def retention(self, model: str) -> Figure | None:
        """Return a model's average in per cent of the teacher's.

        None without a teacher, where the teacher's is not above zero, and of suites that average no sets.
        """
        if self.teacher is None:
            return None
        own, whole = self[model], self[self.teacher]
        if own.headline != AVERAGE or whole.average <= 0:
            return None
        return Figure(100 * own.average / whole.average, "% of teacher", self.retention_intervals.get(model))

    def to_json(self, *, outcomes: bool = False) -> dict[str, Any]:
        """Return the evaluation as a JSON object.

        Args:
            outcomes: with the outcomes of single items, which :meth:`from_json` needs for all that is
                drawn from them.
        """
        models = []
        for facts, result in self.models:
            retention = self.retention(facts.name)
            models.append(
                {
                    **vars(facts),
                    "retention": None if retention is None else retention.value,
                    "retention_interval": list(self.retention_intervals.get(facts.name, ())) or None,
                    **result.to_json(outcomes=outcomes),
                }
            )
        return {
            "suite": self.suite,
            "teacher": self.teacher,
            "models": models,
            "over_seeds": [
                {**vars(one), "models": list(one.models), "figures": _named(one.figures)}
                for one in self.over_seeds
            ],
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Evaluation:
        """Return an evaluation as :meth:`to_json` gives it."""
        facts = list(ModelFacts.__dataclass_fields__)
        models = value["models"]
        return cls(
            suite=value["suite"],
            models=tuple(
                (ModelFacts(**{name: one[name] for name in facts}), SuiteResult.from_json(one))
                for one in models
            ),
            teacher=value["teacher"],
            notes=tuple(value["notes"]),
            retention_intervals={
                one["name"]: ends
                for one in models
                if (ends := _interval(one["retention_interval"])) is not None
            },
            over_seeds=tuple(
                Spread(
                    one["name"],
                    tuple(one["models"]),
                    {name: (of["mean"], of["std"], of["n"]) for name, of in one["figures"].items()},
                )
                for one in value["over_seeds"]
            ),
        )


def _interval(ends: Sequence[float] | None) -> Interval | None:
    return None if ends is None else (ends[0], ends[1])


def _named(figures: Mapping[str, tuple[float, float, int]]) -> dict[str, dict[str, float]]:
    return {name: {"mean": mean, "std": std, "n": n} for name, (mean, std, n) in figures.items()}
