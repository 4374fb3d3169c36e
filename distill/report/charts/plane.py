"""The plane of alignment and uniformity (Figure 2 of DistilCSE)."""

from __future__ import annotations

from distill.report.charts.labels import label_points
from distill.report.charts.style import INK, TEACHER_MARKER, Chart, colour, drawing, marker, to_svg
from distill.report.data import Report

SUITE = "geometry"
"""The suite that measures both."""


def plane_chart(report: Report) -> Chart | None:
    """Return the plane; None where no model's alignment and uniformity were measured."""
    points = []
    for place, model in enumerate(report.models):
        others = model.suites[SUITE].others if SUITE in model.suites else {}
        if "alignment" in others and "uniformity" in others:
            where = others["uniformity"].mean, others["alignment"].mean
            points.append((model.key, place - len(report.teachers), *where))
    if not points:
        return None
    name, title = "plane", "Alignment and uniformity"
    with drawing(2.9, name) as (figure, axes):
        for _, place, uniformity, alignment in points:
            shape = TEACHER_MARKER if place < 0 else marker(place)
            shade = INK if place < 0 else colour(place)
            axes.plot(uniformity, alignment, marker=shape, color=shade, markersize=10 if place < 0 else 7)
        axes.set_xlabel("uniformity")
        axes.set_ylabel("alignment")
        axes.margins(0.15)
        label_points(axes, [(uniformity, alignment, key) for key, _, uniformity, alignment in points])
        caption = (
            "Lower is better on both axes: similar sentences close together (alignment), all others spread "
            "over the sphere (uniformity)."
        )
        return Chart(name, title, caption, to_svg(figure, name, title))
