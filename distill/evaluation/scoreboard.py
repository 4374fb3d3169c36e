"""What the suites of one evaluation say of each model, collected while one after another is scored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from distill.evaluation.kept import Noted
from distill.evaluation.result import EvaluationResult, ModelReport
from distill.evaluation.tasks import Request, Spec, Subject, Task

if TYPE_CHECKING:
    from distill.evaluation.origin import Origins


@dataclass
class Scoreboard:
    """The tasks and what they say of each model.

    Attributes:
        tasks: the tasks by suite.
        bootstrap: draws for the intervals; 0 for none.
        seed: chooses the draws.
        origins: what models were trained and chosen on; None where nobody looks.
        teacher: the teacher's reports by suite.
        models: the models' reports by suite, in the order in which they were added.
        counts: what is told of the teacher's vectors.
    """

    tasks: Mapping[str, Task]
    bootstrap: int = 0
    seed: int = 0
    origins: Origins | None = None
    teacher: dict[str, Noted] = field(default_factory=dict)
    models: dict[str, list[Noted]] = field(default_factory=dict)
    counts: dict[str, object] = field(default_factory=dict)

    def add(self, subject: Subject, suites: Iterable[str]) -> dict[str, Noted]:
        """Score ``subject`` on the tasks of ``suites`` and return its reports.

        Raises:
            DataError: if its vectors cannot be scored.
        """
        encoded = subject.encoded
        if subject.is_teacher:
            self.counts["teacher_vectors_cached"] = encoded.recalled
            self.counts["teacher_vectors_encoded"] = encoded.encoded_now
        role = "teacher" if subject.is_teacher else "model"
        found = {}
        for suite in suites:
            notes: list[str] = []
            scores = self.tasks[suite].score(subject, notes)
            report = ModelReport.of(subject.model, role, encoded.sentences_per_second, scores)
            found[suite] = self.put(suite, Noted(report, tuple(notes)), subject.spec)
        return found

    def put(self, suite: str, noted: Noted, spec: Spec | None = None) -> Noted:
        """Add a report that is there, and return it with its intervals and, of ``spec``, with its marks."""
        from distill.evaluation.bootstrap import with_intervals

        if self.origins is not None and spec is not None:
            noted = self.origins.told(spec, suite, noted)
        scores = with_intervals(noted.report.scores, self.bootstrap, self.seed)
        noted = replace(noted, report=replace(noted.report, scores=scores))
        if noted.report.role == "teacher":
            self.teacher[suite] = noted
        else:
            self.models.setdefault(suite, []).append(noted)
        return noted

    def drop(self, suites: Iterable[str]) -> None:
        """Leave out the tasks of ``suites``."""
        gone = set(suites)
        self.tasks = {name: task for name, task in self.tasks.items() if name not in gone}

    def results(self, request: Request, notes: Sequence[str]) -> list[EvaluationResult]:
        """Return one result per task; ``notes`` hold for all of them."""
        return [self.result(name, request, self.models.get(name, []), notes) for name in self.tasks]

    def result(
        self, suite: str, request: Request, models: Sequence[Noted], notes: Sequence[str] = ()
    ) -> EvaluationResult:
        """Return what the suite says of ``models``, beside the teacher where it was scored."""
        task, teacher = self.tasks[suite], self.teacher.get(suite)
        reports = [*([teacher] if teacher is not None else []), *models]
        own = [*task.notes, *dict.fromkeys(note for one in reports for note in one.notes)]
        whole = None if teacher is None else teacher.report.scores.headline
        if whole is not None and whole <= 0:
            own.append("no retention: the teacher's figure is not above zero, so a share of it says nothing")
        facts = {"teacher": request.teacher if teacher is not None else None, **task.facts, **self.counts}
        held = tuple(replace(one.report, retention=_retention(one.report, teacher)) for one in reports)
        return EvaluationResult(suite, held, facts, (*notes, *own))


def _retention(report: ModelReport, teacher: Noted | None) -> float | None:
    whole = None if teacher is None else teacher.report.scores.headline
    if whole is None or whole <= 0 or report.scores.headline is None:
        return None
    return 100 * report.scores.headline / whole
