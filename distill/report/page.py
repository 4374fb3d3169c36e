"""A report as one page that needs nothing from outside: no script, no font, no picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from distill.evaluation.suites import SUITES
from distill.report.charts.style import Chart, require_matplotlib
from distill.report.data import Report
from distill.report.tables import (
    Table,
    contract_tables,
    further_table,
    gather_notes,
    paper_table,
    runs_table,
    suite_table,
    summary_table,
)

if TYPE_CHECKING:
    from jinja2 import Template

_TEMPLATE = "page.html.j2"


@dataclass(frozen=True)
class Section:
    """A part of the page under a head of its own.

    Attributes:
        name: the anchor.
        title: the head.
        intro: a sentence below it.
        charts: drawings.
        tables: tables.
        folded: tables that are shown when somebody opens them.
    """

    name: str
    title: str
    intro: str = ""
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    folded: Sequence[Table] = ()


def render_page(report: Report) -> str:
    """Return the page.

    Raises:
        MissingExtraError: if matplotlib is not installed.
    """
    require_matplotlib()
    return _template().render(
        report=report,
        summary=summary_table(report),
        sections=_sections(report),
        runs=runs_table(report),
        contracts=contract_tables(report),
        notes=gather_notes(report),
        subtitle=_subtitle(report),
        names={model.key: model.name for model in report.models},
        teachers={teacher.key for teacher in report.teachers},
    )


def _sections(report: Report) -> list[Section]:
    from distill.report.charts.bars import bar_charts
    from distill.report.charts.curves import curve_charts
    from distill.report.charts.fronts import front_charts
    from distill.report.charts.plane import SUITE, plane_chart
    from distill.report.charts.scatter import scatter_charts

    papers, fronts = paper_table(report), front_charts(report)
    sections = []
    if fronts or papers:
        sections.append(
            Section(
                "cost",
                "Quality, size and speed",
                charts=fronts,
                tables=[papers] if papers else [],
            )
        )
    for suite in report.suites:
        charts = bar_charts(report, suite)
        intro = SUITES[suite].summary if suite in SUITES else ""
        if suite == SUITE and (plane := plane_chart(report)) is not None:
            charts.append(plane)
        further = further_table(report, suite)
        sections.append(
            Section(
                f"suite-{suite}",
                suite,
                intro,
                charts,
                tables=[suite_table(report, suite)],
                folded=[further] if further else [],
            )
        )
    if scatters := scatter_charts(report):
        sections.append(Section("scatter", "What people said, and the cosine", "", scatters))
    if curves := curve_charts(report):
        sections.append(Section("curves", "Learning curves", "", curves))
    return sections


def _subtitle(report: Report) -> str:
    def counted(number: int, name: str) -> str:
        return f"{number} {name}{'' if number == 1 else 's'}"

    told = [counted(len(report.students), "student"), counted(len(report.runs), "run")]
    if report.teachers:
        told.append("teacher " + ", ".join(teacher.name for teacher in report.teachers))
    corpora = dict.fromkeys(str(run.facts["corpus"]) for run in report.runs if run.facts.get("corpus"))
    if corpora:
        told.append("corpus " + ", ".join(corpora))
    return " · ".join(told)


@cache
def _template() -> Template:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    # Whatever a run says of itself is text; only drawings made here are let through, by name.
    environment = Environment(
        loader=PackageLoader("distill.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(_TEMPLATE)
