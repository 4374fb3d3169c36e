"""Evaluating, for a report, what was not evaluated before; what is found out is kept in the runs' folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from distill.evaluation.encoding import Progress
from distill.evaluation.runner import evaluate_suites
from distill.evaluation.suites import SUITES
from distill.evaluation.tasks import NothingToScoreError, NotThereError, Request, Task
from distill.report.folder import RunFolder
from distill.report.run_result import RunResult, make_result

_TEACHER = "teacher"


def evaluate_runs(
    runs: Sequence[RunFolder],
    data: Path,
    suites: Sequence[str] | None,
    *,
    device: str,
    progress: Progress,
    missing: list[str],
) -> dict[Path, dict[str, RunResult]]:
    """Evaluate runs, whose teacher encodes once for all; return what was found out by folder and suite.

    Args:
        runs: runs with a student.
        data: the folder of test files.
        suites: the suites; None for all that find something to read, but for those that run on request only.
        device: what models run on.
        progress: called while they encode.
        missing: takes the suites that found nothing to read.

    Raises:
        DistillError, EmbedCacheError: as :func:`distill.evaluation.runner.evaluate_suites`.
    """
    wanted = suites or [name for name, suite in SUITES.items() if not suite.on_request]
    of_files = [name for name in wanted if not SUITES[name].reads_sentences]
    # Read once for the runs of all teachers: these suites look at no model.
    there: dict[str, Task] = {}
    for name in of_files:
        try:
            there[name] = SUITES[name].read(Request(models=(), data=data, progress=progress))
        except NotThereError as error:  # noqa: PERF203 - a handful of suites
            if suites is not None or isinstance(error, NothingToScoreError):
                missing.append(f"not evaluated: {error}")
    found: dict[Path, dict[str, RunResult]] = {run.folder: {} for run in runs}

    def evaluate(
        group: Sequence[RunFolder],
        names: Sequence[str],
        place: Path | None = None,
        tasks: Mapping[str, Task] | None = None,
    ) -> None:
        folders = [str(run.folder) for run in group]
        results = evaluate_suites(
            folders, suites=names, tasks=tasks, data=place, device=device, keep=True, progress=progress
        )
        for result in results:
            teacher = next((report for report in result.models if report.role == _TEACHER), None)
            students = [report for report in result.models if report.role != _TEACHER]
            for run, report in zip(group, students, strict=True):
                said = make_result(result.suite, report, teacher, dict(result.facts), tuple(result.notes))
                found[run.folder][result.suite] = said

    for group in _by_teacher(runs):
        if there:
            evaluate(group, list(there), data, there)
        # Runs of other seeds held other sentences out: each is looked at by itself.
        for run in group:
            for name in (name for name in wanted if SUITES[name].reads_sentences):
                try:
                    evaluate([run], [name])
                except NotThereError as error:  # noqa: PERF203 - as above
                    missing.append(f"{run.name}: not evaluated: {error}")
    return found


def _by_teacher(runs: Sequence[RunFolder]) -> list[list[RunFolder]]:
    groups: dict[str, list[RunFolder]] = {}
    for run in runs:
        groups.setdefault(run.teacher, []).append(run)
    return list(groups.values())
