"""The evaluations that are kept in a run's folder, as a report takes them."""

from __future__ import annotations

from collections.abc import Iterable

from distill.digests import model_digest
from distill.evaluation.kept import kept_suites, place_of, read_kept
from distill.evaluation.suites import SUITES
from distill.report.folder import RunFolder
from distill.report.run_result import RunResult, make_result


def read_results(run: RunFolder, missing: list[str], without: Iterable[str] = ()) -> dict[str, RunResult]:
    """Return what is kept in a run's folder, by suite.

    Args:
        run: the run.
        missing: takes what is there but of no use.
        without: suites that are not looked for, as they are known already.
    """
    found = {}
    student = model_digest(str(run.folder))
    known = set(without)
    for suite in (suite for suite in kept_suites(run.folder) if suite not in known):
        kept = read_kept(run.folder, suite)
        if kept is None:
            missing.append(
                f"{run.name}: {place_of(run.folder, suite).name} cannot be read; {how_to_evaluate(suite)}"
            )
            continue
        if kept.digest.get("student") != student:
            missing.append(
                f"{run.name}: the {suite} evaluation kept is of another student; {how_to_evaluate(suite)}"
            )
            continue
        teacher = None if kept.teacher is None else kept.teacher.report
        facts = {key: value for key, value in kept.result.items() if key not in ("models", "notes")}
        notes = tuple(map(str, kept.result.get("notes", ())))
        found[suite] = make_result(suite, kept.model.report, teacher, facts, notes)
    return found


def how_to_evaluate(suite: str) -> str:
    """Return what to do for a suite's figures."""
    return f"run: distill eval RUN --suite {suite}" + (
        "" if suite in SUITES and SUITES[suite].reads_sentences else " --data DIR"
    )
