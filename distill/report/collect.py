"""From run folders to a report: evaluations found or made, examples drawn, all of it put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from distill.evaluation.encoding import Progress, silent
from distill.report.assemble import make_report, students_of
from distill.report.data import Report
from distill.report.examples import find_examples
from distill.report.folder import find_runs
from distill.report.results import find_results

QUERIES = 5
"""Sentences whose neighbours are shown, where a caller does not say how many."""


def collect_report(
    places: Sequence[str | Path] | str | Path,
    *,
    data: str | Path | None = None,
    suites: Sequence[str] | None = None,
    queries: int = QUERIES,
    device: str = "auto",
    progress: Progress = silent,
) -> Report:
    """Return the report on the runs in ``places``.

    Evaluations that are kept in the runs' folders are used; what is missing is evaluated where ``data`` says
    on what, and else told.

    Args:
        places: run folders, or folders with runs below them.
        data: the folder of test files to evaluate on what was not evaluated yet; None: evaluate nothing.
        suites: keys of :data:`distill.evaluation.suites.SUITES` to report; default: what was evaluated, and
            with ``data`` every suite that finds its files there.
        queries: how many sentences to show the nearest neighbours of; 0: none, and no model is loaded.
        device: what models run on: ``auto``, ``cpu``, ``cuda`` ...
        progress: called with (model's name, sentences done, sentences in all).

    Raises:
        DataError: if there is no run, or the data cannot be used.
        DistillError, EmbedCacheError: as :func:`distill.evaluation.runner.evaluate_suites`.
    """
    runs = find_runs([places] if isinstance(places, (str, Path)) else places)
    missing: list[str] = []
    results = find_results(
        runs,
        data=None if data is None else Path(data),
        suites=suites,
        device=device,
        progress=progress,
        missing=missing,
    )
    groups = students_of(runs, results)
    report = make_report(runs, groups, results)
    first = report.students[0].teacher if report.students else None
    # Neighbours side by side are of one teacher's students.
    alike = [
        (student.key, group[0])
        for student, group in zip(report.students, groups, strict=True)
        if student.teacher == first
    ]
    examples = find_examples(alike, first, queries=queries, device=device, progress=progress, notes=missing)
    return replace(report, examples=examples, missing=list(dict.fromkeys(missing)))
