"""What people said of a pair against its cosine (Figure 3 of ConGen), one chart per model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from distill.report.charts.style import INK, MUTED, Chart, colour, drawing, to_svg
from distill.report.data import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BINS = 10
_DOT = 0.004  # a stroke so short is a dot, and a thousand of them are one path of the page


def scatter_charts(report: Report) -> list[Chart]:
    """Return one chart per model whose cosines are there."""
    pairs = report.pairs
    if pairs is None:
        return []
    models = {model.key: (place, model) for place, model in enumerate(report.models)}
    teachers = len(report.teachers)
    every = [value for cosines in pairs.cosines.values() for value in cosines]
    span = min(*every, 0.0), max(*every, 1.0)
    charts = []
    for key, cosines in pairs.cosines.items():
        place, model = models[key]
        name, title = f"scatter-{key}", f"{key}: people against cosine, {pairs.label}"
        with drawing(2.9, name) as (figure, axes):
            shade = MUTED if place < teachers else colour(place - teachers)
            _dots(axes, pairs.gold, cosines, shade)
            _medians(axes, pairs.gold, cosines)
            axes.set_xlabel("score that people gave")
            axes.set_ylabel("cosine")
            axes.set_ylim(span[0] - 0.03, span[1] + 0.03)
            caption = f"{model.name}. {len(cosines):,} pairs; line: median cosine of a tenth of the scores."
            charts.append(Chart(name, title, caption, to_svg(figure, name, title)))
    return charts


def _dots(axes: Axes, gold: Sequence[float], cosines: Sequence[float], shade: str) -> None:
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    vertices, codes = [], []
    for x, y in zip(gold, cosines, strict=True):
        vertices += [(x, y), (x + _DOT, y)]
        codes += [Path.MOVETO, Path.LINETO]
    # Many dots lie on each other, few are to be seen one by one.
    alpha = min(0.9, max(0.3, 300 / len(gold)))
    patch = PathPatch(Path(vertices, codes), fill=False, edgecolor=shade, linewidth=2.6, alpha=alpha)
    patch.set_capstyle("round")
    axes.add_patch(patch)
    axes.autoscale_view()


def _medians(axes: Axes, gold: Sequence[float], cosines: Sequence[float]) -> None:
    """Draw the median cosine of each tenth of the scores' range."""
    import numpy as np

    people, own = np.asarray(gold), np.asarray(cosines)
    edges = np.linspace(people.min(), people.max(), _BINS + 1)
    bins = np.clip(np.searchsorted(edges, people, side="right") - 1, 0, _BINS - 1)
    filled = np.unique(bins)
    middles = (edges[:-1] + edges[1:])[filled] / 2
    medians = [np.median(own[bins == one]) for one in filled]
    axes.plot(middles, medians, color=INK, marker="o", markersize=4, linewidth=1.2)
