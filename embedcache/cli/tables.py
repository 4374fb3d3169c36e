"""Tables and sizes on the terminal, the same for every command."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from typing import Literal

from embedcache.pairs import SEPARATOR

# Wide enough for every name; at the 80 columns assumed of a pipe, names would be cut.
WIDTH_WITHOUT_TERMINAL = 200

_NUMBER = re.compile(r"(-?[\d,.]+(e[+-]\d+)?( %|%| [kMGT]?B)?|-)?")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None) -> None:
    """Print rows of plain text, numbers at the right; nothing is taken as markup, and nothing is cut off."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left")
    lines = list(rows)
    for number, heading in enumerate(columns):
        is_number = bool(lines) and all(_NUMBER.fullmatch(line[number]) for line in lines)
        justify: Literal["right", "left"] = "right" if is_number else "left"
        table.add_column(Text(heading), overflow="fold", justify=justify)
    for row in lines:
        table.add_row(*(Text(cell, overflow="fold") for cell in row))
    Console(width=None if sys.stdout.isatty() else WIDTH_WITHOUT_TERMINAL).print(table)


def printable(text: str) -> str:
    """Return a text without control characters, which could rewrite the terminal."""
    text = text.replace(SEPARATOR, " \N{SYMBOL FOR UNIT SEPARATOR} ")
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)


def size(count: float) -> str:
    """Return a number of bytes for people, in powers of ten."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"
