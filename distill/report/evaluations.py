"""Evaluations that a run keeps in its folder, read from the form of before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from distill.digests import model_digest
from distill.evaluation import cache
from distill.evaluation.bootstrap import with_intervals
from distill.evaluation.kept import Kept, kept_suites, place_of, read_kept
from distill.evaluation.old_result import ModelReport
from distill.evaluation.origin_keys import CONTAMINATION, MUCH, SELECTED_ON
from distill.evaluation.result import AVERAGE, Evaluation, Figure, ModelFacts, SuiteResult
from distill.evaluation.scores import SetScores, WholeScores


def read_evaluations(run: Path) -> tuple[dict[str, Evaluation], list[str]]:
    """Return the evaluations kept in a run's folder by suite, and what is wrong with the others."""
    found, problems = {}, []
    student = model_digest(str(run))
    for suite in kept_suites(run):
        if (evaluated := cache.read_kept(run, suite)) is not None:
            if evaluated.key.get("model") == f"weights {student}":
                found[suite] = evaluated.evaluation
            else:
                problems.append(f"{place_of(run, suite).name} is of other weights; evaluate again")
            continue
        kept = read_kept(run, suite)
        if kept is None:
            problems.append(f"{place_of(run, suite).name} is damaged; evaluate again")
        elif kept.digest.get("student") != student:
            problems.append(f"{place_of(run, suite).name} is of other weights; evaluate again")
        else:
            found[suite] = _evaluation(suite, kept)
    return found, problems


def comparison_basis(evaluation: Evaluation) -> str:
    """Return everything that has to be equal for figures to be comparable."""
    _, result = evaluation.students[0]
    items = [(name, one.items, one.outcomes and one.outcomes.texts) for name, one in result.figures.items()]
    return str((items, sorted((key, str(one)) for key, one in result.settings.items() if key != "data")))


def marks(suite: str, result: SuiteResult) -> list[str]:
    """Return selection on test pairs, and test sentences among the training texts, in words."""
    found = []
    of_sets = result.marks.get(CONTAMINATION) or {}
    chosen_on = [
        {"set": name, "pairs": one["selected_on"], "of": one["pairs"]}
        for name, one in of_sets.items()
        if one.get("selected_on")
    ]
    for one in (*(result.marks.get(SELECTED_ON) or ()), *chosen_on):
        worth = "no test result" if one["pairs"] >= MUCH * one["of"] else "a little too good"
        found.append(
            f"its checkpoint was chosen on {one['pairs']:,} of the {one['of']:,} test pairs of {one['set']} "
            f"({suite}): its figure there is {worth}"
        )
    seen = [
        f"{name} {one['sentences_seen']:,} of {one['sentences']:,} sentences"
        for name, one in of_sets.items()
        if one["sentences_seen"]
    ]
    return [*found, *([f"seen in training, without scores ({suite}): {'; '.join(seen)}"] if seen else [])]


def _evaluation(suite: str, kept: Kept) -> Evaluation:
    teacher = None if kept.teacher is None else _with_intervals(kept.teacher.report)
    own = _with_intervals(kept.model.report).beside(teacher)
    settings = {"sentences": kept.digest.get("sentences"), "settings": kept.digest.get("settings")}
    models = [(one, role) for one, role in ((teacher, "teacher"), (own, "student")) if one is not None]
    return Evaluation(
        suite,
        tuple(
            (
                ModelFacts(f"{one.name} ({role})", role, one.parameters, one.megabytes, one.dimension),
                _result(one, settings),
            )
            for one, role in models
        ),
        None if teacher is None else f"{teacher.name} (teacher)",
        retention_intervals={}
        if own.retention_interval is None
        else {f"{own.name} (student)": own.retention_interval},
    )


def _with_intervals(report: ModelReport) -> ModelReport:
    return replace(report, scores=with_intervals(report.scores))


def _result(report: ModelReport, settings: dict[str, Any]) -> SuiteResult:
    scores, figures = report.scores, {}
    if isinstance(scores, SetScores):
        for name, one in scores.sets.items():
            others = {key: value for key, value in one.others.items() if value is not None}
            figures[name] = Figure(one.value, one.measure, one.interval, one.items, others, label=one.label)
        return SuiteResult(
            figures, AVERAGE, settings=settings, average_interval=scores.average_interval, marks=report.facts
        )
    ends = scores.intervals if isinstance(scores, WholeScores) else {}

    def gather(prefix: str, values: Mapping[str, object]) -> None:
        for key, value in values.items():
            if isinstance(value, Mapping):
                gather(f"{prefix}{key}.", value)
            elif isinstance(value, int | float) and not isinstance(value, bool):
                name = prefix + key
                figures[name] = Figure(float(value), "", ends.get(name.replace(".", "_")))

    gather("", scores.to_json())
    return SuiteResult(figures, None, settings=settings, marks=report.facts)
