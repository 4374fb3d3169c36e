"""What is known of finished students and of their teachers, beside the development score.

All of it lies in the runs' folders: the record, the weights, and the evaluations that are kept there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from distill.digests import model_digest
from distill.evaluation.kept import Kept, flat_scores, read_kept
from distill.evaluation.latency import BATCH_SPEED, SPEED
from distill.evaluation.model import weight_bytes
from distill.evaluation.result import ModelReport
from distill.layout import BEST
from distill.record import read_record
from distill.sweep.scores import SuiteChoice, read_evaluation

SPEED_SUITE = "latency"
"""The suite that times models."""


@dataclass(frozen=True)
class Speed:
    """Sentences that a model encodes a second on a CPU, as the ``latency`` suite timed it.

    Attributes:
        single: one at a time.
        batch: in batches of 32.
    """

    single: float
    batch: float


@dataclass(frozen=True)
class Measured:
    """What is known of one model.

    Attributes:
        name: the run's, or the teacher's.
        parameters: number of parameters; None where not known.
        megabytes: size of the saved weights in units of 10^6 bytes; None where not known.
        scores: what the suite says: ``average``, and the figure of each set; None where it was not evaluated.
        retention: the suite's headline figure in per cent of the teacher's; None where one is not known.
        speed: how fast it is; None where it was not timed.
    """

    name: str
    parameters: int | None = None
    megabytes: float | None = None
    scores: dict[str, float] | None = None
    retention: float | None = None
    speed: Speed | None = None


def measure_student(folder: Path, suite: SuiteChoice | None) -> Measured:
    """Return what is known of a finished run's student.

    Args:
        folder: the run's folder.
        suite: what the scores are of; None for no scores.
    """
    record = read_record(folder)
    parameters = None if record is None else record.parameters
    found = Measured(
        folder.name,
        parameters if isinstance(parameters, int) else None,
        round(weight_bytes(folder / BEST) / 1e6, 3) if (folder / BEST).is_dir() else None,
    )
    if suite is not None and (kept := read_evaluation(folder, suite)) is not None:
        found = replace(found, scores=dict(kept.scores), retention=_retention(kept))
    timing = read_timing(folder)
    return found if timing is None else replace(found, speed=_speed(timing.model.report))


def measure_teachers(folders: Iterable[Path], suite: SuiteChoice | None) -> list[Measured]:
    """Return what is known of the teachers that students stood beside, each once.

    Args:
        folders: the folders of the students' runs.
        suite: what the scores are of; None for no scores.
    """
    found: dict[str | None, Measured] = {}
    for folder in folders:
        kept = None if suite is None else read_evaluation(folder, suite)
        if suite is not None and kept is not None and kept.teacher is not None:
            report = kept.teacher.report
            known = _sized(found.get(kept.teacher_digest), report)
            scores = flat_scores(suite.name, report)
            retention = None if report.scores.headline is None else 100.0
            found[kept.teacher_digest] = replace(known, scores=scores, retention=retention)
        timing = read_timing(folder)
        if timing is not None and timing.teacher is not None:
            report = timing.teacher.report
            known = _sized(found.get(timing.teacher_digest), report)
            found[timing.teacher_digest] = replace(known, speed=_speed(report))
    return list(found.values())


def read_timing(folder: Path) -> Kept | None:
    """Return the timing that is kept in a run's folder, if it is of the student that lies there."""
    kept = read_kept(folder, SPEED_SUITE)
    return kept if kept is not None and kept.digest["student"] == model_digest(str(folder)) else None


def _sized(known: Measured | None, report: ModelReport) -> Measured:
    """Return ``known``, or what a teacher's report begins with; sizes are taken from where they stand."""
    known = known or Measured(report.name)
    return replace(
        known,
        parameters=known.parameters or report.parameters,
        megabytes=known.megabytes or report.megabytes,
    )


def _retention(kept: Kept) -> float | None:
    own = kept.model.report.scores.headline
    whole = None if kept.teacher is None else kept.teacher.report.scores.headline
    return None if own is None or whole is None or whole <= 0 else 100 * own / whole


def _speed(report: ModelReport) -> Speed | None:
    figures = report.scores.to_json()
    single, batch = figures.get(SPEED), figures.get(BATCH_SPEED)
    if not isinstance(single, float) or not isinstance(batch, float):
        return None
    return Speed(single, batch)
