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
_SHORT = (20, 12)
"""Columns of this width and less are not broken: of the first or else of the second, if others have room."""
_LEAST = 9
"""The room that these have at least."""
_FRAME = 3
"""What a column takes beside its text."""


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None) -> None:
    """Print rows of plain text; nothing in them is taken as markup."""
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else WIDTH_WITHOUT_TERMINAL)
    lines = [columns, *rows]
    widths = [
        max(cell_len(part) for cell in column for part in cell.split("\n"))
        for column in zip(*lines, strict=True)
    ]
    table = Table(title=title, title_justify="left")
    for heading, stays in zip(columns, _unbroken(widths, console.width), strict=True):
        table.add_column(Text(heading, overflow="fold", no_wrap=False), no_wrap=stays)
    for row in lines[1:]:
        # Said of the text as well, for what the column says would cut it off.
        table.add_row(*(Text(cell, overflow="fold", no_wrap=False) for cell in row))
    console.print(table)


def _unbroken(widths: Sequence[int], width: int) -> list[bool]:
    """Return which columns keep their width where a table has to be narrower: counts, sizes, times, digests.

    Args:
        widths: what each column would take.
        width: that of the terminal.
    """
    for short in _SHORT:
        least = sum((one if one <= short else _LEAST) + _FRAME for one in widths)
        if least < width:
            return [one <= short for one in widths]
    return [False] * len(widths)


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
