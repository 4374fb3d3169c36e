"""Learning curves: the training loss of each loss by itself, the selection score of all runs together."""

from __future__ import annotations

from collections.abc import Sequence

from distill.report.charts.style import Chart, colour, dash, drawing, marker, spread, to_svg
from distill.report.data import Curve, Report, RunFacts

_MARKS_A_LINE = 6
_LABEL_HEIGHT = 0.05  # of the panel's


def curve_charts(report: Report) -> list[Chart]:
    """Return a chart of the selection score and one per loss."""
    charts = []
    measures = dict.fromkeys(run.dev_measure for run in report.runs if run.dev_curve)
    for number, measure in enumerate(measures):
        lines = [(run, run.dev_curve) for run in report.runs if run.dev_measure == measure and run.dev_curve]
        words = measure.replace("_", " ")
        charts.append(
            _chart(
                report,
                lines,
                f"dev{number}",
                f"Selection score: {words}",
                f"{words} × 100",  # noqa: RUF001 - a multiplication sign
                "The checkpoint with the highest score is the student.",
            )
        )
    losses = {student.key: student.loss for student in report.students}
    for number, loss in enumerate(dict.fromkeys(losses.values())):
        lines = [
            (run, run.loss_curve) for run in report.runs if losses[run.student] == loss and run.loss_curve
        ]
        if lines:
            charts.append(
                _chart(
                    report,
                    lines,
                    f"loss{number}",
                    f"Training loss: {loss}",
                    f"loss ({loss})",
                    "Mean since the last record. Values of different losses do not compare.",
                )
            )
    return charts


def _chart(
    report: Report,
    lines: Sequence[tuple[RunFacts, Curve]],
    name: str,
    title: str,
    unit: str,
    caption: str,
) -> Chart:
    places = {student.key: place for place, student in enumerate(report.students)}
    with drawing(2.9, name) as (figure, axes):
        for run, curve in lines:
            place = places[run.student]
            steps, values = zip(*curve, strict=True)
            axes.plot(
                steps,
                values,
                color=colour(place),
                linestyle=dash(place),
                marker=marker(place),
                markevery=max(1, len(steps) // _MARKS_A_LINE),
            )
        axes.set_xlabel("step")
        axes.set_ylabel(unit)
        axes.set_xlim(left=0)
        low, high = axes.get_ylim()
        wanted = [curve[-1][1] for _, curve in lines]
        at = spread(wanted, (high - low) * _LABEL_HEIGHT)
        margin = (high - low) * _LABEL_HEIGHT / 2
        axes.set_ylim(min(low, *at) - margin, max(high, *at) + margin)
        for (run, curve), value in zip(lines, at, strict=True):
            axes.annotate(
                run.student,
                (curve[-1][0], curve[-1][1]),
                xytext=(1.02, value),
                textcoords=axes.get_yaxis_transform(),
                va="center",
                color=colour(places[run.student]),
                fontweight="bold",
                annotation_clip=False,
            )
        return Chart(name, title, caption, to_svg(figure, name, title))
