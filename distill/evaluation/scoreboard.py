"""What the suites of one evaluation say of each model, collected while one after another is scored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from distill.digests import items_digest
from distill.evaluation.kept import Noted
from distill.evaluation.result import EvaluationResult, ModelReport
from distill.evaluation.scores import Scores, SetScores
from distill.evaluation.seeds import SeedGroup, seed_groups, spread_of
from distill.evaluation.set_items import HasTestItems
from distill.evaluation.tasks import Request, Spec, Subject, Task
from distill.record import run_folder

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
        runs: name in reports -> run folder, of the models that are runs.
    """

    tasks: Mapping[str, Task]
    bootstrap: int = 0
    seed: int = 0
    origins: Origins | None = None
    teacher: dict[str, Noted] = field(default_factory=dict)
    models: dict[str, list[Noted]] = field(default_factory=dict)
    counts: dict[str, object] = field(default_factory=dict)
    runs: dict[str, Path] = field(default_factory=dict)
    _items: dict[str, dict[str, str]] = field(default_factory=dict)

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
            scores = self._with_items(suite, self.tasks[suite].score(subject, notes))
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
            if (run := run_folder(spec)) is not None:
                self.runs[noted.report.name] = run
        return noted

    def _with_items(self, suite: str, scores: Scores) -> Scores:
        """Return scores whose outcomes say by a digest which items they are of."""
        task = self.tasks[suite]
        if not isinstance(scores, SetScores) or not isinstance(task, HasTestItems):
            return scores
        if suite not in self._items:
            self._items[suite] = {name: items_digest(items) for name, items in task.test_items().items()}
        digests = self._items[suite]
        sets = {
            name: one
            if one.outcomes is None
            else replace(one, outcomes=replace(one.outcomes, items=digests.get(name)))
            for name, one in scores.sets.items()
        }
        return replace(scores, sets=sets)

    def drop(self, suites: Iterable[str]) -> None:
        """Leave out the tasks of ``suites``."""
        gone = set(suites)
        self.tasks = {name: task for name, task in self.tasks.items() if name not in gone}

    def results(self, request: Request, notes: Sequence[str]) -> list[EvaluationResult]:
        """Return one result per task; ``notes`` hold for all of them."""
        told = list(notes)
        groups = seed_groups(self.runs, told)
        return [self.result(name, request, self.models.get(name, []), told, groups) for name in self.tasks]

    def result(
        self,
        suite: str,
        request: Request,
        models: Sequence[Noted],
        notes: Sequence[str] = (),
        groups: Sequence[SeedGroup] = (),
    ) -> EvaluationResult:
        """Return what the suite says of ``models``, beside the teacher where it was scored.

        Over each of ``groups`` of these models it holds mean and standard deviation as well.
        """
        task, teacher = self.tasks[suite], self.teacher.get(suite)
        reports = [*([teacher] if teacher is not None else []), *models]
        own = [*task.notes, *dict.fromkeys(note for one in reports for note in one.notes)]
        whole = None if teacher is None else teacher.report.scores.headline
        if whole is not None and whole <= 0:
            own.append("no retention: the teacher's figure is not above zero, so a share of it says nothing")
        facts = {"teacher": request.teacher if teacher is not None else None, **task.facts, **self.counts}
        held = tuple(one.report.beside(None if teacher is None else teacher.report) for one in reports)
        students = [report for report in held if report.role != "teacher"]
        spreads = [spread_of(group, students) for group in groups]
        over_seeds = tuple(spread for spread in spreads if spread is not None)
        return EvaluationResult(suite, held, facts, (*notes, *own), over_seeds)
