"""From a model's evaluations to its figures, mean over its runs."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from distill.evaluation.result import ModelReport
from distill.evaluation.scores import Interval, SetScore, SetScores, WholeScores
from distill.evaluation.spread import Score
from distill.report.data import SetFigure, SuiteFigures


def suite_figures(reports: Sequence[ModelReport]) -> SuiteFigures:
    """Return a model's figures on one suite, from one report a run; there has to be one."""
    sets = dict.fromkeys(name for report in reports for name in sets_of(report))
    first = reports[0].scores
    of_sets = isinstance(first, SetScores)
    others = [{} if of_sets else _numbers(report) for report in reports]
    means = _means(others)
    return SuiteFigures(
        headline=score_of([report.scores.headline for report in reports]),
        interval=_mean_interval(
            [one.scores.average_interval if isinstance(one.scores, SetScores) else None for one in reports]
        ),
        retention=score_of([report.retention for report in reports]),
        sets_scored=len(first.sets) if isinstance(first, SetScores) else None,
        sets_of=first.sets_of if isinstance(first, SetScores) else None,
        sets={
            name: _set_figure([sets_of(report)[name] for report in reports if name in sets_of(report)])
            for name in sets
        },
        others=means,
        retention_interval=_mean_interval([report.retention_interval for report in reports]),
        intervals={} if of_sets else _mean_intervals([_intervals_of(report) for report in reports], means),
    )


def sets_of(report: ModelReport) -> Mapping[str, SetScore]:
    """Return the sets of a report; none of a suite that does not consist of sets."""
    return report.scores.sets if isinstance(report.scores, SetScores) else {}


def score_of(values: Sequence[float | None]) -> Score | None:
    """Return mean and deviation of the values that are there, with 4 decimals; None where none is."""
    score = Score.of(values)
    if score is None:
        return None
    return Score(round(score.mean, 4), None if score.std is None else round(score.std, 4), score.n)


def _set_figure(scores: Sequence[SetScore]) -> SetFigure:
    mean = score_of([score.value for score in scores])
    assert mean is not None  # noqa: S101 - there is a score, and a score has a value
    others = _means([score.others for score in scores])
    return SetFigure(
        label=scores[0].label,
        measure=scores[0].measure,
        score=mean,
        interval=_mean_interval([score.interval for score in scores]),
        items=scores[0].items,
        skipped=scores[0].skipped,
        others=others,
        intervals=_mean_intervals([score.intervals for score in scores], others),
    )


def _mean_interval(intervals: Sequence[Interval | None]) -> Interval | None:
    """Return the means of lower and of upper ends; None where one of the runs has no interval."""
    there = [ends for ends in intervals if ends is not None]
    if len(there) < len(intervals):
        return None
    low, high = (round(statistics.fmean(ends), 4) for ends in zip(*there, strict=True))
    return low, high


def _mean_intervals(
    intervals: Sequence[Mapping[str, Interval | None]], names: Iterable[str]
) -> dict[str, Interval]:
    means = {name: _mean_interval([one.get(name) for one in intervals]) for name in names}
    return {name: mean for name, mean in means.items() if mean is not None}


def _intervals_of(report: ModelReport) -> dict[str, Interval | None]:
    """Return the intervals of a suite without sets by the names that its figures have in JSON."""
    if not isinstance(report.scores, WholeScores):
        return {}
    intervals = report.scores.intervals
    return {name: intervals.get(name.replace(".", "_")) for name in _numbers(report)}


def _means(figures: Sequence[Mapping[str, float | None]]) -> dict[str, Score]:
    names = dict.fromkeys(name for one in figures for name in one)
    means = {name: score_of([one.get(name) for one in figures]) for name in names}
    return {name: mean for name, mean in means.items() if mean is not None}


def _numbers(report: ModelReport) -> dict[str, float | None]:
    """Return what a suite without sets measured, by dotted name."""
    found: dict[str, float | None] = {}

    def gather(prefix: str, values: Mapping[str, Any]) -> None:
        for key, value in values.items():
            if isinstance(value, Mapping):
                gather(f"{prefix}{key}.", value)
            elif isinstance(value, (int, float)) and not isinstance(value, bool):
                found[prefix + key] = float(value)

    gather("", report.scores.to_json())
    return found
