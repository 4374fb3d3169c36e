"""Names of points, where they do not cover each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from distill.report.charts.style import MUTED, spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NEAR = 14.0  # pixels between two points whose labels would touch
_LINE = 11.0  # height of a label in pixels


def label_points(axes: Axes, points: Sequence[tuple[float, float, str]]) -> None:
    """Write each point's name beside it; names of points close together stand in a column with leaders.

    Args:
        axes: a panel whose limits are final.
        points: (x, y, name).
    """
    figure = axes.figure
    figure.draw_without_rendering()  # type: ignore[union-attr]  # places in pixels are known after that
    pixels = axes.transData.transform([(x, y) for x, y, _ in points])
    scale = figure.dpi / 72
    for group in _groups([tuple(one) for one in pixels], _NEAR * scale):
        # Beside one point its own name, right of several a column that covers none of them.
        right = max(pixels[one][0] for one in group) + (8 if len(group) == 1 else 13) * scale
        heights = spread([float(pixels[one][1]) for one in group], _LINE * scale)
        for one, height in zip(group, heights, strict=True):
            x, y, name = points[one]
            axes.annotate(
                name,
                (x, y),
                xytext=((right - pixels[one][0]) / scale, (height - pixels[one][1]) / scale),
                textcoords="offset points",
                va="center",
                fontweight="bold",
                arrowprops=None
                if len(group) == 1
                else {"arrowstyle": "-", "color": MUTED, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 3},
            )


def _groups(places: Sequence[tuple[float, ...]], near: float) -> list[list[int]]:
    """Return the points in groups: those within ``near`` of one of the group in x and in y."""
    groups: list[list[int]] = []
    for one, (x, y, *_) in enumerate(places):
        touching = [
            group
            for group in groups
            if any(abs(places[o][0] - x) < near and abs(places[o][1] - y) < near for o in group)
        ]
        groups = [group for group in groups if group not in touching]
        groups.append([*(o for group in touching for o in group), one])
    return groups
