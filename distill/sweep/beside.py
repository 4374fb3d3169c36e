"""The finished students of a sweep beside their teachers: what share of a teacher they keep, and how fast.

Both are evaluations of all students at once, kept in the runs' folders, where a sweep that has grown finds
them, and a report. A teacher's vectors are taken from the cache; what it lacks is encoded once and stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from distill.errors import DistillError
from distill.evaluation.encoding import Progress
from distill.evaluation.record import RunTeacher, read_run_teacher
from distill.evaluation.runner import evaluate
from distill.sweep.measured import SPEED_SUITE
from distill.sweep.plan import PlannedRun
from distill.sweep.scores import SuiteChoice, read_evaluation
from embedcache.errors import EmbedCacheError

Group = tuple[RunTeacher | None, list[PlannedRun]]


def evaluate_teachers(runs: Sequence[PlannedRun], suite: SuiteChoice, progress: Progress) -> list[str]:
    """Evaluate the teachers of finished runs by the runs' suite, unless that is kept.

    Args:
        runs: the runs, evaluated.
        suite: the suite.
        progress: called with (teacher's name, sentences done, sentences in all).

    Returns:
        Why the share of a teacher that students keep is not known, a line a teacher.
    """
    faults = []
    for teacher, group in _by_teacher(runs):
        evaluations = [read_evaluation(run.folder, suite) for run in group]
        if any(kept is None or kept.teacher is None for kept in evaluations):
            device = group[0].config.training.device
            faults.append(_evaluate(teacher, group, suite, device, progress, again=False))
    return [f"no retention: {fault}" for fault in faults if fault]


def time_models(runs: Sequence[PlannedRun], data: Path, progress: Progress) -> list[str]:
    """Time the students of finished runs and their teachers, one after the other, whatever was timed before.

    Speeds compare only where they were taken under the same conditions, so none of another hour is used.

    Args:
        runs: the runs.
        data: the folder on whose sentences models are timed.
        progress: called with (what is done, sentences done, sentences in all).

    Returns:
        Why models could not be timed, a line a teacher.
    """
    suite = SuiteChoice(SPEED_SUITE, data)
    faults = [
        _evaluate(teacher, group, suite, "cpu", progress, again=True) for teacher, group in _by_teacher(runs)
    ]
    return [f"not timed: {fault}" for fault in faults if fault]


def _evaluate(
    teacher: RunTeacher | None,
    group: Sequence[PlannedRun],
    suite: SuiteChoice,
    device: str,
    progress: Progress,
    *,
    again: bool,
) -> str | None:
    """Evaluate the students of ``group`` beside their teacher, and keep that; return why not, if so."""
    from distill.training.device import cpu_threads

    try:
        with cpu_threads(group[0].config.training.threads):
            evaluate(
                [run.folder for run in group],
                suite=suite.name,
                data=suite.data,
                teacher=_spec(teacher, group[0]),
                device=device,
                keep=True,
                again=again,
                progress=progress,
            )
    except (DistillError, EmbedCacheError) as error:
        return " ".join(str(error).split())
    return None


def _by_teacher(runs: Sequence[PlannedRun]) -> list[Group]:
    """Return the runs of each teacher."""
    groups: list[Group] = []
    for run in runs:
        teacher = read_run_teacher(run.folder)
        found = next((group for known, group in groups if known == teacher), None)
        if found is None:
            groups.append((teacher, found := []))
        found.append(run)
    return groups


def _spec(teacher: RunTeacher | None, run: PlannedRun) -> str | None:
    """Return what names a teacher by the cache; None of vectors that were made of several, or projected."""
    if teacher is None or teacher.parts or teacher.contract_id is None:
        return None
    return f"cache:{run.config.cache}#{teacher.contract_id}"
