"""What quality costs: size and speed against the main suite's figure, with the front of the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, log10
from typing import TYPE_CHECKING

from distill.report.charts.labels import label_points
from distill.report.charts.style import INK, TEACHER_MARKER, Chart, colour, drawing, marker, to_svg
from distill.report.data import Report, headline
from distill.report.tables import speed_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Point:
    """A model in a chart of costs.

    Attributes:
        key: the letters that charts call it by.
        place: which student it is; below zero: a teacher.
        cost: its size or its speed.
        quality: its figure.
    """

    key: str
    place: int
    cost: float
    quality: float


def front_charts(report: Report) -> list[Chart]:
    """Return the size-quality and the speed-quality chart, each where two models or more have both."""
    suite = report.main_suite
    sizes = {model.key: model.parameters for model in report.models}
    speeds = {
        model.key: model.sentences_per_second.mean if model.sentences_per_second else None
        for model in report.models
    }
    unit = "sentences a second" + (", one at a time" if report.timed else "")
    charts = [
        _chart(report, suite, "size", "Size and quality", "parameters, millions", sizes, 1e-6, small=True),
        _chart(report, suite, "speed", "Speed and quality", unit, speeds, 1.0, small=False),
    ]
    return [chart for chart in charts if chart is not None]


def _chart(
    report: Report,
    suite: str | None,
    name: str,
    title: str,
    unit: str,
    costs: dict[str, float | None] | dict[str, int | None],
    scale: float,
    *,
    small: bool,
) -> Chart | None:
    points = []
    for place, model in enumerate(report.models):
        quality, cost = headline(model, suite), costs[model.key]
        if quality is not None and cost:
            points.append(Point(model.key, place - len(report.teachers), cost * scale, quality.mean))
    if len(points) < 2:
        return None
    with drawing(2.9, name) as (figure, axes):
        axes.set_xlabel(f"{unit} (logarithmic)")
        axes.set_ylabel(f"average of {suite} × 100")  # noqa: RUF001 - a multiplication sign
        draw_front(axes, points, small=small)
        way = "left" if small else "right"
        caption = f"Better is up and to the {way}. Dotted: the front, which no other model beats in both."
        if not small:
            caption += f" Speed: {speed_words(report)}."
        return Chart(name, title, caption, to_svg(figure, name, title))


def draw_front(axes: Axes, points: Sequence[Point], *, small: bool) -> None:
    """Draw models by cost, which is logarithmic, and quality, with the front of the best; axes are named.

    Args:
        axes: the panel.
        points: the models.
        small: whether less of the cost is better, else more.
    """
    axes.set_xscale("log")
    best = front([(one.cost, one.quality) for one in points], small=small)
    axes.plot(*zip(*best, strict=True), color=INK, linestyle=(0, (2, 2)), linewidth=1, zorder=1)
    for one in points:
        shape = TEACHER_MARKER if one.place < 0 else marker(one.place)
        shade = INK if one.place < 0 else colour(one.place)
        axes.plot(one.cost, one.quality, marker=shape, color=shade, markersize=10 if one.place < 0 else 7)
    axes.margins(0.12)
    label_points(axes, [(one.cost, one.quality, one.key) for one in points])
    plain_log(axes, [one.cost for one in points])


def front(points: Sequence[tuple[float, float]], *, small: bool) -> list[tuple[float, float]]:
    """Return the points that no other beats in both, by cost.

    Args:
        points: (cost, quality); more quality is better.
        small: whether less of the cost is better, else more.
    """
    best: list[tuple[float, float]] = []
    for cost, quality in sorted(set(points), key=lambda one: (one[0] if small else -one[0], -one[1])):
        if not best or quality > best[-1][1]:
            best.append((cost, quality))
    return sorted(best)


def plain_log(axes: Axes, values: Sequence[float]) -> None:
    """Write plain numbers on the logarithmic x axis, at round places around ``values``."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullFormatter, NullLocator

    low, high = axes.get_xlim()
    # Wide ranges have fewer numbers, which would touch.
    digits = (1, 2, 5) if high < 50 * low else (1, 3)
    places = [
        digit * 10.0**power
        for power in range(floor(log10(low)) - 1, floor(log10(high)) + 2)
        for digit in digits
        if low <= digit * 10.0**power <= high
    ] or [min(values), max(values)]
    axes.xaxis.set_major_locator(FixedLocator(places))
    axes.xaxis.set_major_formatter(FixedFormatter([f"{place:,.6g}" for place in places]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
