"""Results on the terminal: tables, JSON and sizes, the same for every command."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click

from embedcache.pairs import SEPARATOR

# Wide enough for every name; at the 80 columns assumed of a pipe, names would be cut.
WIDTH_WITHOUT_TERMINAL = 200

_NUMBER = re.compile(r"(-?[\d,.]+(e[+-]\d+)?( %|%| [kMGT]?B)?|-)?")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> None:
    """Print rows, numbers at the right, without markup and control characters; nothing is cut off.

    Without rows, nothing is printed.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    lines = [["\n".join(map(printable, cell(value).split("\n"))) for value in row] for row in rows]
    if not lines:
        return
    table = Table(title=title and Text(printable(title)), title_justify="left")
    for heading, values in zip(columns, zip(*lines, strict=True), strict=True):
        is_number = all(_NUMBER.fullmatch(value) for value in values)
        table.add_column(Text(heading), overflow="fold", justify="right" if is_number else "left")
    for line in lines:
        table.add_row(*(Text(value, overflow="fold") for value in line))
    Console(width=None if sys.stdout.isatty() else WIDTH_WITHOUT_TERMINAL).print(table)


def print_result(
    result: object, as_json: bool, title: Sequence[str], rows: Iterable[tuple[str, object]]
) -> None:
    """Print a result as JSON, or as a table of names and values without those that are zero or empty."""
    if as_json:
        print_json(result)
    else:
        print_table(title, [row for row in rows if row[1]])


def print_json(result: Any) -> None:
    """Print a result as JSON."""
    from pydantic_core import to_json

    click.echo(to_json(result.to_json() if hasattr(result, "to_json") else result, indent=2))


def cell(value: object) -> str:
    """Return a value as the text of a cell."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.6f}" if isinstance(value, float) else str(value)


def shortened(text: str, length: int) -> str:
    """Return a text that is cut after ``length`` characters."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def printable(text: str) -> str:
    """Return a text without control characters, which could rewrite the terminal."""
    text = text.replace(SEPARATOR, " \N{SYMBOL FOR UNIT SEPARATOR} ")
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)
