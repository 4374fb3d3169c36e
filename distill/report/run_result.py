"""What one suite said of one run's student, as a report takes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from distill.evaluation.bootstrap import with_intervals
from distill.evaluation.result import ModelReport


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
    """Return a result with intervals and, beside a teacher with a figure above zero, the retention.

    Intervals are drawn now where the evaluation drew none, or by other draws than a report's, which are
    those that an evaluation makes where nobody says how many.
    """
    whole = None if teacher is None else _with_intervals(teacher)
    return RunResult(suite, _with_intervals(student).beside(whole), whole, facts, notes)


def _with_intervals(report: ModelReport) -> ModelReport:
    return replace(report, scores=with_intervals(report.scores))
