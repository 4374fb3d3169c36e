"""The tables of a report, cell by cell as they are printed on a page and in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distill.report import words
from distill.report.data import LATENCY, Model, Paper, Report, SuiteFigures

_PAPERS_RETENTION = "paper's retention"
_OF_FIDELITY = {"cosine.mean": "mean cosine", "cosine.p05": "5th percentile", "cosine.worst": "worst cosine"}


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        title: what it shows.
        columns: the heads; the first column names the row.
        rows: the cells.
        caption: how to read it.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""


def summary_table(report: Report) -> Table:
    """Return one row per model: quality, size and speed."""
    suite = report.main_suite
    students = {student.key: student for student in report.students}
    papers = _comparable(report, suite)
    relative = any(paper.relative for paper in papers.values())
    columns = ["", "model", "teacher", suite or "score", "95 % interval", "retention"]
    columns += [_PAPERS_RETENTION] * relative
    columns += ["parameters", "MB", "sentences/s", "selection", "seeds", "paper"]
    rows = []
    for model in report.models:
        figures = model.suites.get(suite) if suite else None
        student, paper = students.get(model.key), papers.get(model.key)
        rows.append(
            [
                model.key,
                model.name if student else f"{model.name} (teacher)",
                (student.teacher if student else None) or words.NOTHING,
                words.figure(figures.headline if figures else None),
                words.interval(figures.interval if figures else None),
                words.with_interval(words.percent(figures.retention), figures.retention_interval)
                if figures
                else words.NOTHING,
                *([_paper(paper, relative=True)] * relative),
                words.parameters(model.parameters),
                words.megabytes(model.megabytes),
                words.figure(model.sentences_per_second, 0),
                words.figure(student.dev if student else None),
                ", ".join(str(seed) for seed in student.seeds) if student else words.NOTHING,
                _paper(paper, relative=False),
            ]
        )
    return Table("Summary", columns, rows, " ".join(_summary_caption(report, suite)))


def _summary_caption(report: Report, suite: str | None) -> list[str]:
    told = []
    there = [model.suites[suite] for model in report.models if suite in model.suites] if suite else []
    if there and there[0].sets_of is not None:
        numbers = sorted({f"{one.sets_scored} of {one.sets_of}" for one in there})
        told.append(f"{suite}: average over {', '.join(numbers)} sets.")
    if any(len(student.runs) > 1 for student in report.students):
        told.append("Mean ± standard deviation over seeds.")
    if any(one.interval for one in there):
        told.append(
            "Intervals, that of the retention behind it: bootstrap over the items, 95 %; of several seeds "
            "the mean of their ends."
        )
    if any(model.sentences_per_second for model in report.models):
        told.append(f"Sentences/s: {speed_words(report)}, with whatever else the machine was doing.")
    if papers := _comparable(report, suite):
        told.append(
            "Paper: what the paper of the recipe has, of a run that names none that of the nearest recipe; "
            "how the runs differ from it stands below."
        )
        if any(paper.relative for paper in papers.values()):
            told.append("Paper's retention: of a paper that has its figures in per cent of its teacher's.")
    return told


def speed_words(report: Report) -> str:
    """Return what the sentences a second of a report are."""
    if report.timed:
        return f"one sentence at a time on a CPU, as the {LATENCY} suite timed it"
    return "distinct sentences encoded a second while the model was evaluated"


def _comparable(report: Report, suite: str | None) -> dict[str, Paper]:
    """Return key of the student -> paper, of those whose figures are of ``suite`` too."""
    papers = {student.key: student.paper for student in report.students}
    return {key: paper for key, paper in papers.items() if paper is not None and paper.suite == suite}


def _paper(paper: Paper | None, *, relative: bool) -> str:
    """Return the figure of a paper that has such figures."""
    return words.NOTHING if paper is None or paper.relative != relative else _papers(paper, paper.figure)


def _papers(paper: Paper, figure: float) -> str:
    return f"{figure:.2f} %" if paper.relative else f"{figure:.2f}"


def paper_table(report: Report) -> Table | None:
    """Return, of each student with a paper's figure, where that stands and what was done otherwise."""
    rows, sources = [], {}
    for student in report.students:
        if (paper := student.paper) is not None:
            teacher = 100.0 if paper.relative else paper.teacher
            figures = [
                paper.suite or words.NOTHING,
                _papers(paper, paper.figure),
                words.NOTHING if teacher is None else _papers(paper, teacher),
            ]
            otherwise = "; ".join(f"{key} {run} (recipe {recipe})" for key, recipe, run in paper.differences)
            rows.append([student.key, paper.recipe, *figures, otherwise or "nothing"])
            sources[paper.recipe] = f"{paper.recipe}: {paper.source}; {paper.measure}."
    told = "The paper's teacher and texts are its own: figures compare where these are the same."
    columns = ["", "recipe", "suite", "paper", "paper's teacher", "set otherwise here"]
    return Table("The papers' figures", columns, rows, " ".join([told, *sources.values()])) if rows else None


def suite_table(report: Report, suite: str) -> Table:
    """Return one row per model that was evaluated on ``suite``: a column per set, or per figure."""
    models = [model for model in report.models if suite in model.suites]
    sets = report.sets(suite)
    if not sets:
        names = list(dict.fromkeys(name for model in models for name in model.suites[suite].others))
        columns = [_OF_FIDELITY.get(name, name.replace("_", " ")) for name in names]
        rows = [[*_names(model), *_whole_cells(model.suites[suite], names)] for model in models]
        return Table("Figures", ["", "model", *columns], rows, _bracket_words(rows))
    compared = any(model.suites[suite].retention for model in models)
    rows = []
    for model in models:
        there = model.suites[suite].sets
        cells = []
        for name in sets:
            one = there.get(name)
            shown = words.figure(one.score if one else None)
            cells.append(words.with_interval(shown, one.interval if one else None))
        whole = model.suites[suite]
        cells.append(words.with_interval(words.figure(whole.headline), whole.interval))
        if compared:
            cells.append(words.with_interval(words.percent(whole.retention), whole.retention_interval))
        rows.append([*_names(model), *cells])
    columns = [f"{one.label} ({one.measure})" if one.measure else one.label for one in sets.values()]
    columns += ["average", "retention"] if compared else ["average"]
    counts = "; ".join(
        f"{one.label} {one.items:,} items" + (f", {one.skipped} rows skipped" if one.skipped else "")
        for one in sets.values()
        if one.items is not None
    )
    caption = " ".join(filter(None, [f"{counts}." if counts else "", _bracket_words(rows)]))
    return Table("Figures", ["", "model", *columns], rows, caption)


def further_table(report: Report, suite: str) -> Table | None:
    """Return one row per further measure and model, a column per set; None where there is only the first.

    Sets with the first measure alone have no column.
    """
    models = [model for model in report.models if suite in model.suites]
    scored = [one for model in models for one in model.suites[suite].sets.values()]
    measures = dict.fromkeys(name for one in scored for name in one.others)
    if not measures:
        return None
    having = {
        name: one.label
        for name, one in report.sets(suite).items()
        if any(model.suites[suite].sets[name].others for model in models if name in model.suites[suite].sets)
    }
    rows = []
    for measure in measures:
        for model in models:
            there = model.suites[suite].sets
            cells = []
            for name in having:
                one = there.get(name)
                shown = words.figure(one.others.get(measure) if one else None)
                cells.append(words.with_interval(shown, one.intervals.get(measure) if one else None))
            if any(cell != words.NOTHING for cell in cells):
                rows.append([model.key, model.name, measure.replace("_", " "), *cells])
    columns = ["", "model", "measure", *having.values()]
    return Table("Further measures", columns, rows, _bracket_words(rows))


def _whole_cells(figures: SuiteFigures, names: Sequence[str]) -> list[str]:
    return [
        words.with_interval(words.figure(figures.others.get(name), 4), figures.intervals.get(name), 4)
        for name in names
    ]


def _bracket_words(rows: Sequence[Sequence[str]]) -> str:
    return "In brackets: 95 % interval." if any("[" in cell for row in rows for cell in row[2:]) else ""


def _names(model: Model) -> list[str]:
    return [model.key, model.name]


def runs_table(report: Report) -> Table:
    """Return one row per run."""
    heads = list(dict.fromkeys(name for run in report.runs for name in run.facts if name != "corpus digest"))
    rows = [
        [
            run.student,
            run.name,
            words.NOTHING if run.seed is None else str(run.seed),
            "yes" if run.finished else "no",
            *(_cell(run.facts.get(name)) for name in heads),
        ]
        for run in report.runs
    ]
    return Table("Runs", ["", "run", "seed", "finished", *heads], rows)


def _cell(value: object) -> str:
    if value is None:
        return words.NOTHING
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def contract_tables(report: Report) -> list[Table]:
    """Return the contract of every teacher, one table for runs that have the same."""
    found: dict[str, Table] = {}
    for run in report.runs:
        for name, contract in run.teachers:
            if contract:
                rows = [[key, _cell(value) if value != "" else "none"] for key, value in contract.items()]
                found.setdefault(f"{name} {rows}", Table(f"Contract of {name}", ["field", "value"], rows))
    return list(found.values())


def gather_notes(report: Report) -> list[str]:
    """Return what the evaluations noted, each once, with the suite and with the students it is said of."""
    said: dict[tuple[str, str], list[str]] = {}
    for run in report.runs:
        for suite, notes in run.notes.items():
            for note in notes:
                keys = said.setdefault((suite, note), [])
                if run.student not in keys:
                    keys.append(run.student)
    return [*report.notes, *(f"{suite} ({', '.join(keys)}): {note}" for (suite, note), keys in said.items())]
