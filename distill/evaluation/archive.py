"""Evaluations that runs keep: which of them stand for one that is asked for, and which are new."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from distill.digests import files_digest, model_digest
from distill.evaluation.kept import (
    Kept,
    Noted,
    digest_of,
    flat_scores,
    new_kept,
    place_of,
    read_kept,
    try_write,
)
from distill.evaluation.scoreboard import Scoreboard
from distill.evaluation.tasks import Request, Spec, Task
from distill.evaluation.teacher_choice import TeacherChoice
from distill.record import run_folder


@dataclass
class Archive:
    """What the evaluated runs keep of earlier evaluations, and will keep of this one.

    Attributes:
        tasks: the tasks by suite.
        request: the models and what is asked of them.
        choice: the teacher that they stand beside; None without one.
        compute_dtype: number format of the forward pass.
        use: whether to use what is kept.
        write: whether to keep what is new.
        teacher_digest: what tells the teacher from others; None of one that was given loaded.
        kept: what is kept and can be used, by run and suite.
        digests: what decides the figures, by run and suite.
        new_teacher: the suites for which the teacher is evaluated.
        damaged: kept evaluations that cannot be read.
    """

    tasks: dict[str, Task]
    request: Request
    choice: TeacherChoice | None
    compute_dtype: str
    use: bool
    write: bool
    teacher_digest: str | None = None
    kept: dict[Path, dict[str, Kept]] = field(default_factory=dict)
    digests: dict[tuple[Path, str], dict[str, str]] = field(default_factory=dict)
    new_teacher: set[str] = field(default_factory=set)
    damaged: list[Path] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.write:
            return
        self.teacher_digest = self.choice.digest() if self.choice is not None else None
        # Several suites may read one file.
        read: dict[Path, str] = {}
        data = {suite: files_digest(task.files, known=read) for suite, task in self.tasks.items()}
        for run in dict.fromkeys(run for run in map(run_folder, self.request.models) if run is not None):
            student = model_digest(str(run)) or ""
            for suite, task in self.tasks.items():
                self.digests[run, suite] = digest_of(data[suite], student, task.texts(), self._settings(task))
            found = {suite: read_kept(run, suite) for suite in self.tasks} if self.use else {}
            self.damaged += [
                place_of(run, suite)
                for suite, kept in found.items()
                if kept is None and place_of(run, suite).exists()
            ]
            self.kept[run] = {
                suite: kept
                for suite, kept in found.items()
                if kept is not None and dict(kept.digest) == self.digests[run, suite]
            }

    def recall_teacher(self, board: Scoreboard) -> list[str]:
        """Add the teacher's reports that are kept, and return the suites for which it has to be evaluated."""
        lacking = []
        for suite, task in self.tasks.items():
            held = [kept[suite] for kept in self.kept.values() if suite in kept]
            known = [one.teacher for one in held if one.teacher and one.teacher_digest == self.teacher_digest]
            # Where models are compared with its vectors, they are needed for every model that is evaluated.
            everyone = not task.needs_teacher or all(
                suite in self.kept.get(run_folder(spec) or Path(), {}) for spec in self.request.models
            )
            if known and everyone:
                board.put(suite, known[0])
            else:
                lacking.append(suite)
                self.new_teacher.add(suite)
        return lacking

    def recall_model(self, spec: Spec, suites: Iterable[str]) -> dict[str, Noted]:
        """Return what the run's folder keeps of ``spec``, by suite."""
        run = run_folder(spec)
        kept = {} if run is None else self.kept.get(run, {})
        return {suite: kept[suite].model for suite in suites if suite in kept}

    def tell_of_use(self, spec: Spec, found: Iterable[str], notes: list[str]) -> None:
        """Note which evaluations were not made anew."""
        run = run_folder(spec)
        used = list(found)
        if run is not None and used:
            files = ", ".join(place_of(run, suite).name for suite in used)
            notes.append(
                f"{run.name}: {files} in {run} used, nothing encoded again, so speeds are those of then; "
                "--again evaluates anew"
            )

    def write_new(
        self, spec: Spec, new: dict[str, Noted], found: dict[str, Noted], board: Scoreboard, notes: list[str]
    ) -> None:
        """Keep what is new: reports of the run's student, their marks, or reports of the teacher beside it.

        Where the student was evaluated by itself, the teacher stays that stood beside it on the same data.
        """
        run = run_folder(spec)
        if run is None or not self.write:
            return
        kept = self.kept.get(run, {})
        fresh = new | {
            suite: noted
            for suite, noted in found.items()
            if self._has_another_teacher(kept[suite], board)
            or noted.report.facts != kept[suite].model.report.facts
        }
        notes += [
            f"{run.name}: {place.name} was kept and cannot be read; it is made anew"
            for place in self.damaged
            if place.parent == run
        ]
        for suite, noted in fresh.items():
            stands = read_kept(run, suite)
            if lost := self._lost(stands, run, suite, noted):
                notes.append(
                    f"{run.name}: not kept, because {place_of(run, suite).name} has {lost} as well, which "
                    f"{self.request.data} has not; delete that file to keep narrower evaluations"
                )
                continue
            teacher = board.teacher.get(suite) if self.teacher_digest is not None else None
            if self.tasks[suite].needs_teacher and teacher is None:
                continue
            digest = self.teacher_digest if teacher is not None else None
            shown, request = board, self.request
            if teacher is None and stands is not None and self._is_beside_its_teacher(stands, run, suite):
                teacher, digest = stands.teacher, stands.teacher_digest
                shown = replace(board, teacher={} if teacher is None else {suite: teacher}, counts={})
                request = replace(request, teacher=stands.result.get("teacher"))
            result = shown.result(suite, request, [noted]).to_json()
            made = new_kept(suite, self.digests[run, suite], digest, result, noted, teacher)
            if fault := try_write(run, made):
                notes.append(fault)
        if fresh:
            # What a card says is put together from what is kept, and that is found here.
            from distill.card import update_card

            if fault := update_card(run):
                notes.append(fault)

    def _has_another_teacher(self, kept: Kept, board: Scoreboard) -> bool:
        """Return whether what is kept is to be written anew for the teacher that stands beside it now.

        It may have been evaluated now, or be known from another run that was evaluated beside it.
        """
        known = kept.suite in board.teacher and kept.teacher_digest != self.teacher_digest
        return known or kept.suite in self.new_teacher

    def _lost(self, stands: Kept | None, run: Path, suite: str, noted: Noted) -> str:
        """Return the sets that a kept evaluation of the same student has beside the new one's; "" if none."""
        if stands is None or any(
            stands.digest.get(name) != self.digests[run, suite][name] for name in ("student", "version")
        ):
            return ""
        there, now = set(stands.scores), set(flat_scores(suite, noted.report))
        return ", ".join(sorted(there - now)) if now < there else ""

    def _is_beside_its_teacher(self, stands: Kept, run: Path, suite: str) -> bool:
        """Return whether of an evaluation that is about to be replaced the teacher's part is still good.

        A student that is evaluated by itself must not cost what is known of its teacher.
        """
        if stands.teacher is None or dict(stands.digest) != self.digests[run, suite]:
            return False
        return self.teacher_digest in (None, stands.teacher_digest)

    def _settings(self, task: Task) -> dict[str, object]:
        teacher = {"teacher": self.teacher_digest} if task.needs_teacher else {}
        return {**task.settings, "compute_dtype": self.compute_dtype, **teacher}
