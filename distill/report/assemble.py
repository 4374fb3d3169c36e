"""From runs and their evaluations to a report: what pages, Markdown, JSON and model cards say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from distill.evaluation.latency import SPEED
from distill.evaluation.model import weight_bytes
from distill.evaluation.result import ModelReport
from distill.evaluation.scores import PairOutcomes
from distill.evaluation.seeds import without_repeats
from distill.evaluation.setting import read_setting
from distill.evaluation.spread import Score
from distill.layout import BEST
from distill.report import words
from distill.report.data import LATENCY, MAIN_SUITE, Model, Pairs, Report, RunFacts, Student, SuiteFigures
from distill.report.figures import score_of, sets_of, suite_figures
from distill.report.folder import RunFolder
from distill.report.marks import find_marks
from distill.report.paper import find_paper
from distill.report.run_result import Results, RunResult
from distill.report.students import group_runs, student_key, student_names, teacher_key

_SCATTER_SETS = ("stsb", "sickr")
"""Sets whose pairs are drawn, the first that is there; else the first set of all."""

_MOST_SCATTERS = 6


def make_report(runs: Sequence[RunFolder], groups: Sequence[Sequence[RunFolder]], results: Results) -> Report:
    """Return the report on ``runs``, without examples.

    Args:
        runs: the runs.
        groups: the same by student, as :func:`students_of` gives them.
        results: what is known of every run.
    """
    names = student_names(groups)
    identities = list(dict.fromkeys(run.teacher for run in runs if run.teacher))
    keys = {identity: teacher_key(place, len(identities)) for place, identity in enumerate(identities)}
    notes: list[str] = []
    students = [
        _student(student_key(place), name, group, results, keys, notes)
        for place, (name, group) in enumerate(zip(names, groups, strict=True))
    ]
    owners = {run.folder: student for student, group in zip(students, groups, strict=True) for run in group}
    report = Report(
        students=students,
        teachers=[
            _teacher(key, [run for run in runs if run.teacher == identity], results)
            for identity, key in keys.items()
        ],
        runs=[_facts(run, owners[run.folder].key, results[run.folder]) for run in runs],
        pairs=_pairs(students, groups, keys, results),
        examples=None,
        missing=[],
        notes=notes,
    )
    return _timed(report, results)


def students_of(runs: Sequence[RunFolder], results: Results) -> list[list[RunFolder]]:
    """Return the runs of each student; first the best by the main suite, else by the selection score."""

    def rank(group: Sequence[RunFolder]) -> tuple[bool, float, float]:
        scores = [
            result.student.scores.headline
            for run in group
            if (result := results[run.folder].get(MAIN_SUITE)) is not None
        ]
        main, dev = score_of(scores), score_of([_dev(run) for run in group])
        return main is None, -(main.mean if main else 0.0), -(dev.mean if dev else 0.0)

    return sorted(group_runs(runs), key=rank)


def _student(
    key: str,
    name: str,
    runs: Sequence[RunFolder],
    results: Results,
    teachers: Mapping[str, str],
    notes: list[str],
) -> Student:
    """Return what is said of the runs of one student; ``notes`` takes those that its means leave out."""

    def once(some: Sequence[RunFolder]) -> list[RunFolder]:
        return without_repeats(some, lambda run: read_setting(run.folder), lambda run: run.name, notes)

    # Repeats are looked for in each suite: of two such runs one may be evaluated where the other is not.
    suites = dict.fromkeys(suite for run in runs for suite in results[run.folder])
    of_suite = {suite: once([run for run in runs if suite in results[run.folder]]) for suite in suites}
    counted = once(runs)
    shown = [run for run in runs if run in counted or any(run in some for some in of_suite.values())]
    settings = [read_setting(run.folder) for run in shown]
    said = [results[run.folder] for run in shown]
    parameters = runs[0].record.get("parameters")
    return Student(
        key=key,
        name=name,
        parameters=parameters if isinstance(parameters, int) else None,
        megabytes=_megabytes(runs[0]),
        sentences_per_second=_speed([_reports(results[run.folder]) for run in counted]),
        suites={
            suite: suite_figures([results[run.folder][suite].student for run in some])
            for suite, some in of_suite.items()
        },
        teacher=teachers.get(runs[0].teacher),
        loss=str(runs[0].record.get("loss")),
        runs=[run.name for run in shown],
        seeds=[run.seed if known is None else known.seed for run, known in zip(shown, settings, strict=True)],
        dev=score_of([_dev(run) for run in counted]),
        paper=find_paper(runs[0], of_suite),
        marks=find_marks(shown, said),
    )


def _reports(results: Mapping[str, RunResult]) -> dict[str, ModelReport]:
    return {suite: result.student for suite, result in results.items()}


def _teacher(key: str, runs: Sequence[RunFolder], results: Results) -> Model:
    """Return a teacher as it was evaluated beside the first run that says anything of each suite."""
    reports: dict[str, ModelReport] = {}
    for run in runs:
        for suite, result in results[run.folder].items():
            if result.teacher is not None:
                reports.setdefault(suite, result.teacher)
    return Model(
        key=key,
        name=runs[0].teacher_name,
        parameters=next((one.parameters for one in reports.values() if one.parameters), None),
        megabytes=next((one.megabytes for one in reports.values() if one.megabytes), None),
        sentences_per_second=_speed([reports]),
        suites=_by_suite([reports]),
    )


def _by_suite(reports: Sequence[Mapping[str, ModelReport]]) -> dict[str, SuiteFigures]:
    """Return a model's figures by suite, from the reports of each of its runs."""
    names = dict.fromkeys(suite for one in reports for suite in one)
    return {suite: suite_figures([one[suite] for one in reports if suite in one]) for suite in names}


def _speed(reports: Sequence[Mapping[str, ModelReport]]) -> Score | None:
    """Return the sentences a second, of each run by the first suite that measured it, the main one before."""
    speeds = []
    for one in reports:
        ordered = sorted(one, key=lambda suite: suite != MAIN_SUITE)
        speeds.append(
            next((one[s].sentences_per_second for s in ordered if one[s].sentences_per_second), None)
        )
    return score_of(speeds)


def _timed(report: Report, results: Results) -> Report:
    """Return the report with the speeds of the latency suite, where that timed every student that has one."""

    def timed(model: Model) -> Score | None:
        figures = model.suites.get(LATENCY)
        return None if figures is None else figures.others.get(SPEED)

    fast = [student for student in report.students if timed(student) or student.sentences_per_second]
    if not fast or not all(map(timed, fast)):
        return report
    machines = {
        (facts.get("processor"), facts.get("threads"))
        for one in results.values()
        if LATENCY in one
        for facts in [one[LATENCY].facts]
    }
    notes = list(report.notes)
    if len(machines) > 1:
        told = "; ".join(sorted(f"{processor}, {threads} threads" for processor, threads in machines))
        notes.append(f"sentences/s do not compare, they were taken on different machines: {told}")
    return replace(
        report,
        students=[replace(student, sentences_per_second=timed(student)) for student in report.students],
        teachers=[replace(teacher, sentences_per_second=timed(teacher)) for teacher in report.teachers],
        timed=True,
        notes=notes,
    )


def _megabytes(run: RunFolder) -> float | None:
    return round(weight_bytes(run.folder / BEST) / 1e6, 3) if run.has_student else None


def _dev(run: RunFolder) -> float | None:
    score = run.result.get("best_score")
    return 100 * score if isinstance(score, float) else None


def _facts(run: RunFolder, student: str, results: Mapping[str, RunResult]) -> RunFacts:
    record, result = run.record, run.result
    corpus = record.get("corpus") or {}
    dev = record.get("dev") or {}
    facts = {
        "recipe": record.get("recipe"),
        "student": record.get("student"),
        "loss": record.get("loss"),
        "teacher": run.teacher_name or None,
        "corpus": corpus.get("name"),
        "corpus rows": corpus.get("rows"),
        "corpus digest": corpus.get("digest"),
        "selected by SQL": record.get("where"),
        "trained on": record.get("rows"),
        "held out": record.get("held_out"),
        "views": ", ".join(record.get("views") or {}),
        "chosen by": dev.get("name") or run.dev_measure,
        "steps": result.get("steps"),
        "best step": result.get("best_step"),
        "training time": words.duration(result["seconds"]) if result.get("seconds") else None,
        "rows a second": round(result["rows_per_second"]) if result.get("rows_per_second") else None,
    }
    return RunFacts(
        name=run.name,
        student=student,
        seed=run.seed,
        finished=bool(result),
        facts={name: value for name, value in facts.items() if value not in (None, "")},
        teachers=[(str(one.get("name")), one.get("contract") or {}) for one in record.get("teachers") or []],
        loss_curve=run.curve("loss"),
        dev_curve=[(step, round(100 * value, 4)) for step, value in run.curve(run.dev_measure)],
        dev_measure=run.dev_measure,
        config=run.config_text,
        notes={suite: list(said.notes) for suite, said in results.items() if said.notes},
    )


def _pairs(
    students: Sequence[Student],
    groups: Sequence[Sequence[RunFolder]],
    teachers: Mapping[str, str],
    results: Results,
) -> Pairs | None:
    """Return the pairs of one set, with the cosines of teachers and of each student's first run."""
    found: dict[str, ModelReport] = {}
    for student, group in zip(students, groups, strict=True):
        result = results[group[0].folder].get(MAIN_SUITE)
        if result is not None:
            found[student.key] = result.student
            # One that learnt from texts alone may have been evaluated beside a model all the same.
            teacher = teachers.get(group[0].teacher)
            if teacher is not None and result.teacher is not None:
                found.setdefault(teacher, result.teacher)
    names = dict.fromkeys(name for report in found.values() for name in sets_of(report))
    name = next((one for one in (*_SCATTER_SETS, *names) if one in names), None)
    if name is None:
        return None
    drawn = {key: sets_of(report)[name] for key, report in found.items() if name in sets_of(report)}
    outcomes = {key: one.outcomes for key, one in drawn.items() if isinstance(one.outcomes, PairOutcomes)}
    if not outcomes:
        return None
    import numpy as np

    gold = next(iter(outcomes.values())).gold
    order = [key for key in (*teachers.values(), *(one.key for one in students)) if key in outcomes]
    return Pairs(
        label=next(iter(drawn.values())).label,
        gold=[round(float(value), 4) for value in gold],
        cosines={
            key: [round(float(value), 4) for value in outcomes[key].predicted]
            for key in order[:_MOST_SCATTERS]
            if np.array_equal(outcomes[key].gold, gold)
        },
    )
