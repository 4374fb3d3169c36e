"""What a reader must know of a student before trusting its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from distill.evaluation.origin_keys import CONTAMINATION, MUCH, SELECTED_ON
from distill.report.folder import RunFolder
from distill.report.run_result import RunResult


def find_marks(runs: Sequence[RunFolder], results: Sequence[Mapping[str, RunResult]]) -> list[str]:
    """Return the marks of a student, each once.

    Args:
        runs: its runs.
        results: by suite, what was said of each of them.
    """
    marks = [f"{run.name} is not finished" for run in runs if not run.result]
    for one in results:
        for suite, result in one.items():
            marks += _selection(suite, result.student.facts.get(SELECTED_ON))
            marks += _contamination(suite, result.student.facts.get(CONTAMINATION))
    return list(dict.fromkeys(marks))


def _selection(suite: str, found: object) -> list[str]:
    """Return a mark for every test set whose pairs chose the checkpoint."""
    marks = []
    for one in found if isinstance(found, (list, tuple)) else ():
        much = one["pairs"] >= MUCH * one["of"]
        marks.append(
            f"its checkpoint was chosen on {one['pairs']:,} of the {one['of']:,} test pairs of {one['set']} "
            f"({suite}), which are in {one['file']}: its figure there is "
            + ("no test result" if much else "a little too good")
        )
    return marks


def _contamination(suite: str, found: object) -> list[str]:
    """Return a mark for a suite of whose sentences the training texts held some."""
    if not isinstance(found, Mapping):
        return []
    told = [
        f"{name} {seen['sentences_seen']:,} of {seen['sentences']:,} sentences"
        + (
            f" and both sides of {seen['pairs_seen']:,} of {seen['pairs']:,} pairs"
            if seen.get("pairs")
            else ""
        )
        for name, seen in found.items()
        if seen["sentences_seen"]
    ]
    return [f"seen in training, without their scores ({suite}): {'; '.join(told)}"] if told else []
