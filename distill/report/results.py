"""The evaluations of runs: those kept in their folders, and what has to be evaluated now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from distill.digests import model_digest
from distill.errors import DataError
from distill.evaluation.bootstrap import with_intervals
from distill.evaluation.encoding import Progress
from distill.evaluation.kept import all_kept
from distill.evaluation.result import ModelReport
from distill.evaluation.runner import evaluate_suites
from distill.evaluation.scores import SetScores
from distill.evaluation.suites import SUITES
from distill.evaluation.tasks import NotThereError
from distill.report.data import MAIN_SUITE
from distill.report.folder import RunFolder

TEACHER = "teacher"
"""The role of a result's teacher."""

_MOST_NAMED = 4


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


def read_results(run: RunFolder, missing: list[str]) -> dict[str, RunResult]:
    """Return what is kept in a run's folder, by suite; ``missing`` takes what is there but of no use."""
    found = {}
    student = model_digest(str(run.folder))
    for suite, kept in all_kept(run.folder).items():
        if kept.digest.get("student") != student:
            missing.append(f"{run.name}: the {suite} evaluation kept is of another student; {_how(suite)}")
            continue
        teacher = None if kept.teacher is None else kept.teacher.report
        facts = {key: value for key, value in kept.result.items() if key not in ("models", "notes")}
        notes = tuple(map(str, kept.result.get("notes", ())))
        found[suite] = _run_result(suite, kept.model.report, teacher, facts, notes)
    unread = {path.name[5:-5] for path in run.folder.glob("eval-*.json")} - set(all_kept(run.folder))
    missing += [f"{run.name}: eval-{suite}.json cannot be read; {_how(suite)}" for suite in sorted(unread)]
    return found


def find_results(
    runs: Sequence[RunFolder],
    *,
    data: Path | None,
    suites: Sequence[str] | None,
    device: str,
    progress: Progress,
    missing: list[str],
) -> dict[Path, dict[str, RunResult]]:
    """Return what is known of every run, by folder and suite.

    Args:
        runs: the runs.
        data: the folder of test files for what was not evaluated yet; None: evaluate nothing.
        suites: the suites to report; None for those that were evaluated or find their files in ``data``.
        device: what models run on.
        progress: called while they encode.
        missing: takes what is not known, and what to do to know it.

    Raises:
        DistillError, EmbedCacheError: as :func:`distill.evaluation.runner.evaluate_suites`.
    """
    if unknown := [name for name in suites or () if name not in SUITES]:
        raise DataError(f"no suite is called {', '.join(unknown)}; choose of {', '.join(SUITES)}")
    found = {run.folder: read_results(run, missing) for run in runs}
    if data is not None:
        for group in _by_teacher([run for run in runs if run.has_student]):
            for folder, results in _evaluate(group, data, suites, device, progress, missing).items():
                found[folder] |= results
    if suites is not None:
        found = {
            folder: {name: results[name] for name in suites if name in results}
            for folder, results in found.items()
        }
    _tell_missing(runs, found, suites, missing)
    return found


def _evaluate(
    runs: Sequence[RunFolder],
    data: Path,
    suites: Sequence[str] | None,
    device: str,
    progress: Progress,
    missing: list[str],
) -> dict[Path, dict[str, RunResult]]:
    """Evaluate runs of one teacher, who encodes the sentences once for all of them."""
    found: dict[Path, dict[str, RunResult]] = {run.folder: {} for run in runs}
    folders = [str(run.folder) for run in runs]
    try:
        results = evaluate_suites(
            folders, suites=suites, data=data, device=device, keep=True, progress=progress
        )
    except NotThereError as error:
        missing.append(f"not evaluated: {error}")
        return found
    for result in results:
        teacher = next((report for report in result.models if report.role == TEACHER), None)
        students = [report for report in result.models if report.role != TEACHER]
        for run, report in zip(runs, students, strict=True):
            facts, notes = dict(result.facts), tuple(result.notes)
            found[run.folder][result.suite] = _run_result(result.suite, report, teacher, facts, notes)
    return found


def _run_result(
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


def _tell_missing(
    runs: Sequence[RunFolder], found: Results, suites: Sequence[str] | None, missing: list[str]
) -> None:
    """Tell of every suite that some runs have and others lack, and of those that were asked for."""
    wanted = suites or [MAIN_SUITE, *(name for results in found.values() for name in results)]
    for suite in dict.fromkeys(wanted):
        without = [run.name for run in runs if run.has_student and suite not in found[run.folder]]
        if without:
            names = ", ".join(without[:_MOST_NAMED]) + (" ..." if len(without) > _MOST_NAMED else "")
            missing.append(f"not evaluated on {suite}: {names}; {_how(suite)}")
        alone = [run.name for run in runs if _lacks_teacher(run, found[run.folder].get(suite))]
        if alone:
            missing.append(
                f"{suite}: no retention, as the teacher was not evaluated beside {len(alone)} of {len(runs)} "
                f"runs; {_how(suite)}"
            )
    missing += [
        f"{run.name}: no student was saved yet; let it reach its first evaluation"
        for run in runs
        if not run.has_student
    ]


def _lacks_teacher(run: RunFolder, result: RunResult | None) -> bool:
    if result is None or result.student.scores.headline is None:
        return False
    return bool(run.record.get("teachers")) and result.teacher is None


def _how(suite: str) -> str:
    return f"run: distill eval RUN --suite {suite}" + (
        "" if suite in SUITES and SUITES[suite].reads_sentences else " --data DIR"
    )


def _by_teacher(runs: Sequence[RunFolder]) -> list[list[RunFolder]]:
    groups: dict[str, list[RunFolder]] = {}
    for run in runs:
        groups.setdefault(run.teacher, []).append(run)
    return list(groups.values())


def _with_interval(report: ModelReport) -> ModelReport:
    """Return ``report`` with intervals, drawn now where the evaluation drew none."""
    scores = report.scores
    if not isinstance(scores, SetScores) or all(one.interval for one in scores.sets.values()):
        return report
    return replace(report, scores=with_intervals(scores))
