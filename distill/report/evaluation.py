"""Evaluations as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import RenderableType

from distill.evaluation.result import AVERAGE, Evaluation, Figure, ModelFacts
from distill.report.rows import Score
from distill.report.tables import Table, cell
from distill.report.writers import terminal_tables

# More sets stand below each other.
_MOST_COLUMNS = 7


def render(evaluations: Sequence[Evaluation]) -> RenderableType:
    """Return a table for each suite, one of the models' sizes, and the notes."""
    models = {facts.name: facts for evaluation in evaluations for facts, _ in evaluation.models}
    tables = [*map(_figures, evaluations), _sizes(models.values())]
    return terminal_tables(tables, dict.fromkeys(_notes(evaluations)))


def _figures(evaluation: Evaluation) -> Table:
    """Return a row, or a column, for each model and for its further measures."""
    lines: list[dict[str, str | None]] = []
    sets: dict[str, str] = {}
    for facts, result in evaluation.models:
        averaged, retention = result.headline == AVERAGE, evaluation.retention(facts.name)
        sets |= {name: figure.label or name.replace("_", " ") for name, figure in result.figures.items()}
        figures: dict[str, Figure | None] = {sets[name]: figure for name, figure in result.figures.items()}
        figures |= {AVERAGE: result.main if averaged else None, "retention": retention}
        cells = {name: cell(Score.over([one]), 2 if averaged else None) for name, one in figures.items()}
        lines.append({"": _label(facts), **cells})
        for measure in dict.fromkeys(name for one in result.figures.values() for name in one.others):
            others = {
                sets[name]: None
                if (value := one.others.get(measure)) is None
                else Figure(value, measure, one.other_intervals.get(measure))
                for name, one in result.figures.items()
            }
            cells = {name: cell(Score.over([one])) for name, one in others.items()}
            lines.append({"": f"  {measure.replace('_', ' ')}", **cells})
    measures = sorted({one.measure for _, result in evaluation.models for one in result.figures.values()})
    caption = f"Figures: {', '.join(measures)}. In brackets: 95 % interval."
    table = Table.of(evaluation.suite, lines, caption)
    if len(sets) <= _MOST_COLUMNS:
        return table
    models = [row for row in table.cells if not row[0].startswith("  ")]
    columns, *rows = zip(table.columns, *models, strict=True)
    return Table(table.title, columns, rows, caption)


def _sizes(models: Iterable[ModelFacts]) -> Table:
    lines = [
        {
            "model": _label(facts),
            "parameters": None if facts.parameters is None else f"{facts.parameters:,}",
            "MB": None if facts.megabytes is None else f"{facts.megabytes:.1f}",
            "width": None if facts.dimension is None else str(facts.dimension),
        }
        for facts in models
    ]
    return Table.of("size", lines)


def _notes(evaluations: Sequence[Evaluation]) -> Iterable[str]:
    for evaluation in evaluations:
        about = f"{evaluation.suite}: " if len(evaluations) > 1 else ""
        for facts, result in evaluation.models:
            for note in result.notes:
                of_all = all(note in other.notes for _, other in evaluation.models)
                yield f"{about}{note}" if of_all else f"{about}{facts.name}: {note}"
    yield from (note for evaluation in evaluations for note in evaluation.notes)


def _label(facts: ModelFacts) -> str:
    return f"{facts.name} (teacher)" if facts.role == "teacher" else facts.name
