"""Evaluation results as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from distill.evaluation.scores import BESIDE, INTERVAL, RETENTION_INTERVAL, SetScores

if TYPE_CHECKING:
    from distill.evaluation.result import EvaluationResult, ModelReport, SeedSpread
    from distill.evaluation.spread import Score

# The seven sets of the field fit into a terminal beside each other.
_MOST_COLUMNS = 7
# Names and measures are not readable in fewer characters.
_LEAST_WIDTH = 10
_UNLIMITED = 1000
# Smaller means are shown with four decimals, as the models' own figures are.
_SMALL = 10


def render(results: Sequence[EvaluationResult]) -> RenderableType:
    """Return every suite's details where it has them and its models; then the sizes, and the notes."""
    parts: list[RenderableType] = []
    for result in results:
        if any(report.scores.rows() for report in result.models):
            parts.append(_details(result))
        parts.append(_models(result))
    sized = {report.name: report for result in reversed(results) for report in reversed(result.models)}
    parts.append(_sizes(list(reversed(sized.values()))))
    parts.extend(Text(f"note: {note}") for note in _notes(results))
    return Group(*parts)


def _notes(results: Sequence[EvaluationResult]) -> Iterable[str]:
    """Return each note once, with its suite where there are several and it does not hold for all of them."""
    notes = dict.fromkeys(note for result in results for note in result.notes)
    for note in notes:
        about = [result.suite for result in results if note in result.notes]
        yield note if len(about) == len(results) else f"{', '.join(about)}: {note}"


@dataclass(frozen=True)
class _Fitting:
    """A table, or another that stands in for it where the terminal is too narrow.

    Attributes:
        wide: the table.
        narrow: the other.
        unfolded: whether the terminal is too narrow as soon as a cell of the wide one would be folded.
    """

    wide: Table
    narrow: Table
    unfolded: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the one that fits."""
        unlimited = options.update(width=_UNLIMITED)
        needed = Measurement.get(console, unlimited, self.wide)
        width = needed.maximum if self.unfolded else needed.minimum
        yield self.wide if width <= options.max_width else self.narrow


def _details(result: EvaluationResult) -> RenderableType:
    """Return one column per set; of many sets, or on a narrow terminal, one row per model and set."""
    sets = tuple(
        dict.fromkeys(
            column for report in result.models for _, cells in report.scores.rows() for column in cells
        )
    )
    by_set = _details_by_set(result, sets)
    return by_set if len(sets) > _MOST_COLUMNS else _Fitting(_details_by_measure(result, sets), by_set)


def _details_by_measure(result: EvaluationResult, columns: Sequence[str]) -> Table:
    """Return one row per model and measure, one column per set."""
    table = Table(title=f"{result.suite}, x100")
    table.add_column("model", overflow="fold", min_width=_LEAST_WIDTH)
    table.add_column("measure", min_width=_LEAST_WIDTH)
    for column in columns:
        shown = [cells.get(column, "") for report in result.models for _, cells in report.scores.rows()]
        # An interval is of several words, which do not stand below each other.
        widest = max(map(len, shown))
        table.add_column(column, justify="right", no_wrap=True, min_width=widest)
    for report in result.models:
        for number, (measure, cells) in enumerate(report.scores.rows()):
            name = Text(_label(report.name, report.role)) if number == 0 else Text("")
            table.add_row(name, measure, *(cells.get(column, "-") for column in columns))
        table.add_section()
    for spread in result.over_seeds:
        scores = _by_label(result, spread)
        # The deviation stands below its mean, so that a column is no wider than without it.
        cells = {label: score.text(between="\n") for label, (_, score) in scores.items()}
        measures = dict.fromkeys(measure for measure, _ in scores.values())
        table.add_row(
            Text(spread.title), " / ".join(measures), *(cells.get(column, "-") for column in columns)
        )
    return table


def _details_by_set(result: EvaluationResult, sets: Sequence[str]) -> Table:
    """Return one row per model and set, one column per measure; further measures without their intervals."""
    rows = (measure for report in result.models for measure, _ in report.scores.rows())
    measures = dict.fromkeys(measure for measure in rows if not measure.endswith(BESIDE))
    table = Table(title=f"{result.suite}, x100")
    table.add_column("model", overflow="fold")
    table.add_column("set", no_wrap=True)
    for measure in measures:
        table.add_column(measure, justify="right", no_wrap=measure == INTERVAL)
    for report in result.models:
        cells = dict(report.scores.rows())
        for number, one in enumerate(sets):
            name = Text(_label(report.name, report.role)) if number == 0 else Text("")
            table.add_row(name, one, *(cells.get(measure, {}).get(one, "-") for measure in measures))
        table.add_section()
    for spread in result.over_seeds:
        scores = _by_label(result, spread)
        for number, one in enumerate(label for label in sets if label in scores):
            own, score = scores[one]
            there = (str(score) if measure == own else "-" for measure in measures)
            table.add_row(Text(spread.title if number == 0 else ""), one, *there)
        table.add_section()
    return table


def _by_label(result: EvaluationResult, spread: SeedSpread) -> dict[str, tuple[str, Score]]:
    """Return the label of each set -> its measure, and its mean and deviation over seeds."""
    scores = result[spread.models[0]].scores
    sets = scores.sets if isinstance(scores, SetScores) else {}
    return {
        sets[name].label: (sets[name].measure, score) for name, score in spread.sets.items() if name in sets
    }


def _models(result: EvaluationResult) -> RenderableType:
    """Return one row per model: the suite's headline figures; and one per group of seeds.

    The interval of the retention is there where the terminal has room for it.
    """
    columns = list(dict.fromkeys(column for report in result.models for column in report.summary()))
    if RETENTION_INTERVAL not in columns:
        return _models_by(result, columns)
    fewer = [column for column in columns if column != RETENTION_INTERVAL]
    wide, narrow = _models_by(result, [*fewer, RETENTION_INTERVAL]), _models_by(result, fewer)
    return _Fitting(wide, narrow, unfolded=True)


def _models_by(result: EvaluationResult, columns: Sequence[str]) -> Table:
    table = _table(
        f"{result.suite}: models",
        columns,
        (
            (report, tuple(report.summary().get(column, "-") for column in columns))
            for report in result.models
        ),
    )
    for spread in result.over_seeds:
        cells = _headline_cells(spread)
        table.add_section()
        table.add_row(Text(spread.title), *(cells.get(column, "-") for column in columns))
    return table


def _headline_cells(spread: SeedSpread) -> Mapping[str, str]:
    cells = {}
    for name, score in spread.figures.items():
        small = not spread.sets and abs(score.mean) < _SMALL
        cells[name] = score.text(".4f" if small else ".2f")
    if spread.retention is not None:
        cells["retention"] = f"{spread.retention} %"
    return cells


def _sizes(reports: Sequence[ModelReport]) -> Table:
    """Return one row per model: size and speed. A table of its own, so that both fit into 80 columns."""
    return _table(
        "size and speed",
        ("parameters", "MB", "width", "sentences/s"),
        (
            (
                report,
                (
                    _number(report.parameters, ",.0f"),
                    _number(report.megabytes, ".1f"),
                    str(report.dimension),
                    _number(report.sentences_per_second, ",.0f"),
                ),
            )
            for report in reports
        ),
    )


def _table(title: str, columns: Sequence[str], rows: Iterable[tuple[ModelReport, Sequence[str]]]) -> Table:
    table = Table(title=title)
    table.add_column("model", overflow="fold")
    for column in columns:
        table.add_column(column, justify="right", overflow="fold")
    for report, cells in rows:
        table.add_row(Text(_label(report.name, report.role)), *cells)
    return table


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _label(name: str, role: str) -> str:
    return f"{name} (teacher)" if role == "teacher" else name
