"""Bars: every model's figure on a set, with its 95 % interval."""

from __future__ import annotations

from distill.report.charts.style import INK, MUTED, Chart, colour, drawing, to_svg
from distill.report.data import Report, SetFigure

_ROW = 0.21  # inches


def bar_charts(report: Report, suite: str) -> list[Chart]:
    """Return one chart per set of ``suite``."""
    return [_chart(report, suite, name, one) for name, one in report.sets(suite).items()]


def _chart(report: Report, suite: str, name: str, one: SetFigure) -> Chart:
    there = [
        (model.key, place, model.suites[suite].sets[name])
        for place, model in enumerate(report.models)
        if suite in model.suites and name in model.suites[suite].sets
    ]
    teachers = len(report.teachers)
    chart, measure = f"bars-{suite}-{name}", one.measure or "figure"
    with drawing(0.62 + _ROW * len(there), chart) as (figure, axes):
        for row, (_, place, score) in enumerate(there):
            value = score.score.mean
            shade = MUTED if place < teachers else colour(place - teachers)
            axes.barh(row, value, height=0.62, color=shade, alpha=0.55, edgecolor=shade, linewidth=1)
            end = value
            if score.interval is not None:
                low, high = score.interval
                axes.errorbar(
                    value,
                    row,
                    xerr=[[max(value - low, 0)], [max(high - value, 0)]],
                    color=INK,
                    capsize=2.5,
                    lw=1,
                )
                end = max(end, high)
            axes.annotate(
                f"{value:.1f}", (end, row), xytext=(3, 0), textcoords="offset points", va="center", size=8
            )
        axes.set_yticks(range(len(there)), [key for key, _, _ in there])
        axes.invert_yaxis()
        axes.grid(False, axis="y")
        axes.margins(x=0.14)
        axes.set_xlabel(f"{measure} × 100")  # noqa: RUF001 - a multiplication sign
        title = f"{one.label}: {measure}"
        count = "" if one.items is None else f" {one.items:,} items."
        whiskers = " Whiskers: 95 % interval." if any(score.interval for _, _, score in there) else ""
        return Chart(chart, title, f"{count}{whiskers}".strip(), to_svg(figure, chart, title))
