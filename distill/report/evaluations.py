"""Evaluations that a run keeps in its folder, checked against its student."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from distill.errors import DistillError
from distill.evaluation.cache import kept_path, kept_suites, read_kept
from distill.evaluation.contamination import CONTAMINATION, Seen, describe
from distill.evaluation.models import open_model
from distill.evaluation.result import Figure, ModelFacts, SuiteResult


@dataclass(frozen=True)
class RunEvaluation:
    """A suite's evaluation of a run's student.

    Attributes:
        result: figures of the student.
        retention: its average in per cent of the teacher's; None without a teacher.
        teacher: facts and figures of its teacher; None without one.
        basis: data, settings, items and machine: equal of all figures that can be compared.
    """

    result: SuiteResult
    retention: Figure | None
    teacher: tuple[ModelFacts, SuiteResult] | None
    basis: str


def read_evaluations(run: Path) -> tuple[dict[str, RunEvaluation], list[str]]:
    """Return the evaluations kept in a run's folder by suite, and what is wrong with the others."""
    found, problems = {}, []
    try:
        student = open_model(run).identity()
    except DistillError:
        student = None
    for suite in kept_suites(run):
        file, kept = kept_path(run, suite).name, read_kept(run, suite)
        if kept is None:
            problems.append(f"{file} is damaged; evaluate again")
        elif kept.key.get("model") != student:
            problems.append(f"{file} is of other weights; evaluate again")
        else:
            evaluation, (facts, result) = kept.evaluation, kept.scored
            teacher = evaluation.models[0] if evaluation.teacher else None
            items = [(name, one.items) for name, one in result.figures.items()]
            machine = [result.settings.get(name) for name in ("processor", "threads")]
            basis = [items, kept.key.get("data"), kept.key.get("settings"), machine]
            found[suite] = RunEvaluation(result, evaluation.retention(facts.name), teacher, str(basis))
    return found, problems


def marks(suite: str, result: SuiteResult) -> list[str]:
    """Return selection on test pairs, and test sentences among the training texts, in words."""
    seen = {name: Seen(**one) for name, one in (result.marks.get(CONTAMINATION) or {}).items()}
    worth = {name: one for name, one in seen.items() if one.sentences_seen or one.selected_on}
    return [f"{suite}: {note}" for note in describe(worth)] if worth else []
