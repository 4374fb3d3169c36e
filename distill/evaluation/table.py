"""Evaluations as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from distill.evaluation.result import AVERAGE, Evaluation, Figure, Interval, ModelFacts, SuiteResult

# More sets stand below each other.
_MOST_COLUMNS = 7


def render(evaluations: Sequence[Evaluation]) -> RenderableType:
    """Return a table for each suite, one of the models' sizes, and the notes."""
    parts: list[RenderableType] = []
    for evaluation in evaluations:
        sets = list(dict.fromkeys(name for _, result in evaluation.models for name in result.figures))
        parts.append(_by_set(evaluation, sets) if len(sets) > _MOST_COLUMNS else _by_model(evaluation, sets))
    models = {facts.name: facts for evaluation in evaluations for facts, _ in evaluation.models}
    parts.append(_sizes(models.values()))
    parts += [Text(f"note: {note}") for note in dict.fromkeys(_notes(evaluations))]
    return Group(*parts)


def _by_model(evaluation: Evaluation, sets: Sequence[str]) -> Table:
    """Return rows of a model and a measure, a column for each set."""
    table = Table(title=evaluation.suite, title_justify="left")
    table.add_column("model", overflow="fold")
    table.add_column("measure")
    with_average = any(result.headline == AVERAGE for _, result in evaluation.models)
    extra = [AVERAGE, "retention"] if with_average else []
    labels = {
        name: figure.label for _, result in evaluation.models for name, figure in result.figures.items()
    }
    for name in sets:
        table.add_column(labels[name] or name.replace("_", " "), justify="right", overflow="fold")
    for name in extra:
        table.add_column(name, justify="right", overflow="fold")
    for facts, result in evaluation.models:
        main = _extra(evaluation, facts, result) if with_average else {}
        figures = {**result.figures, **main}
        measures = {figure.measure for figure in result.figures.values()}
        table.add_row(
            Text(_label(facts)),
            " / ".join(sorted(measures)) if with_average else "",
            *(_value(figures.get(name), precise=not with_average) for name in (*sets, *extra)),
        )
        if any(figure.interval for figure in figures.values()):
            intervals = (
                _ends(figures[name].interval if name in figures else None) for name in (*sets, *extra)
            )
            table.add_row("", "95 % interval", *intervals)
        for other in dict.fromkeys(name for figure in result.figures.values() for name in figure.others):
            values = (
                result.figures[name].others.get(other) if name in result.figures else None for name in sets
            )
            table.add_row(
                "",
                other.replace("_", " "),
                *(_number(value, ".2f") for value in values),
                *("" for _ in extra),
            )
        table.add_section()
    for spread in evaluation.over_seeds:
        found = (spread.figures.get(name) for name in (*sets, *extra))
        cells = ("-" if one is None else f"{one[0]:.2f} ± {one[1]:.2f}" for one in found)
        table.add_row(Text(f"{spread.name} (mean of {len(spread.models)} seeds)"), "± std", *cells)
    return table


def _by_set(evaluation: Evaluation, sets: Sequence[str]) -> Table:
    """Return rows of a set, a column for each model."""
    table = Table(title=evaluation.suite, title_justify="left")
    table.add_column("set", no_wrap=True)
    for facts, _ in evaluation.models:
        table.add_column(Text(_label(facts), overflow="fold"), justify="right")
    spreads = evaluation.over_seeds
    for spread in spreads:
        table.add_column(Text(f"{spread.name} (mean of {len(spread.models)} seeds)"), justify="right")
    rows = {name: [result.figures.get(name) for _, result in evaluation.models] for name in sets}
    for name in (AVERAGE, "retention"):
        rows[name] = [_extra(evaluation, facts, result).get(name) for facts, result in evaluation.models]
    for name, figures in rows.items():
        label = next((figure.label for figure in figures if figure and figure.label), name)
        cells = [f"{_value(one)}  {_ends(one.interval)}".strip() if one else "-" for one in figures]
        found = [spread.figures.get(name) for spread in spreads]
        table.add_row(
            label, *cells, *("-" if one is None else f"{one[0]:.2f} ± {one[1]:.2f}" for one in found)
        )
    return table


def _extra(evaluation: Evaluation, facts: ModelFacts, result: SuiteResult) -> dict[str, Figure]:
    found = {AVERAGE: result.main if result.headline == AVERAGE else None}
    found["retention"] = evaluation.retention(facts.name)
    return {name: figure for name, figure in found.items() if figure is not None}


def _sizes(models: Iterable[ModelFacts]) -> Table:
    table = Table(title="size", title_justify="left")
    table.add_column("model", overflow="fold")
    for column in ("parameters", "MB", "width"):
        table.add_column(column, justify="right")
    for facts in models:
        sizes = (
            _number(facts.parameters, ",.0f"),
            _number(facts.megabytes, ".1f"),
            _number(facts.dimension, "d"),
        )
        table.add_row(Text(_label(facts)), *sizes)
    return table


def _notes(evaluations: Sequence[Evaluation]) -> Iterable[str]:
    for evaluation in evaluations:
        about = f"{evaluation.suite}: " if len(evaluations) > 1 else ""
        for facts, result in evaluation.models:
            for note in result.notes:
                of_all = all(note in other.notes for _, other in evaluation.models)
                yield f"{about}{note}" if of_all else f"{about}{facts.name}: {note}"
    yield from (note for evaluation in evaluations for note in evaluation.notes)


def _value(figure: Figure | None, *, precise: bool = False) -> str:
    if figure is None:
        return "-"
    return f"{figure.value:.4f}" if precise and abs(figure.value) < 10 else f"{figure.value:,.2f}"


def _ends(interval: Interval | None) -> str:
    if interval is None:
        return ""
    digits = 4 if max(map(abs, interval)) < 10 else 1
    return f"{interval[0]:.{digits}f} to {interval[1]:.{digits}f}"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _label(facts: ModelFacts) -> str:
    return f"{facts.name} (teacher)" if facts.role == "teacher" else facts.name
