"""A leaderboard as a table for a terminal, and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from distill.evaluation.leaderboard import Board, BoardRow
from distill.evaluation.spread import Score


def render(board: Board) -> RenderableType:
    """Return one row a setting, and the notes; of more than two suites retention has a table of its own."""
    title = "kept evaluations, mean ± standard deviation over seeds"
    held = [suite for suite in board.suites if any(_retention(row, suite) != "-" for row in board.rows)]
    if len(board.suites) > _SUITES_IN_ONE_TABLE and held:
        tables = [
            _table(title, board, [(suite, suite, _score) for suite in board.suites]),
            _table("retention, % of the teacher's", board, [(suite, suite, _retention) for suite in held]),
        ]
    else:
        columns = [(suite, suite, _score) for suite in board.suites]
        columns += [(f"{suite}, % of teacher's", suite, _retention) for suite in held]
        tables = [_table(title, board, columns)]
    return Group(*tables, *(Text(f"note: {note}") for note in board.notes))


_SUITES_IN_ONE_TABLE = 2

Cell = Callable[[BoardRow, str], str]


def _table(title: str, board: Board, columns: Sequence[tuple[str, str, Cell]]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("model", overflow="fold")
    for head in ("seeds", *(head for head, _, _ in columns), "param.", "MB"):
        table.add_column(head, justify="right", overflow="fold")
    for row in board.rows:
        cells = [cell(row, suite) for _, suite, cell in columns]
        table.add_row(Text(row.name), str(len(set(row.seeds))), *cells, *_sizes(row))
    return table


def to_csv(board: Board) -> str:
    """Return the board as CSV: a header line, figures with four decimals, nothing where there is none."""
    sets: dict[str, dict[str, None]] = {suite: {} for suite in board.suites}
    for row in board.rows:
        for suite, column in row.suites.items():
            sets[suite] |= dict.fromkeys(column.sets)
    lines: list[dict[str, object]] = []
    for row in board.rows:
        line: dict[str, object] = {"name": row.name, "runs": len(row.runs)}
        line["seeds"] = " ".join("-" if seed is None else str(seed) for seed in row.seeds)
        for suite in board.suites:
            there = row.suites.get(suite)
            line |= _cells(suite, there.score if there else None)
            line |= _cells(f"{suite} retention", there.retention if there else None)
            for name in sets[suite]:
                line |= _cells(f"{suite} {name}", there.sets.get(name) if there else None)
            line[f"{suite} selected_on"] = " ".join(there.selected_on) if there else ""
        line["parameters"], line["megabytes"] = row.parameters, row.megabytes
        lines.append(line)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _cells(name: str, score: Score | None) -> dict[str, object]:
    return {
        f"{name} mean": "" if score is None else f"{score.mean:.4f}",
        f"{name} std": "" if score is None or score.std is None else f"{score.std:.4f}",
    }


def _score(row: BoardRow, suite: str) -> str:
    column = row.suites.get(suite)
    return "-" if column is None else str(column.score)


def _retention(row: BoardRow, suite: str) -> str:
    column = row.suites.get(suite)
    return "-" if column is None or column.retention is None else str(column.retention)


def _sizes(row: BoardRow) -> tuple[str, str]:
    parameters = "-" if row.parameters is None else f"{row.parameters / 1e6:.2f} M"
    return parameters, "-" if row.megabytes is None else f"{row.megabytes:.1f}"
