"""The evaluations of runs: those kept in their folders, and what has to be evaluated now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from distill.errors import DataError
from distill.evaluation.encoding import Progress
from distill.evaluation.suites import SUITES
from distill.report.data import MAIN_SUITE
from distill.report.figures import sets_of
from distill.report.folder import RunFolder
from distill.report.fresh import evaluate_runs
from distill.report.kept_results import how_to_evaluate, read_results
from distill.report.run_result import Results, RunResult

_MOST_NAMED = 4


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
    fresh: dict[Path, dict[str, RunResult]] = {}
    if data is not None:
        able = [run for run in runs if run.has_student]
        fresh = evaluate_runs(able, data, suites, device=device, progress=progress, missing=missing)
    found = {}
    for run in runs:
        known = fresh.get(run.folder, {})
        # Evaluating has read, or written, what is kept of these suites.
        found[run.folder] = read_results(run, missing, without=known) | known
    if suites is not None:
        found = {
            folder: {name: results[name] for name in suites if name in results}
            for folder, results in found.items()
        }
    found = _on_the_same_items(found, missing)
    _tell_missing(runs, found, suites, missing)
    return found


def _on_the_same_items(
    found: Mapping[Path, Mapping[str, RunResult]], missing: list[str]
) -> dict[Path, dict[str, RunResult]]:
    """Return the results that stand on the sets, and as many items of each, that most runs' stand on.

    A mean over seeds, or a table's order, of averages over different sets would say nothing.
    """
    kept: dict[Path, dict[str, RunResult]] = {folder: {} for folder in found}
    for suite in dict.fromkeys(name for results in found.values() for name in results):
        items = {
            folder: tuple((name, one.items) for name, one in sets_of(results[suite].student).items())
            for folder, results in found.items()
            if suite in results
        }
        ((usual, _),) = Counter(items.values()).most_common(1)
        for folder, own in items.items():
            if own == usual:
                kept[folder][suite] = found[folder][suite]
            else:
                missing.append(
                    f"{folder.name}: left out of {suite}, evaluated on {_describe(own)}, most runs on "
                    f"{_describe(usual)}; evaluate all of them on the same files"
                )
    return kept


def _describe(items: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in items) or "no set"


def _tell_missing(
    runs: Sequence[RunFolder], found: Results, suites: Sequence[str] | None, missing: list[str]
) -> None:
    """Tell of every suite that some runs have and others lack, and of those that were asked for."""
    wanted = suites or [MAIN_SUITE, *(name for results in found.values() for name in results)]
    for suite in dict.fromkeys(wanted):
        without = [run.name for run in runs if run.has_student and suite not in found[run.folder]]
        if without:
            names = ", ".join(without[:_MOST_NAMED]) + (" ..." if len(without) > _MOST_NAMED else "")
            missing.append(f"not evaluated on {suite}: {names}; {how_to_evaluate(suite)}")
        alone = [run.name for run in runs if _lacks_teacher(run, found[run.folder].get(suite))]
        if alone:
            missing.append(
                f"{suite}: no retention, as the teacher was not evaluated beside {len(alone)} of {len(runs)} "
                f"runs; {how_to_evaluate(suite)}"
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
