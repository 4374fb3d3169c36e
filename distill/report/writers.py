"""A report for a terminal, as Markdown and as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import TypeAdapter
from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from distill.report import tables
from distill.report.rows import Row, suites_of
from distill.report.tables import Table


def terminal(rows: Sequence[Row], *, details: bool = False) -> RenderableType:
    """Return the summary, with ``details`` every suite's table before it, and the notes, for ``rich``."""
    shown = [tables.of_suite(rows, suite) for suite in suites_of(rows)] if details else []
    return terminal_tables([*shown, tables.summary(rows)], tables.notes(rows))


def terminal_tables(shown: Iterable[Table], notes: Iterable[str] = ()) -> RenderableType:
    """Return tables, each with its caption, and notes for ``rich``."""
    parts: list[RenderableType] = []
    for one in shown:
        table = RichTable(title=one.title, title_justify="left")
        for column in one.columns:
            first = column == one.columns[0]
            table.add_column(column, overflow="fold", justify="left" if first else "right")
        for cells in one.cells:
            table.add_row(*(Text(cell.replace(" [", "\n[")) for cell in cells))
        parts += [table, *([Text(one.caption)] if one.caption else [])]
    return Group(*parts, *(Text(f"note: {note}") for note in notes))


def markdown(rows: Sequence[Row], head: str = "##", *, details: bool = True) -> str:
    """Return the tables and notes as Markdown.

    Args:
        rows: the rows.
        head: beginning of a heading.
        details: include the tables of further measures.
    """
    blocks = [markdown_table(tables.summary(rows))]
    if notes := tables.notes(rows):
        blocks.append("\n".join(f"- {inline(note)}" for note in notes))
    shown = [tables.papers(rows)]
    for suite in suites_of(rows):
        shown += [tables.of_suite(rows, suite), tables.further(rows, suite) if details else None]
    for one in shown:
        if one is not None:
            blocks += [f"{head} {one.title}", markdown_table(one)]
    return "\n\n".join(blocks) + "\n"


def json(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the rows as a JSON object: ``{"rows": [...]}`` with the fields of ``Row``."""
    return {"rows": TypeAdapter(list[Row]).dump_python(list(rows), mode="json")}


def inline(text: str) -> str:
    """Return ``text`` on one line, with Markdown's own characters escaped."""
    line = re.sub(r"([\\`*<>|#])", r"\\\1", " ".join(text.split()))
    # Underscores inside words, and brackets unless before a parenthesis, are plain text.
    return re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", line).replace("](", "]\\(")


def markdown_table(table: Table) -> str:
    """Return a table and its caption as Markdown."""
    lines = [table.columns, ["---"] * len(table.columns), *table.cells]
    shown = "\n".join("| " + " | ".join(map(inline, line)) + " |" for line in lines)
    return shown + (f"\n\n{table.caption}" if table.caption else "")
