"""Tables of a report: the cells that every output format prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
        caption: explanation of the table.
    """

    title: str
    columns: Sequence[str]
    cells: Sequence[Sequence[str]]
    caption: str = ""

    @classmethod
    def of(cls, title: str, lines: Sequence[Mapping[str, str | None]], caption: str = "") -> Table:
        """Return a table of lines (column -> cell), without the columns that no line fills."""
        names = dict.fromkeys(name for line in lines for name in line)
        columns = [name for name in names if any(line.get(name) is not None for line in lines)]
        cells = [[line.get(name) or NOTHING for name in columns] for line in lines]
        return cls(title, columns, cells, caption)


def summary(rows: Sequence[Row]) -> Table:
    """Return one row per student and teacher: figures of every suite, size, and the paper's figure."""
    # The latency suite has a column of speeds.
    suites = [name for name in suites_of(rows) if name != LATENCY and any(row.headline(name) for row in rows)]
    has_teachers = len({row.teacher for row in rows if not row.is_teacher}) > 1
    lines = []
    for row in rows:
        line = {"name": _name(row), "seeds": str(len(row.seeds)) if row.seeds else None}
        line["teacher"] = row.teacher if has_teachers else None
        for name in suites:
            scores = row.suites.get(name, SuiteScores())
            line[name] = cell(scores.headline)
            line[f"{name} retention" if len(suites) > 1 else "retention"] = cell(scores.retention, unit=" %")
        line["parameters"] = None if row.parameters is None else f"{row.parameters / 1e6:.2f} M"
        line["MB"] = None if row.megabytes is None else f"{row.megabytes:.1f}"
        line["sentences/s"] = cell(row.speed, 0, intervals=False)
        line["selection"] = cell(row.selection)
        if row.paper is not None and row.paper.about.suite == main_suite(rows):
            relative = row.paper.about.relative
            line["paper's retention" if relative else "paper"] = _figure(row.paper.figure, relative=relative)
        lines.append(line)
    shown = [one for line in lines for one in line.values() if one]
    captions = ["Mean ± standard deviation over seeds."] * any(len(row.runs) > 1 for row in rows)
    captions += ["In brackets: 95 % interval."] * any("[" in one for one in shown)
    chosen = "Selection: the score that chose the checkpoint; it compares runs that chose on the same rows."
    captions += [chosen] * any(row.selection for row in rows)
    captions += [f"Speed: suite {LATENCY}, one sentence at a time on a CPU."] * any(row.speed for row in rows)
    return Table.of("Summary", lines, " ".join(captions))


def of_suite(rows: Sequence[Row], suite: str) -> Table:
    """Return one row per student and teacher that ``suite`` was evaluated on: a column per set."""
    there = [row for row in rows if suite in row.suites]
    averaged = any((main := row.headline(suite)) and main.measure == AVERAGE for row in there)
    lines: list[dict[str, str | None]] = []
    items: dict[str, str] = {}
    for row in there:
        line: dict[str, str | None] = {"name": _name(row)}
        for name, score in row.suites[suite].sets.items():
            head = f"{name} ({score.measure})" if averaged else name.replace("_", " ")
            line[head] = cell(score, 2 if averaged else None)
            if score.items is not None:
                items.setdefault(name, f"{name} {score.items:,}")
        lines.append({**line, "average": cell(row.headline(suite))} if averaged else line)
    return Table.of(suite, lines, f"Items: {', '.join(items.values())}." if items else "")


def further(rows: Sequence[Row], suite: str) -> Table | None:
    """Return one row per student and further measure of the sets of ``suite``; None without any."""
    sets = [(row, row.suites[suite].sets) for row in rows if suite in row.suites]
    measures = dict.fromkeys(name for _, found in sets for one in found.values() for name in one.others)
    lines = [
        {
            "name": _name(row),
            "measure": measure.replace("_", " "),
            **{name: f"{one.others[measure]:.2f}" for name, one in found.items() if measure in one.others},
        }
        for measure in measures
        for row, found in sets
    ]
    return Table.of(f"{suite}: further measures", lines) if lines else None


def papers(rows: Sequence[Row]) -> Table | None:
    """Return the paper's figure of each student that has one, and what differs from its recipe."""
    lines, sources = [], {}
    for row in rows:
        if (paper := row.paper) is not None:
            about, differences = paper.about, paper.differences
            lines.append(
                {
                    "name": row.name,
                    "recipe": paper.recipe,
                    "suite": about.suite,
                    "paper": _figure(paper.figure, relative=about.relative),
                    "paper's teacher": _figure(paper.teacher, relative=about.relative),
                    "differs in": "; ".join(f"{key} {run} (recipe {own})" for key, own, run in differences)
                    or "nothing",
                }
            )
            sources[paper.recipe] = f"{paper.recipe}: {about.paper}, {about.table}; {about.measure}."
    caption = "The papers used other teachers and texts; compare only where these are the same."
    return Table.of("The papers' figures", lines, " ".join([caption, *sources.values()])) if lines else None


def cell(
    score: Score | None, digits: int | None = 2, unit: str = "", *, intervals: bool = True
) -> str | None:
    """Return a mean with its deviation and its interval; ``digits`` None: as many as its size asks for."""
    if score is None:
        return None
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


def _figure(figure: float | None, *, relative: bool) -> str | None:
    return None if figure is None else f"{figure:.2f}" + (" %" if relative else "")
