"""One picture for a page of documentation: what students keep of their teacher, by size and by speed.

It stands by itself: letters are drawn as outlines, everything is black on white, and a key says which model
each letter is.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from distill.errors import DataError
from distill.evaluation.latency import SPEED
from distill.report import words
from distill.report.charts.fronts import Point, draw_front
from distill.report.charts.style import GRID, INK, MUTED, SERIES, canvas, require_matplotlib
from distill.report.data import LATENCY, Model, Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PANEL, _LINE = 2.7, 0.165  # inches
_NAME_LETTERS = 40
_COLOURS = {INK: "#111111", MUTED: "#555555", GRID: "#dddddd"} | dict.fromkeys(SERIES, "#111111")


def front_picture(report: Report) -> str:
    """Return an SVG file: retention over parameters and, where all were timed, over sentences a second.

    Raises:
        DataError: if there are no two models of which size and retention are known.
        MissingExtraError: if matplotlib is not installed.
    """
    require_matplotlib()
    suite = report.main_suite
    sizes = _points(report, suite, {model.key: (model.parameters or 0) / 1e6 for model in report.models})
    if len(sizes) < 2:
        raise DataError(
            f"no picture: retention and size are known of {len(sizes)} models, expected two or more; "
            "evaluate the students beside their teacher: distill eval RUN... --suite sts --data DIR"
        )
    shown = {point.key for point in sizes}
    models = [model for model in report.models if model.key in shown]
    speeds = _points(report, suite, {model.key: _speed(model) for model in models})
    panels = [(sizes, "parameters, millions", True)]
    if len(speeds) == len(sizes):
        panels.append((speeds, "sentences a second, one at a time on a CPU", False))
    key = _key(models, suite)
    height = _PANEL * len(panels) + _LINE * (sum(len(lines) for _, lines, *_ in key) + 1)
    with canvas(height, "front") as figure:
        _draw(figure, panels, key, f"{suite}, % of the teacher's")
        return _to_file(figure)


def _points(report: Report, suite: str | None, costs: Mapping[str, float]) -> list[Point]:
    """Return the models whose cost and whose share of a teacher are known; a teacher's is 100."""
    points = []
    for place, model in enumerate(report.models):
        cost = costs.get(model.key)
        share = _share(model, suite, is_teacher=place < len(report.teachers))
        if cost and share is not None:
            points.append(Point(model.key, place - len(report.teachers), cost, share))
    return points


def _share(model: Model, suite: str | None, *, is_teacher: bool) -> float | None:
    figures = model.suites.get(suite) if suite is not None else None
    if figures is None or figures.headline is None:
        return None
    if is_teacher:
        return 100.0
    return None if figures.retention is None else figures.retention.mean


def _speed(model: Model) -> float:
    """Return how fast a model is by the latency suite, which is what the page shows as well; 0: not timed."""
    figures = model.suites.get(LATENCY)
    speed = None if figures is None else figures.others.get(SPEED)
    return 0.0 if speed is None else speed.mean


KeyLine = tuple[str, list[str], str, str]


def _key(models: Sequence[Model], suite: str | None) -> list[KeyLine]:
    """Return letters, name in lines, parameters and retention of every model."""
    losses = {getattr(model, "loss", None) for model in models} - {None}
    # A loss that all have tells nobody apart.
    common = f" {next(iter(losses))}" if len(losses) == 1 else ""
    lines = []
    for model in models:
        figures = model.suites.get(suite) if suite is not None else None
        retention = None if figures is None else figures.retention
        lines.append(
            (
                model.key,
                textwrap.wrap(model.name.replace(common, "", 1) if common else model.name, _NAME_LETTERS),
                "" if model.parameters is None else f"{model.parameters / 1e6:.2f} M",
                "teacher" if retention is None else words.percent(retention),
            )
        )
    return lines


def _draw(
    figure: Figure, panels: Sequence[tuple[list[Point], str, bool]], key: Sequence[KeyLine], quality: str
) -> None:
    """Draw the panels, one below the other, and the key below them."""
    line = _LINE / figure.get_figheight()
    foot = line * (sum(len(lines) for _, lines, *_ in key) + 1)
    figure.set_layout_engine("constrained", rect=(0, foot, 1, 1 - foot))
    every = figure.subplots(len(panels), squeeze=False)[:, 0]
    for axes, (points, unit, small) in zip(every, panels, strict=True):
        axes.set_xlabel(f"{unit} (logarithmic)")
        axes.set_ylabel(quality)
        draw_front(axes, points, small=small)
    y = foot - line
    for letters, name, parameters, retention in key:
        write = partial(figure.text, va="center", size=7.5)
        write(0.02, y, letters, fontweight="bold")
        write(0.80, y, parameters, ha="right")
        write(0.99, y, retention, ha="right")
        for part in name:
            write(0.09, y, part)
            y -= line


def _to_file(figure: Figure) -> str:
    """Return an SVG file with colours and letters of its own."""
    import matplotlib as mpl

    text = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "path"}):
        figure.savefig(text, format="svg", metadata={"Date": None}, facecolor="#ffffff")
    pattern = "|".join(map(re.escape, _COLOURS))
    return re.sub(pattern, lambda found: _COLOURS[found.group()], text.getvalue())
