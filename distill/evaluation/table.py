"""Evaluations as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.console import RenderableType

from distill.evaluation.result import AVERAGE, Evaluation, Figure, ModelFacts
from distill.report.tables import NOTHING, Table
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
    sets: dict[str, str] = {}
    rows: list[tuple[str, Mapping[str, str]]] = []
    for facts, result in evaluation.models:
        averaged, retention = result.headline == AVERAGE, evaluation.retention(facts.name)
        figures = {**result.figures, AVERAGE: result.main if averaged else None, "retention": retention}
        cells = {name: _cell(one, precise=not averaged) for name, one in figures.items() if one}
        sets |= {name: figure.label or name.replace("_", " ") for name, figure in result.figures.items()}
        rows.append((_label(facts), cells))
        for measure in dict.fromkeys(name for one in result.figures.values() for name in one.others):
            of_sets = {name: one.others.get(measure) for name, one in result.figures.items()}
            cells = {name: f"{value:.2f}" for name, value in of_sets.items() if value is not None}
            rows.append((f"  {measure.replace('_', ' ')}", cells))
    wide = len(sets) > _MOST_COLUMNS
    sets |= {name: name for name in (AVERAGE, "retention") if any(name in cells for _, cells in rows)}
    grid = [["", *sets.values()]]
    grid += [[head, *(cells.get(name, NOTHING) for name in sets)] for head, cells in rows]
    if wide:
        grid = [list(column) for column in zip(*(row for row in grid if row[0][:2] != "  "), strict=True)]
    measures = sorted({one.measure for _, result in evaluation.models for one in result.figures.values()})
    caption = f"Figures: {', '.join(measures)}. In brackets: 95 % interval."
    return Table(evaluation.suite, grid[0], grid[1:], caption)


def _sizes(models: Iterable[ModelFacts]) -> Table:
    cells = [
        [
            _label(facts),
            NOTHING if facts.parameters is None else f"{facts.parameters:,}",
            NOTHING if facts.megabytes is None else f"{facts.megabytes:.1f}",
            NOTHING if facts.dimension is None else str(facts.dimension),
        ]
        for facts in models
    ]
    return Table("size", ["model", "parameters", "MB", "width"], cells)


def _notes(evaluations: Sequence[Evaluation]) -> Iterable[str]:
    for evaluation in evaluations:
        about = f"{evaluation.suite}: " if len(evaluations) > 1 else ""
        for facts, result in evaluation.models:
            for note in result.notes:
                of_all = all(note in other.notes for _, other in evaluation.models)
                yield f"{about}{note}" if of_all else f"{about}{facts.name}: {note}"
    yield from (note for evaluation in evaluations for note in evaluation.notes)


def _cell(figure: Figure, *, precise: bool) -> str:
    ends = (figure.value, *(figure.interval or ()))
    digits = 4 if precise and abs(figure.value) < 10 else 2
    value, *interval = (f"{end:,.{digits}f}" for end in ends)
    return f"{value} [{', '.join(interval)}]" if interval else value


def _label(facts: ModelFacts) -> str:
    return f"{facts.name} (teacher)" if facts.role == "teacher" else facts.name
