"""The evaluations of runs: those kept in their folders, and what has to be evaluated now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from distill.digests import model_digest
from distill.errors import DataError
from distill.evaluation.encoding import Progress
from distill.evaluation.kept import all_kept
from distill.evaluation.suites import SUITES
from distill.report.data import MAIN_SUITE
from distill.report.folder import RunFolder
from distill.report.fresh import evaluate_runs
from distill.report.run_result import RunResult, make_result

_MOST_NAMED = 4

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
        found[suite] = make_result(suite, kept.model.report, teacher, facts, notes)
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
        able = [run for run in runs if run.has_student]
        fresh = evaluate_runs(able, data, suites, device=device, progress=progress, missing=missing)
        for folder, results in fresh.items():
            found[folder] |= results
    if suites is not None:
        found = {
            folder: {name: results[name] for name in suites if name in results}
            for folder, results in found.items()
        }
    _tell_missing(runs, found, suites, missing)
    return found


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
