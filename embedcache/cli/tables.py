"""Tables, bars and sizes on the terminal, the same for every command."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

# Wide enough for every name; at the 80 columns assumed of a pipe, names would be cut.
WIDTH_WITHOUT_TERMINAL = 200

_BAR_WIDTH = 40


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None) -> None:
    """Print rows of plain text; nothing in them is taken as markup, and nothing is cut off."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left")
    for heading in columns:
        table.add_column(Text(heading), overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell, overflow="fold") for cell in row))
    Console(width=None if sys.stdout.isatty() else WIDTH_WITHOUT_TERMINAL).print(table)


def bars(title: str, counts: Sequence[tuple[str, int]]) -> Table:
    """Return counts by label as bars."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, show_header=False)
    for justify in ("right", "left", "right"):
        table.add_column(justify=justify)
    most = max((count for _, count in counts), default=0)
    for label, count in counts:
        table.add_row(label, "█" * round(_BAR_WIDTH * count / max(most, 1)), f"{count:,}")
    return table


def size(count: float) -> str:
    """Return a number of bytes for people, in powers of ten."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"
