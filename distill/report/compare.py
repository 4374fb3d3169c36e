"""Comparison of two models on the same items, as tables."""

from __future__ import annotations

from distill.evaluation.comparison import Comparison, Difference
from distill.report.tables import NOTHING, Table

_COLUMNS = ("set", "items", "difference", "95 % interval", "p", "better")


def comparison_tables(found: Comparison) -> list[Table]:
    """Return one table per suite: both figures, their difference with its interval, p-value and verdict."""
    heads = ["set", "items", found.a, found.b, *_COLUMNS[2:]]
    told = (
        f"Difference: {found.a} - {found.b}, {found.draws:,} draws of the items. p: two-sided, of the sets "
        "corrected for their number (Holm)."
    )
    return [
        Table(
            f"{one.suite}, x100",
            heads,
            [
                _cells(found, difference)
                for difference in (*one.sets.values(), *([one.average] if one.average else []))
            ],
            told,
        )
        for one in found.suites
    ]


def _cells(found: Comparison, one: Difference) -> list[str]:
    interval = NOTHING if one.interval is None else f"{one.interval[0]:+.2f}, {one.interval[1]:+.2f}"
    p = NOTHING if one.p_corrected is None else f"{one.p_corrected:.3f}"
    better = {"A is better": found.a, "B is better": found.b}.get(one.verdict, "not shown")
    figures = [f"{one.a:.2f}", f"{one.b:.2f}", f"{one.difference:+.2f}"]
    return [one.label, f"{one.items:,}", *figures, interval, p, better]
