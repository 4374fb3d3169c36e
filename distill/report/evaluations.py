"""Evaluations that a run keeps in its folder, as a report reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from distill.digests import model_digest
from distill.evaluation.bootstrap import with_intervals
from distill.evaluation.kept import kept_suites, place_of, read_kept
from distill.evaluation.origin_keys import CONTAMINATION, MUCH, SELECTED_ON
from distill.evaluation.result import ModelReport
from distill.evaluation.scores import SetScores, WholeScores

Interval = tuple[float, float]

HEADLINE = "average"


@dataclass(frozen=True)
class Figure:
    """A number that was measured, with its interval."""

    value: float
    measure: str = ""
    interval: Interval | None = None
    items: int | None = None
    others: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelFigures:
    """A suite's figures of one model."""

    name: str
    parameters: int | None
    megabytes: float | None
    figures: Mapping[str, Figure]
    headline: Figure | None
    retention: Figure | None = None
    marks: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunEvaluation:
    """A suite's evaluation of a run's student and, where it was evaluated too, of its teacher.

    Attributes:
        student, teacher: the figures.
        basis: everything that has to be equal for figures to be comparable.
    """

    student: ModelFigures
    teacher: ModelFigures | None
    basis: str
    notes: tuple[str, ...] = ()


def read_evaluations(folder: Path) -> tuple[dict[str, RunEvaluation], list[str]]:
    """Return the evaluations kept in a run's folder by suite, and what is wrong with the others."""
    found, problems = {}, []
    student = model_digest(str(folder))
    for suite in kept_suites(folder):
        kept = read_kept(folder, suite)
        if kept is None:
            problems.append(f"{place_of(folder, suite).name} is damaged; evaluate again")
        elif kept.digest.get("student") != student:
            problems.append(f"{place_of(folder, suite).name} is of other weights; evaluate again")
        else:
            teacher = None if kept.teacher is None else with_scores(kept.teacher.report)
            own = with_scores(kept.model.report).beside(teacher)
            sets = own.scores.sets if isinstance(own.scores, SetScores) else {}
            basis = f"{kept.digest.get('sentences')} {kept.digest.get('settings')} {list(sets)}"
            found[suite] = RunEvaluation(
                model_figures(own, suite),
                None if teacher is None else model_figures(teacher, suite),
                basis,
                tuple(map(str, kept.result.get("notes", ()))),
            )
    return found, problems


def with_scores(report: ModelReport) -> ModelReport:
    """Return the report with intervals."""
    from dataclasses import replace

    return replace(report, scores=with_intervals(report.scores))


def model_figures(report: ModelReport, suite: str) -> ModelFigures:
    """Return the figures of a model's report."""
    scores, headline = report.scores, None
    figures: dict[str, Figure] = {}
    if isinstance(scores, SetScores):
        figures = {
            name: Figure(
                one.value,
                one.measure,
                one.interval,
                one.items,
                {k: v for k, v in one.others.items() if v is not None},
            )
            for name, one in scores.sets.items()
        }
        if scores.headline is not None:
            headline = Figure(scores.headline, HEADLINE, scores.average_interval)
    else:
        ends = scores.intervals if isinstance(scores, WholeScores) else {}

        def gather(prefix: str, values: Mapping[str, object]) -> None:
            for key, value in values.items():
                if isinstance(value, Mapping):
                    gather(f"{prefix}{key}.", value)
                elif isinstance(value, (int, float)) and not isinstance(value, bool):
                    name = prefix + key
                    figures[name] = Figure(float(value), interval=ends.get(name.replace(".", "_")))

        gather("", scores.to_json())
    retention = None
    if report.retention is not None:
        retention = Figure(report.retention, "%", report.retention_interval)
    sizes = (report.parameters, report.megabytes)
    return ModelFigures(report.name, *sizes, figures, headline, retention, marks(suite, report))


def marks(suite: str, report: ModelReport) -> tuple[str, ...]:
    """Return selection on test pairs and contamination in words."""
    found = []
    selected = report.facts.get(SELECTED_ON)
    for one in selected if isinstance(selected, (list, tuple)) else ():
        much = one["pairs"] >= MUCH * one["of"]
        found.append(
            f"its checkpoint was chosen on {one['pairs']:,} of the {one['of']:,} test pairs of {one['set']} "
            f"({suite}): its figure there is " + ("no test result" if much else "a little too good")
        )
    seen = report.facts.get(CONTAMINATION)
    told = [
        f"{name} {one['sentences_seen']:,} of {one['sentences']:,} sentences"
        for name, one in (seen.items() if isinstance(seen, Mapping) else ())
        if one["sentences_seen"]
    ]
    return (*found, *([f"seen in training ({suite}): {'; '.join(told)}"] if told else []))
