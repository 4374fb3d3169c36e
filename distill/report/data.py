"""What a report says, before anything is drawn: the one source of the page, of Markdown and of JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from distill.evaluation.scores import Interval
from distill.evaluation.spread import Score

FORMAT_VERSION = 1
"""Version of the JSON that :meth:`Report.to_json` returns."""

MAIN_SUITE = "sts"
"""The suite that students are compared by, where it was evaluated."""

LATENCY = "latency"
"""The suite that takes sentences a second by a protocol."""

Curve = Sequence[tuple[int, float]]
"""(step, value), in order of the steps."""


@dataclass(frozen=True)
class SetFigure:
    """A model's figure on one set.

    Attributes:
        label: the set's name.
        measure: what the figure is, ``spearman`` say.
        score: mean over the runs, times 100.
        interval: its 95 % confidence interval, of several runs the mean of their ends; None: not drawn.
        items: how many items it is over.
        skipped: rows of the file that were left out.
        others: further measures of the same set, by name, mean over the runs, times 100.
        intervals: the 95 % confidence intervals of those that have one, by name, as ``interval``.
    """

    label: str
    measure: str
    score: Score
    interval: Interval | None
    items: int | None
    skipped: int
    others: Mapping[str, Score] = field(default_factory=dict)
    intervals: Mapping[str, Interval] = field(default_factory=dict)


@dataclass(frozen=True)
class SuiteFigures:
    """A model's figures on one suite.

    Attributes:
        headline: the figure that models are compared by, mean over the runs; None where the suite has none.
        interval: its 95 % confidence interval, of several runs the mean of their ends; None: not drawn.
        retention: that figure in per cent of the teacher's.
        sets_scored, sets_of: how many sets the headline is over, of how many; None where there are no sets.
        sets: the sets' figures.
        others: what else was measured, by name; of a suite of sets nothing, as the sets have it.
        retention_interval: the interval of the retention, as ``interval``.
        intervals: the intervals of those of ``others`` that have one, by name, as ``interval``.
    """

    headline: Score | None
    interval: Interval | None = None
    retention: Score | None = None
    sets_scored: int | None = None
    sets_of: int | None = None
    sets: Mapping[str, SetFigure] = field(default_factory=dict)
    others: Mapping[str, Score] = field(default_factory=dict)
    retention_interval: Interval | None = None
    intervals: Mapping[str, Interval] = field(default_factory=dict)


@dataclass(frozen=True)
class Model:
    """A teacher.

    Attributes:
        key: the letters that charts call it by.
        name: its name.
        parameters: number of parameters; None where not known.
        megabytes: size of the saved weights in units of 10^6 bytes; None where not known.
        sentences_per_second: mean over the runs; :attr:`Report.timed` says what it is.
        suites: its figures by suite.
    """

    key: str
    name: str
    parameters: int | None
    megabytes: float | None
    sentences_per_second: Score | None
    suites: Mapping[str, SuiteFigures]


@dataclass(frozen=True)
class Paper:
    """What a paper says of a student that was trained like this.

    Attributes:
        recipe: the recipe whose student and loss it has.
        figure: the paper's figure.
        teacher: the figure of the paper's teacher; None where the paper names none.
        measure: what the figures are.
        suite: the suite that measures the same; None where none does.
        relative: whether the figure is in per cent of the paper's teacher's, else it is as ``measure`` says.
        source: paper, table and row.
        differences: settings of the recipe that the run departs from: key, the recipe's value, the run's.
    """

    recipe: str
    figure: float
    teacher: float | None
    measure: str
    suite: str | None
    relative: bool
    source: str
    differences: Sequence[tuple[str, str, str]]


@dataclass(frozen=True)
class Student(Model):
    """Runs that differ in their seed alone.

    Attributes:
        teacher: key of its teacher; None where it learnt from texts alone.
        loss: the loss.
        runs: names of the runs.
        seeds: their seeds.
        dev: the score its checkpoints were chosen by, times 100.
        paper: the paper's figure, where there is one.
        marks: what a reader must know before trusting a figure: selection, contamination.
    """

    teacher: str | None
    loss: str
    runs: Sequence[str]
    seeds: Sequence[int | str | None]
    dev: Score | None
    paper: Paper | None
    marks: Sequence[str]


@dataclass(frozen=True)
class RunFacts:
    """One run, as its folder tells it.

    Attributes:
        name: the folder's name.
        student: key of the student it is a run of.
        seed: its seed.
        finished: whether it went to its end.
        facts: what it was trained on and how long, for a table.
        teachers: of each of its teachers the name and the contract, field by field.
        loss_curve: training loss by step.
        dev_curve: selection score times 100 by step.
        dev_measure: what that score is; empty where there is none.
        config: the configuration, everything filled in, as YAML.
        notes: what the evaluations noted, by suite.
    """

    name: str
    student: str
    seed: int | None
    finished: bool
    facts: Mapping[str, object]
    teachers: Sequence[tuple[str, Mapping[str, object]]]
    loss_curve: Curve
    dev_curve: Curve
    dev_measure: str
    config: str
    notes: Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Pairs:
    """The pairs of one set: what people said, and each model's cosines.

    Attributes:
        label: the set's name.
        gold: the scores.
        cosines: key of the model -> cosines, as many.
    """

    label: str
    gold: Sequence[float]
    cosines: Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Neighbour:
    """A sentence near another.

    Attributes:
        text: the sentence.
        cosine: of the two vectors.
        shared: whether it is among the teacher's nearest as well.
    """

    text: str
    cosine: float
    shared: bool


@dataclass(frozen=True)
class Query:
    """A held-out sentence with the nearest of the others: key of the model -> nearest first."""

    text: str
    nearest: Mapping[str, Sequence[Neighbour]]


@dataclass(frozen=True)
class Examples:
    """Nearest neighbours side by side.

    Attributes:
        sentences: how many sentences the neighbours were looked for among.
        source: where these come from.
        queries: the examples.
    """

    sentences: int
    source: str
    queries: Sequence[Query]


@dataclass(frozen=True)
class Report:
    """Everything that is known of the runs.

    Attributes:
        students: the students, the best by the main suite first.
        teachers: their teachers.
        runs: all runs.
        pairs: one set's pairs, for the scatter; None where no evaluation kept any.
        examples: nearest neighbours; None where there are none.
        missing: what is not known, and what to do to know it.
        notes: what else a reader must know.
        timed: whether sentences a second are those of the latency suite, one at a time on a CPU; else they
            are distinct sentences encoded a second while the models were evaluated.
    """

    students: Sequence[Student]
    teachers: Sequence[Model]
    runs: Sequence[RunFacts]
    pairs: Pairs | None
    examples: Examples | None
    missing: Sequence[str]
    notes: Sequence[str] = ()
    timed: bool = False

    @property
    def models(self) -> list[Model]:
        """Teachers, then students."""
        return [*self.teachers, *self.students]

    @property
    def suites(self) -> list[str]:
        """Suites that any model was evaluated on, the main one first."""
        names = dict.fromkeys(suite for model in self.models for suite in model.suites)
        return sorted(names, key=lambda name: name != MAIN_SUITE)

    @property
    def main_suite(self) -> str | None:
        """The suite that models are compared by; None where none has a headline figure."""
        return next(
            (
                name
                for name in self.suites
                if any(name in model.suites and model.suites[name].headline for model in self.models)
            ),
            None,
        )

    def sets(self, suite: str) -> dict[str, SetFigure]:
        """Return the sets of a suite that any model was scored on, each as one model has it."""
        found: dict[str, SetFigure] = {}
        for model in self.models:
            if suite in model.suites:
                found = {**model.suites[suite].sets, **found}
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object with stable keys."""
        return {"format": FORMAT_VERSION, **dataclasses.asdict(self)}


def headline(model: Model, suite: str | None) -> Score | None:
    """Return the figure of ``model`` that ``suite`` compares by; None where there is none."""
    return model.suites[suite].headline if suite is not None and suite in model.suites else None
