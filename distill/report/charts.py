"""Charts of a report: retention over size and speed, bars of a suite, training curves. One palette for all.

Colours are placeholders while matplotlib draws. On a page they become CSS variables, so one SVG serves light,
dark and print; a picture by itself gets the light palette. Series differ in marker and dash as well.
"""

from __future__ import annotations

import html
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from distill.errors import DataError
from distill.layout import METRICS
from distill.report.rows import Row, main_suite

_NAMES = ("ink", "muted", "grid", "s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7")
_LIGHT = "#1b1f24 #59636e #d9dee3 #0b63b0 #b34700 #00755a #a3217f #6b6100 #5b45c9 #a52a2a #3d5560"
_DARK = "#e8ebee #a0abb6 #343c45 #6db3f2 #ff9a52 #43cda6 #f08ad3 #d6c84a #b1a2ff #ff8f8f #a9c3d0"
LIGHT = dict(zip(_NAMES, _LIGHT.split(), strict=True))
DARK = dict(zip(_NAMES, _DARK.split(), strict=True))
MOST_NAMED = 12
"""Rows that a chart names: the best ones."""

SIZE, SPEED = "size", "speed"

_PLACEHOLDERS = {f"#0100{place:02x}": name for place, name in enumerate(_NAMES)}
INK, MUTED, _, *SERIES = _PLACEHOLDERS
_MARKERS, _TEACHER = "osD^vPXph<>", "*"
_DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), (0, (3, 1, 1, 1, 1, 1)))
# Inches: of a chart, so that letters keep their size on a phone, and of a legend's line.
_WIDTH, _LINE = 3.8, 0.17
_LONGEST_NAME = 48
_STYLE = mpl.rc_params_from_file(Path(__file__).with_name("charts.mplstyle"), use_default_template=False)


@dataclass(frozen=True)
class Chart:
    """A chart: title, how to read it, and the drawing as an SVG element for a page."""

    title: str
    caption: str
    svg: str


@dataclass(frozen=True)
class _Series:
    """Look of a row in all charts."""

    name: str
    colour: str
    marker: str
    dash: Any


def fronts(rows: Sequence[Row]) -> list[Chart]:
    """Return retention over size, and over speed where the latency suite timed the models."""
    charts = []
    for cost, points in _panels(rows).items():
        with _drawing(cost, 2.7, min(len(points), MOST_NAMED)) as figure:
            _front(figure.add_subplot(), rows, points, cost)
            _legend(figure)
            caption = f"Better is up and to the {'left' if cost == SIZE else 'right'}. Dotted: models that "
            charts.append(_chart(figure, f"Retention over {cost}", caption + "no other beats in both."))
    return charts


def picture(rows: Sequence[Row]) -> str:
    """Return the same as an SVG file with outlines for letters, on white.

    Raises:
        DataError: if fewer than two models have both a size and a retention.
    """
    panels = _panels(rows)
    if not panels:
        raise DataError(
            "no picture: expected two models or more with a size and a retention; evaluate the runs beside "
            "their teacher with 'distill eval RUN... --suite sts --data DIR'"
        )
    names = min(max(map(len, panels.values())), MOST_NAMED)
    with _drawing("picture", 2.7 * len(panels), names) as figure, mpl.rc_context({"svg.fonttype": "path"}):
        for place, (cost, points) in enumerate(panels.items(), 1):
            _front(figure.add_subplot(len(panels), 1, place), rows, points, cost)
        _legend(figure)
        return _coloured(_svg(figure, facecolor="#ffffff"), LIGHT)


def bars(rows: Sequence[Row], suite: str) -> Chart | None:
    """Return a bar per model: its figure on ``suite`` with the interval; None where no row has one."""
    there = [(row, score) for row in rows if (score := row.headline(suite))]
    shown = there[: 2 * MOST_NAMED]
    if not shown:
        return None
    looks = _looks(rows)
    with _drawing(suite, 0.55 + 0.34 * len(shown)) as figure:
        axes = figure.add_subplot()
        for place, (row, score) in enumerate(shown):
            look = looks[row.name]
            axes.barh(place, score.mean, height=0.42, color=look.colour, alpha=0.55)
            axes.text(0, place - 0.28, look.name, va="bottom", size=8.5)
            if score.interval is not None:
                ends = [[max(score.mean - score.interval[0], 0)], [max(score.interval[1] - score.mean, 0)]]
                axes.errorbar(score.mean, place, xerr=ends, color=INK, capsize=2.5, lw=1)
            end = max(score.mean, score.interval[1] if score.interval else score.mean)
            axes.annotate(
                f"{score.mean:.1f}", (end, place), (3, 0), textcoords="offset points", va="center", size=8.5
            )
        axes.set_yticks([])
        axes.set_ylim(len(shown) - 0.6, -0.8)
        axes.spines["left"].set_visible(False)
        axes.margins(x=0.14)
        caption = "Whiskers: 95 % interval." if any(score.interval for _, score in shown) else ""
        return _chart(figure, f"{suite}: {shown[0][1].measure}", f"{caption} {_cut(there, shown)}".strip())


def curves(rows: Sequence[Row]) -> list[Chart]:
    """Return training curves: the selection score of all runs, and one chart of the loss for each loss."""
    looks = _looks(rows)
    lines: dict[tuple[str, str], list[tuple[_Series, list[tuple[int, float]]]]] = {}
    for row in (row for row in rows if not row.is_teacher):
        for run in row.runs:
            for key, points in read_curves(run).items():
                title = f"Training loss: {row.loss}" if key == "loss" else "Selection score: " + key
                lines.setdefault((title, key), []).append((looks[row.name], points))
    charts = []
    for (title, key), drawn in sorted(lines.items()):
        shown = [one for one in drawn if one[0].colour != MUTED] or drawn[:MOST_NAMED]
        named = dict.fromkeys(look.name for look, _ in shown)
        with _drawing(title, 2.6, len(named)) as figure:
            axes = figure.add_subplot(xlabel="step", ylabel=key.replace("_", " "))
            for look, points in shown:
                axes.plot(
                    *zip(*points, strict=True),
                    color=look.colour,
                    linestyle=look.dash,
                    marker=look.marker,
                    markevery=max(1, len(points) // 6),
                    label=look.name,
                )
            axes.set_xlim(left=0)
            _legend(figure)
            charts.append(_chart(figure, title, _cut(drawn, shown)))
    return charts


def read_curves(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Return ``loss`` and the selection score of a run as (step, value), in order of the steps."""
    found: dict[str, dict[int, float]] = {}
    try:
        text = (run / METRICS).read_text(encoding="utf-8")
    except OSError:
        return {}
    for line in text.splitlines():
        try:
            facts = json.loads(line)
            key = "loss" if "loss" in facts else next(key for key in facts if key not in ("step", "epoch"))
            found.setdefault(key, {})[facts["step"]] = float(facts[key])
        except (ValueError, TypeError, KeyError, StopIteration):  # noqa: PERF203 - line by line
            continue  # the last line of a killed run may be torn
    return {key: sorted(points.items()) for key, points in found.items()}


def front(points: Iterable[tuple[float, float]], *, low_cost: bool) -> list[tuple[float, float]]:
    """Return the (cost, quality) points that no other beats in both, by cost."""
    best: list[tuple[float, float]] = []
    for cost, quality in sorted(set(points), key=lambda one: (one[0] if low_cost else -one[0], -one[1])):
        if not best or quality > best[-1][1]:
            best.append((cost, quality))
    return sorted(best)


def _panels(rows: Sequence[Row]) -> dict[str, list[tuple[Row, float, float]]]:
    """Return cost -> (row, cost, retention in %) of the models with both, of costs that two or more have."""
    suite, found = main_suite(rows), {SIZE: [], SPEED: []}  # type: ignore[var-annotated]
    for row in rows:
        scores = row.suites.get(suite or "")
        if scores is None or not (row.is_teacher or scores.retention):
            continue
        quality = scores.retention.mean if scores.retention else 100.0
        if row.parameters:
            found[SIZE].append((row, row.parameters / 1e6, quality))
        if row.speed:
            found[SPEED].append((row, row.speed.mean, quality))
    return {cost: points for cost, points in found.items() if len(points) > 1}


def _front(axes: Axes, rows: Sequence[Row], points: Sequence[tuple[Row, float, float]], cost: str) -> None:
    looks = _looks(rows)
    axes.set_xscale("log")
    best = front([(spent, quality) for _, spent, quality in points], low_cost=cost == SIZE)
    axes.plot(*zip(*best, strict=True), color=INK, linestyle=(0, (2, 2)), linewidth=1, zorder=1)
    for place, (row, spent, quality) in enumerate(points):
        look = looks[row.name]
        label = look.name if look.colour != MUTED else "_unnamed"
        size = 10 if row.is_teacher else 7
        axes.plot(
            spent, quality, look.marker, color=look.colour, markersize=size, label=label, zorder=100 - place
        )
    axes.margins(0.12)
    axes.set_ylabel(f"{main_suite(rows)}, % of the teacher's")
    axes.set_xlabel("parameters, millions" if cost == SIZE else "sentences a second, one at a time on a CPU")
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 50 * low else (1, 3)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.4g}"))
    axes.xaxis.set_minor_locator(NullLocator())


def _looks(rows: Sequence[Row]) -> dict[str, _Series]:
    """Return the look of each row by name: teachers are stars, students beyond the best ones muted."""
    students = islice(zip(cycle(SERIES), cycle(_MARKERS), cycle(_DASHES)), MOST_NAMED)
    looks = {}
    for row in rows:
        name = row.name if len(row.name) <= _LONGEST_NAME else "…" + row.name[1 - _LONGEST_NAME :]
        if row.is_teacher:
            looks[row.name] = _Series(f"{name} (teacher)", INK, _TEACHER, "-")
        else:
            looks[row.name] = _Series(name, *next(students, (MUTED, ".", "-")))
    return looks


@contextmanager
def _drawing(name: str, height: float, names: int = 0) -> Iterator[Figure]:
    """Yield a figure with room for a legend of ``names`` lines; draw and save it inside the block."""
    with mpl.rc_context({**_STYLE, "svg.hashsalt": name}):
        yield Figure(figsize=(_WIDTH, height + _LINE * names), layout="constrained")


def _legend(figure: Figure) -> None:
    """Name every series once, below the panels."""
    found: dict[str, Artist] = {}
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        found |= dict(zip(map(str, labels), handles, strict=True))
    figure.legend(list(found.values()), list(found), loc="outside lower left", labelspacing=0.25)


def _cut(there: Sequence[object], shown: Sequence[object]) -> str:
    return (
        "" if len(shown) == len(there) else f"The best {len(shown)} of {len(there)}; all are in the tables."
    )


def _chart(figure: Figure, title: str, caption: str) -> Chart:
    svg = _svg(figure)
    (box,) = re.findall(r'viewBox="[^"]+"', svg[: svg.index("<defs")])
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    # Only hashed ids are referred to, and they differ from chart to chart; others repeat on a page.
    svg = re.sub(r' id="(?![a-z][0-9a-f]{10}")[^"]*"', "", svg).replace("xlink:href", "href")
    svg = re.sub(r"font: (?:\w+ )*([\d.]+px) [^;\"]+", r"font-size: \1", svg)  # the page's own font
    head = f'<svg {box} role="img" aria-label="{html.escape(title, quote=True)}" class="chart">'
    svg = re.sub(r"<svg [^>]*>", lambda _: head, svg, count=1)
    return Chart(title, caption, _coloured(svg, {name: f"var(--{name})" for name in LIGHT}))


def _svg(figure: Figure, **options: Any) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None}, **options)
    return text.getvalue()


def _coloured(svg: str, palette: dict[str, str]) -> str:
    return re.sub("|".join(_PLACEHOLDERS), lambda found: palette[_PLACEHOLDERS[found.group()]], svg)
