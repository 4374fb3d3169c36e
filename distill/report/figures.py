"""From a model's evaluations to its figures, mean over its runs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from distill.evaluation.result import ModelReport
from distill.evaluation.scores import SetScore, SetScores
from distill.evaluation.spread import Score
from distill.report.data import SetFigure, SuiteFigures


def suite_figures(reports: Sequence[ModelReport]) -> SuiteFigures:
    """Return a model's figures on one suite, from one report a run; there has to be one."""
    sets = dict.fromkeys(name for report in reports for name in sets_of(report))
    first = reports[0].scores
    of_sets = isinstance(first, SetScores)
    others = [{} if isinstance(report.scores, SetScores) else _numbers(report) for report in reports]
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
        others={} if of_sets else _means(others),
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
    return SetFigure(
        label=scores[0].label,
        measure=scores[0].measure,
        score=mean,
        interval=_mean_interval([score.interval for score in scores]),
        items=scores[0].items,
        skipped=scores[0].skipped,
    )


def _mean_interval(intervals: Sequence[tuple[float, float] | None]) -> tuple[float, float] | None:
    there = [ends for ends in intervals if ends is not None]
    if len(there) < len(intervals):
        return None
    low, high = (round(statistics.fmean(ends), 4) for ends in zip(*there, strict=True))
    return low, high


def _means(figures: Sequence[Mapping[str, float]]) -> dict[str, Score]:
    names = dict.fromkeys(name for one in figures for name in one)
    means = {name: score_of([one.get(name) for one in figures]) for name in names}
    return {name: mean for name, mean in means.items() if mean is not None}


def _numbers(report: ModelReport) -> dict[str, float]:
    """Return what a suite without sets measured, by dotted name."""
    found: dict[str, float] = {}

    def gather(prefix: str, values: Mapping[str, Any]) -> None:
        for key, value in values.items():
            if isinstance(value, Mapping):
                gather(f"{prefix}{key}.", value)
            elif isinstance(value, (int, float)) and not isinstance(value, bool):
                found[prefix + key] = float(value)

    gather("", report.scores.to_json())
    return found
