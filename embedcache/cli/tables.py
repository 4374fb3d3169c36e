"""Tables on the terminal, the same for every command."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

# Wide enough for every name; at the 80 columns assumed of a pipe, names would be cut.
_WIDTH_WITHOUT_TERMINAL = 200


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None) -> None:
    """Print rows of plain text; nothing in them is taken as markup."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*(Text(cell, overflow="fold") for cell in row))
    Console(width=None if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL).print(table)
