"""Evaluation results as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from distill.evaluation.result import EvaluationResult, ModelReport

# The seven sets of the field fit into a terminal beside each other.
_MOST_COLUMNS = 7


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


def _details(result: EvaluationResult) -> Table:
    """Return one row per model and measure, one column per set; of many sets one row per model and set."""
    columns = dict.fromkeys(
        column for report in result.models for _, cells in report.scores.rows() for column in cells
    )
    if len(columns) > _MOST_COLUMNS:
        return _details_by_set(result, tuple(columns))
    table = Table(title=f"{result.suite}, x100")
    table.add_column("model", overflow="fold")
    table.add_column("measure")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for report in result.models:
        for number, (measure, cells) in enumerate(report.scores.rows()):
            name = Text(_label(report.name, report.role)) if number == 0 else Text("")
            table.add_row(name, measure, *(cells.get(column, "-") for column in columns))
        table.add_section()
    return table


def _details_by_set(result: EvaluationResult, sets: Sequence[str]) -> Table:
    measures = dict.fromkeys(measure for report in result.models for measure, _ in report.scores.rows())
    table = Table(title=f"{result.suite}, x100")
    table.add_column("model", overflow="fold")
    table.add_column("set", no_wrap=True)
    for measure in measures:
        table.add_column(measure, justify="right")
    for report in result.models:
        cells = dict(report.scores.rows())
        for number, one in enumerate(sets):
            name = Text(_label(report.name, report.role)) if number == 0 else Text("")
            table.add_row(name, one, *(cells.get(measure, {}).get(one, "-") for measure in measures))
        table.add_section()
    return table


def _models(result: EvaluationResult) -> Table:
    """Return one row per model: the suite's headline figures."""
    columns = dict.fromkeys(column for report in result.models for column in report.summary())
    return _table(
        f"{result.suite}: models",
        tuple(columns),
        (
            (report, tuple(report.summary().get(column, "-") for column in columns))
            for report in result.models
        ),
    )


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
