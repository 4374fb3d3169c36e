"""Results of an evaluation: figures of sets and the outcomes behind them, for models and their teacher.

Figures of sets are times 100. Results are plain data, which pydantic writes as JSON and reads again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, PlainSerializer, PlainValidator, TypeAdapter

from embedcache.notebook import data_frame, html_table

if TYPE_CHECKING:
    import pandas as pd

Interval: TypeAlias = tuple[float, float]
"""Lower and upper end of a 95 % confidence interval."""

Array: TypeAlias = Annotated[
    NDArray[np.float64],
    PlainValidator(lambda values: np.asarray(values, np.float64)),
    PlainSerializer(lambda values: values.tolist()),
]

AVERAGE = "average"
"""Headline of a suite whose sets are averaged."""

_MOST_SHOWN = 8


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Outcomes of the items that a figure rests on.

    Attributes:
        values: (n,) float64; the figure is their mean, or, with ``gold``, 100 times ``ranking``.
        gold: (n,) float64 that values are to be ranked like; None of a mean.
        texts: digest of the items' texts, which tells if two figures are of the same items; "" if unknown.
        ranking: measure of values that are ranked: ``spearman``, ``pearson``, or ``average precision`` of
            labels 0 and 1.
    """

    values: Array
    gold: Array | None = None
    texts: str = ""
    ranking: str = "spearman"

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.values)


@dataclass(frozen=True)
class Figure:
    """One figure of a model.

    Attributes:
        value: the figure.
        measure: its measure: ``spearman``, ``accuracy``, ``recall@1`` ...
        interval: 95 % confidence interval; None if none was drawn.
        items: number of items it is over.
        others: further measures of the same items; undefined ones are left out.
        outcomes: outcomes behind it; None if there are no items to draw.
        label: name of the set in tables.
        skipped: rows of the file that were left out.
        other_intervals: further measure -> its interval, as far as they were drawn.
    """

    value: float
    measure: str
    interval: Interval | None = None
    items: int | None = None
    others: Mapping[str, float] = field(default_factory=dict)
    outcomes: Outcomes | None = field(default=None, compare=False)
    label: str = ""
    skipped: int = 0
    other_intervals: Mapping[str, Interval] = field(default_factory=dict)


@dataclass(frozen=True)
class SuiteResult:
    """Figures of one model on one suite.

    Attributes:
        figures: set, or measure of the model as a whole -> its figure, in the suite's order.
        headline: figure that models are ranked by: ``average`` over the figures, or one of them; or None.
        notes: remarks of one line each: rows skipped, pairs that occur twice.
        settings: settings of the evaluation: the data, the number of sentences, the seed.
        missing: sets of the suite whose files are missing.
        average_interval: 95 % confidence interval of the average; None if none was drawn.
        marks: marks of the figures: ``contamination``.
    """

    figures: Annotated[Mapping[str, Figure], BeforeValidator(dict)]  # read from pairs as well
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


Scored: TypeAlias = tuple[ModelFacts, SuiteResult]


@dataclass(frozen=True, repr=False)
class Evaluation:
    """Figures of one or more models on one suite.

    Attributes:
        suite: name of the suite.
        models: facts and result of each model, the teacher's first where there is one.
        teacher: name of the teacher among ``models``; None if it was not evaluated.
        notes: one line each for what a reader must know beside the notes of the results.
        retention_intervals: model -> 95 % confidence interval of its retention.
    """

    suite: str
    models: tuple[Scored, ...]
    teacher: str | None = None
    notes: tuple[str, ...] = ()
    retention_intervals: Mapping[str, Interval] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Return the main figure of each model, a line each; of many, the first."""
        lines = []
        for facts, result in self.models[:_MOST_SHOWN]:
            figure, retention = result.main, self.retention(facts.name)
            shown = "" if figure is None else f"{figure.value:.2f} {figure.measure}"
            lines.append(
                f"{facts.name}: {shown}{'' if retention is None else f', {retention.value:.1f} % of teacher'}"
            )
        if (more := len(self.models) - _MOST_SHOWN) > 0:
            lines.append(f"and {more} more; to_frame() has all")
        return "\n  ".join([f"Evaluation({self.suite!r})", *lines])

    def _repr_html_(self) -> str:
        """Return a table of the figures, as a notebook shows it."""
        rows = []
        for facts, result in self.models:
            figures = {figure.label or name: figure.value for name, figure in result.figures.items()}
            average = {AVERAGE: result.average} if result.headline == AVERAGE and len(figures) > 1 else {}
            rows.append({"model": facts.name, **figures, **average})
        return html_table(rows, self.suite)

    def to_frame(self) -> pd.DataFrame:
        """Return the figures as a pandas data frame, a row for each model, set and measure.

        Raises:
            MissingExtraError: if pandas is not installed.
        """
        rows = []
        for facts, result in self.models:
            for name, figure in result.figures.items():
                about = {"model": facts.name, "role": facts.role, "set": name, "items": figure.items}
                low, high = figure.interval or (None, None)
                rows.append(
                    {**about, "measure": figure.measure, "value": figure.value, "low": low, "high": high}
                )
                for measure, value in figure.others.items():
                    low, high = figure.other_intervals.get(measure) or (None, None)
                    rows.append({**about, "measure": measure, "value": value, "low": low, "high": high})
        return data_frame(rows)

    def __getitem__(self, name: str) -> SuiteResult:
        """Return the result of the model called ``name``.

        Raises:
            KeyError: if no model has that name.
        """
        return {facts.name: result for facts, result in self.models}[name]

    @property
    def students(self) -> Sequence[Scored]:
        """All models but the teacher."""
        return [scored for scored in self.models if scored[0].role != "teacher"]

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

    def to_json(self) -> dict[str, Any]:
        """Return the evaluation as a JSON object, without the outcomes of single items."""
        models = []
        for facts, result in self.models:
            retention = self.retention(facts.name)
            models.append(
                {
                    **asdict(facts),
                    "average": result.average if result.headline == AVERAGE else None,
                    "retention": retention and retention.value,
                    "retention_interval": retention and retention.interval,
                    **_RESULT.dump_python(
                        result, mode="json", exclude={"figures": {"__all__": {"outcomes"}}}
                    ),
                }
            )
        return {
            "suite": self.suite,
            "teacher": self.teacher,
            "models": models,
            "notes": list(self.notes),
        }


_RESULT = TypeAdapter(SuiteResult)
