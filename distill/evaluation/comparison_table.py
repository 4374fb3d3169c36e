"""A comparison of two models as tables for a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from distill.evaluation.comparison import Comparison, Difference, SuiteComparison


def render(comparison: Comparison) -> RenderableType:
    """Return which model is which, one table a suite, and the notes."""
    parts: list[RenderableType] = [Text(f"A: {comparison.a}"), Text(f"B: {comparison.b}")]
    parts += [_table(one) for one in comparison.suites]
    parts.append(
        Text(
            f"interval: 95 %, of A - B, from {comparison.draws:,} draws of the items. p: two-sided; of the "
            "sets, corrected for their number (Holm)"
        )
    )
    parts.extend(Text(f"note: {note}") for note in comparison.notes)
    return Group(*parts)


def _table(one: SuiteComparison) -> Table:
    table = Table(title=f"{one.suite}, x100", title_justify="left")
    table.add_column("set", overflow="fold")
    for column in ("items", "A", "B", "A - B", "interval", "p"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("verdict")
    for difference in one.sets.values():
        table.add_row(*_cells(difference))
    if one.average is not None:
        table.add_section()
        table.add_row(*_cells(one.average))
    return table


def _cells(one: Difference) -> tuple[str, ...]:
    interval = "-" if one.interval is None else f"{one.interval[0]:+.2f} {one.interval[1]:+.2f}"
    p = "-" if one.p_corrected is None else f"{one.p_corrected:.3f}"
    figures = (f"{one.a:.2f}", f"{one.b:.2f}", f"{one.difference:+.2f}")
    return (one.label, f"{one.items}", *figures, interval, p, one.verdict)
