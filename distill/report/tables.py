"""Tables of a report, cell by cell as every form of it prints them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distill.evaluation.result import AVERAGE
from distill.report.rows import LATENCY, Row, Score, SuiteScores, main_suite, suites_of

NOTHING = "–"  # noqa: RUF001 - stands where nothing is known
_MOST_NAMED = 4


@dataclass(frozen=True)
class Table:
    """A table; the first column names the row.

    Attributes:
        title: title.
        columns: heads.
        cells: rows of cells.
        caption: how to read it.
    """

    title: str
    columns: Sequence[str]
    cells: Sequence[Sequence[str]]
    caption: str = ""


def summary(rows: Sequence[Row], suites: Sequence[str] = ()) -> Table:
    """Return one row per student and teacher: figures of every suite, size, and the paper's figure."""
    ranked = [name for name in suites or suites_of(rows) if any(row.headline(name) for row in rows)]
    shown = [name for name in ranked if name != LATENCY]  # which has a column of speeds
    main = main_suite(rows, suites or None)
    # A column that no row fills is not shown, but for the suite that rows are ranked by.
    columns = {"name": [_name(row) for row in rows]}
    columns["seeds"] = [str(len(row.seeds)) if row.seeds else NOTHING for row in rows]
    if len({row.teacher for row in rows if not row.is_teacher}) > 1:
        columns["teacher"] = [row.teacher or NOTHING for row in rows]
    for name in shown or [main or "score"]:
        found = [row.suites.get(name, SuiteScores(None, None, {})) for row in rows]
        columns[name] = [cell(one.headline) for one in found]
        columns[f"{name} retention" if len(shown) > 1 else "retention"] = [
            cell(one.retention, unit=" %") for one in found
        ]
    columns["parameters"] = [
        NOTHING if row.parameters is None else f"{row.parameters / 1e6:.2f} M" for row in rows
    ]
    columns["MB"] = [NOTHING if row.megabytes is None else f"{row.megabytes:.1f}" for row in rows]
    columns["sentences/s"] = [cell(row.speed, 0, intervals=False) for row in rows]
    columns["selection"] = [cell(row.selection) for row in rows]
    columns["paper"] = [_paper(row, main, relative=False) for row in rows]
    columns["paper's retention"] = [_paper(row, main, relative=True) for row in rows]
    optional = [name for name in columns if name not in ("name", "seeds", main, "parameters", "MB")]
    for name in optional:
        if all(one == NOTHING for one in columns[name]):
            del columns[name]
    told = ["Mean ± standard deviation over seeds."] * any(len(row.runs) > 1 for row in rows)
    told += ["In brackets: 95 % interval."] * any("[" in one for column in columns.values() for one in column)
    if "sentences/s" in columns:
        told.append(f"Speed: suite {LATENCY}, one sentence at a time on a CPU.")
    return Table("Summary", list(columns), list(zip(*columns.values(), strict=True)), " ".join(told))


def of_suite(rows: Sequence[Row], suite: str) -> Table:
    """Return one row per student and teacher that ``suite`` was evaluated on: a column per set."""
    there = [row for row in rows if suite in row.suites]
    sets: dict[str, Score] = {}
    for row in there:
        sets |= {name: score for name, score in row.suites[suite].sets.items() if name not in sets}
    whole = any((main := row.headline(suite)) and main.measure == AVERAGE for row in there)
    digits = 2 if whole else None
    heads = [f"{name} ({one.measure})" if whole else name.replace("_", " ") for name, one in sets.items()]
    cells = []
    for row in there:
        found = row.suites[suite]
        cells.append([_name(row), *(cell(found.sets.get(name), digits) for name in sets)])
        if whole:
            cells[-1].append(cell(found.headline))
    items = ", ".join(f"{name} {one.items:,}" for name, one in sets.items() if one.items is not None)
    return Table(suite, ["name", *heads, *["average"] * whole], cells, f"Items: {items}." if items else "")


def further(rows: Sequence[Row], suite: str) -> Table | None:
    """Return one row per student and further measure of the sets of ``suite``; None without any."""
    there = [row for row in rows if suite in row.suites]
    sets = dict.fromkeys(name for row in there for name, one in row.suites[suite].sets.items() if one.others)
    measures = dict.fromkeys(
        m for row in there for one in row.suites[suite].sets.values() for m in one.others
    )
    cells = []
    for measure in measures:
        for row in there:
            found = [row.suites[suite].sets.get(name) for name in sets]
            numbers = [one.others.get(measure) if one else None for one in found]
            cells.append(
                [
                    _name(row),
                    measure.replace("_", " "),
                    *(NOTHING if n is None else f"{n:.2f}" for n in numbers),
                ]
            )
    return Table(f"{suite}: further measures", ["name", "measure", *sets], cells) if cells else None


def papers(rows: Sequence[Row]) -> Table | None:
    """Return the paper's figure of each student that has one, and what differs from its recipe."""
    cells, sources = [], {}
    for row in rows:
        if (paper := row.paper) is not None:
            unit = " %" if paper.relative else ""
            teacher = NOTHING if paper.teacher is None else f"{paper.teacher:.2f}{unit}"
            differs = "; ".join(f"{key} {run} (recipe {recipe})" for key, recipe, run in paper.differences)
            figures = [paper.suite or NOTHING, f"{paper.figure:.2f}{unit}", teacher]
            cells.append([row.name, paper.recipe, *figures, differs or "nothing"])
            sources[paper.recipe] = f"{paper.recipe}: {paper.source}; {paper.measure}."
    columns = ["name", "recipe", "suite", "paper", "paper's teacher", "differs in"]
    told = "The papers have teachers and texts of their own; compare where these are the same."
    return (
        Table("The papers' figures", columns, cells, " ".join([told, *sources.values()])) if cells else None
    )


def cell(score: Score | None, digits: int | None = 2, unit: str = "", *, intervals: bool = True) -> str:
    """Return a mean with its deviation and its interval; ``digits`` None: as many as its size asks for."""
    if score is None:
        return NOTHING
    if digits is None:
        digits = 4 if abs(score.mean) < 10 else 2 if abs(score.mean) < 1000 else 0
    shown = f"{score.mean:,.{digits}f}" + ("" if score.std is None else f" ± {score.std:,.{digits}f}") + unit
    if score.interval is None or not intervals:
        return shown
    return f"{shown} [{score.interval[0]:,.{digits}f}, {score.interval[1]:,.{digits}f}]"


def notes(rows: Sequence[Row]) -> list[str]:
    """Return the notes of all rows, each once with the names of its rows."""
    found: dict[str, list[str]] = {}
    for row in rows:
        for note in row.notes:
            found.setdefault(note, []).append(row.name)
    return [
        f"{', '.join(names[:_MOST_NAMED])}{f' and {more} more' * (more > 0)}: {note}"
        for note, names in found.items()
        for more in [len(names) - _MOST_NAMED]
    ]


def _name(row: Row) -> str:
    return f"{row.name} (teacher)" if row.is_teacher else row.name


def _paper(row: Row, suite: str | None, *, relative: bool) -> str:
    paper = row.paper
    if paper is None or paper.suite != suite or paper.relative != relative:
        return NOTHING
    return f"{paper.figure:.2f}" + (" %" if relative else "")
