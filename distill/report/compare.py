"""Comparison of two models on the same items, as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from distill.evaluation.stats import Comparison
from distill.report.tables import NOTHING, Table

_COLUMNS = ("set", "items", "difference", "95 % interval", "p", "better")


def comparison_tables(a: str, b: str, suites: Mapping[str, Sequence[Comparison]], draws: int) -> list[Table]:
    """Return one table per suite: both figures, their difference with its interval, p-value and verdict."""
    told = f"Difference: {a} - {b}, {draws:,} draws of the items. p: two-sided, of sets corrected (Holm)."
    heads = ["set", "items", a, b, *_COLUMNS[2:]]
    return [
        Table(f"{suite}, x100", heads, [_cells(a, b, row) for row in rows], told)
        for suite, rows in suites.items()
    ]


def _cells(a: str, b: str, one: Comparison) -> list[str]:
    interval = NOTHING if one.interval is None else f"{one.interval[0]:+.2f}, {one.interval[1]:+.2f}"
    p = NOTHING if one.p_corrected is None else f"{one.p_corrected:.3f}"
    better = {"A is better": a, "B is better": b}.get(one.verdict, "not shown")
    figures = [f"{one.a:.2f}", f"{one.b:.2f}", f"{one.difference:+.2f}"]
    return [one.label, f"{one.items:,}", *figures, interval, p, better]
