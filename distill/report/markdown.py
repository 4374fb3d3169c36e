"""A report as Markdown: the tables, without charts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

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

_TICKS = "```"


def render_markdown(report: Report) -> str:
    """Return the report as Markdown."""
    return "\n\n".join(_parts(report)) + "\n"


def _parts(report: Report) -> Iterator[str]:
    yield "# Distillation report"
    yield from result_parts(report, "##", further=True)
    if report.examples is not None:
        yield "## Nearest neighbours"
        teachers = {teacher.key for teacher in report.teachers}
        yield f"Among {report.examples.sentences:,} {report.examples.source}; drawn, not chosen."
        for query in report.examples.queries:
            yield f"**{inline(query.text)}**"
            yield _list(
                f"{key} {one.cosine:.3f}: {one.text}"
                + (" (the teacher's too)" if one.shared and key not in teachers else "")
                for key, nearest in query.nearest.items()
                for one in nearest
            )
    yield "## Runs"
    yield render_table(runs_table(report))
    for table in contract_tables(report):
        yield f"## {table.title}"
        yield render_table(table)
    yield "## Configurations"
    for run in report.runs:
        yield f"### {inline(run.name)}"
        yield f"{_TICKS}yaml\n{run.config.rstrip()}\n{_TICKS}"
    if notes := gather_notes(report):
        yield "## Notes"
        yield _list(notes)
    if report.missing:
        yield "## Not known"
        yield _list(report.missing)


def result_parts(report: Report, head: str, *, further: bool = False) -> Iterator[str]:
    """Yield what came out, block by block: the summary, what to read first, the papers' figures, the suites.

    Args:
        report: the report.
        head: the marks of a head, ``##`` for example.
        further: whether to yield the further measures of the suites' sets too.
    """
    yield render_table(summary_table(report))
    marks = [f"{student.key}: {mark}" for student in report.students for mark in student.marks]
    if marks:
        yield "**Read this first.**\n\n" + _list(marks)
    if (papers := paper_table(report)) is not None:
        yield f"{head} The papers' figures"
        yield render_table(papers)
    for suite in report.suites:
        yield f"{head} {suite}"
        yield render_table(suite_table(report, suite))
        if further and (table := further_table(report, suite)) is not None:
            yield f"{head}# {table.title} of {suite}"
            yield render_table(table)


def render_table(table: Table) -> str:
    """Return a table as Markdown, its caption below."""
    lines = [_row(table.columns), "|" + "---|" * len(table.columns), *map(_row, table.rows)]
    return "\n".join(lines) + (f"\n\n{table.caption}" if table.caption else "")


def inline(text: str) -> str:
    """Return ``text`` on one line, with what Markdown would read as its own taken literally."""
    line = re.sub(r"([\\`*<>|#])", r"\\\1", " ".join(text.split()))
    # Inside a word an underscore is one; brackets mean something before a parenthesis only.
    return re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", line).replace("](", "]\\(")


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(inline(cell) for cell in cells) + " |"


def _list(lines: Iterable[str]) -> str:
    return "\n".join(f"- {inline(line)}" for line in lines)
