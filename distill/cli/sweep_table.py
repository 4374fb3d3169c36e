"""The leaderboard of a sweep as a table of the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.table import Table

from distill.evaluation.kept import AVERAGE
from distill.sweep.leaderboard import Row
from distill.sweep.measured import Measured, Speed
from distill.sweep.plan import spelled

_UNKNOWN = "-"

# Shown where they are known of any row.
_COLUMNS: dict[str, Callable[[Row], str]] = {
    "retention": lambda row: _UNKNOWN if row.retention is None else f"{row.retention} %",
    "parameters": lambda row: _millions(row.parameters),
    "MB": lambda row: _megabytes(row.megabytes),
    "sent./s": lambda row: _per_second(row.speed),
}


def leaderboard_table(rows: Sequence[Row], keys: Sequence[str], suite: str | None) -> Table:
    """Return the table of the rows that are chosen.

    Args:
        rows: the rows, in their order.
        keys: the varied keys that tell them apart.
        suite: the suite of their figures; None without one.
    """
    table = Table(title="best development score first", title_justify="left")
    keys = [key for key in keys if key != "seed"]
    for key in keys:
        table.add_column(heading(key), overflow="fold")
    shown = [name for name, cell in _COLUMNS.items() if any(cell(row) != _UNKNOWN for row in rows)]
    for name in ("runs", "dev", *([suite] if suite else []), *shown):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        if row.chosen:
            runs = str(row.finished) if row.finished == row.planned else f"{row.finished}/{row.planned}"
            scores = (row.dev, row.suite) if suite else (row.dev,)
            table.add_row(
                *(spelled(row.varied[key]) for key in keys),
                runs,
                *(_UNKNOWN if score is None else str(score) for score in scores),
                *(_COLUMNS[name](row) for name in shown),
            )
    return table


def teacher_line(teacher: Measured, suite: str | None) -> str:
    """Return what is known of a teacher, in the order of the table."""
    score = (teacher.scores or {}).get(AVERAGE)
    told = [
        "" if score is None else f"{suite} {score:.2f}",
        "" if teacher.parameters is None else _millions(teacher.parameters),
        "" if teacher.megabytes is None else f"{_megabytes(teacher.megabytes)} MB",
        "" if teacher.speed is None else f"{_per_second(teacher.speed)} sentences/s",
    ]
    return f"teacher {teacher.name}: {', '.join(one for one in told if one)}"


def heading(key: str) -> str:
    """Return what a column of the varied ``key`` is called."""
    return "student" if key == "student.spec" else "loss" if key == "loss.name" else key.rpartition(".")[2]


def _millions(count: int | None) -> str:
    return _UNKNOWN if count is None else f"{count / 1e6:.2f} M"


def _megabytes(size: float | None) -> str:
    return _UNKNOWN if size is None else f"{size:.1f}"


def _per_second(speed: Speed | None) -> str:
    return _UNKNOWN if speed is None else f"{speed.batch:,.0f}"
