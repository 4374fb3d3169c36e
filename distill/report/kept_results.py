"""The evaluations that are kept in a run's folder, as a report takes them."""

from __future__ import annotations

from distill.digests import model_digest
from distill.evaluation.kept import all_kept
from distill.evaluation.suites import SUITES
from distill.report.folder import RunFolder
from distill.report.run_result import RunResult, make_result


def read_results(run: RunFolder, missing: list[str]) -> dict[str, RunResult]:
    """Return what is kept in a run's folder, by suite; ``missing`` takes what is there but of no use."""
    found = {}
    student = model_digest(str(run.folder))
    for suite, kept in all_kept(run.folder).items():
        if kept.digest.get("student") != student:
            missing.append(
                f"{run.name}: the {suite} evaluation kept is of another student; {how_to_evaluate(suite)}"
            )
            continue
        teacher = None if kept.teacher is None else kept.teacher.report
        facts = {key: value for key, value in kept.result.items() if key not in ("models", "notes")}
        notes = tuple(map(str, kept.result.get("notes", ())))
        found[suite] = make_result(suite, kept.model.report, teacher, facts, notes)
    unread = {path.name[5:-5] for path in run.folder.glob("eval-*.json")} - set(all_kept(run.folder))
    missing += [
        f"{run.name}: eval-{suite}.json cannot be read; {how_to_evaluate(suite)}" for suite in sorted(unread)
    ]
    return found


def how_to_evaluate(suite: str) -> str:
    """Return what to do for a suite's figures."""
    return f"run: distill eval RUN --suite {suite}" + (
        "" if suite in SUITES and SUITES[suite].reads_sentences else " --data DIR"
    )
