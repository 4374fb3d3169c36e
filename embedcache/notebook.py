"""HTML tables and data frames for notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from embedcache.lazy import load_extra

if TYPE_CHECKING:
    import pandas as pd

Row = Mapping[str, object]


def data_frame(rows: Sequence[Row]) -> pd.DataFrame:
    """Return rows as a pandas data frame, with the columns of all of them.

    Raises:
        MissingExtraError: if pandas is not installed.
    """
    frame: pd.DataFrame = load_extra("pandas", "formats").DataFrame(list(rows))
    return frame


def html_table(rows: Sequence[Row], caption: str = "", *, most: int = 50) -> str:
    """Return rows as an HTML table with a caption; of more than ``most``, the first."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [_line("th", names), *(_line("td", [row.get(name) for name in names]) for row in rows[:most])]
    more = f" (and {len(rows) - most} more rows)" if len(rows) > most else ""
    return f"<table><caption>{escape(caption)}{more}</caption>{''.join(lines)}</table>"


def _line(tag: str, cells: Sequence[object]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(_cell(cell))}</{tag}>' for cell in cells)}</tr>"


def _cell(cell: object) -> str:
    if cell is None:
        return ""
    return f"{cell:,.4g}" if isinstance(cell, float) else f"{cell:,}" if isinstance(cell, int) else str(cell)
