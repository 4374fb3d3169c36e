"""What one suite said of one run's student, as a report takes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from distill.evaluation.bootstrap import with_intervals
from distill.evaluation.result import ModelReport
from distill.evaluation.scores import SetScores


@dataclass(frozen=True)
class RunResult:
    """What one suite said of one run's student.

    Attributes:
        suite: the suite.
        student: the report on the student.
        teacher: that on its teacher; None where the teacher was not evaluated.
        facts: what holds for both, as JSON.
        notes: what a reader must know.
    """

    suite: str
    student: ModelReport
    teacher: ModelReport | None
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()


Results = Mapping[Path, Mapping[str, RunResult]]
"""Run folder -> suite -> what it said."""


def make_result(
    suite: str,
    student: ModelReport,
    teacher: ModelReport | None,
    facts: Mapping[str, Any],
    notes: Sequence[str],
) -> RunResult:
    """Return a result with intervals and, beside a teacher with a figure above zero, the retention."""
    own, whole = student.scores.headline, None if teacher is None else teacher.scores.headline
    retention = 100 * own / whole if own is not None and whole is not None and whole > 0 else None
    beside = None if teacher is None else _with_interval(teacher)
    return RunResult(suite, _with_interval(replace(student, retention=retention)), beside, facts, notes)


def _with_interval(report: ModelReport) -> ModelReport:
    """Return ``report`` with intervals, drawn now where the evaluation drew none."""
    scores = report.scores
    if not isinstance(scores, SetScores) or all(one.interval for one in scores.sets.values()):
        return report
    return replace(report, scores=with_intervals(scores))
