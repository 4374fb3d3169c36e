"""``distill leaderboard``: kept evaluations side by side."""

from __future__ import annotations

import json
from pathlib import Path

import click

from distill.evaluation.suites import SUITES


@click.command("leaderboard")
@click.argument(
    "folders", metavar="DIR...", nargs=-1, required=True, type=click.Path(file_okay=False, path_type=Path)
)
@click.option(
    "--suite",
    "suites",
    type=click.Choice(list(SUITES)),
    multiple=True,
    help="Suite to show; repeatable  [default: all that are kept]",
)
@click.option("--csv", "csv_file", type=click.Path(dir_okay=False, path_type=Path), help="Also write CSV")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Also write JSON")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the table")
def leaderboard_command(
    folders: tuple[Path, ...],
    suites: tuple[str, ...],
    csv_file: Path | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Rank all runs in and below each DIR by what 'distill eval' and 'distill sweep' keep in their folders.

    Runs whose configurations differ in the seed alone are one row, with mean and standard deviation. Nothing
    is encoded.
    """
    from distill.cli.evaluate import table_console
    from distill.evaluation.leaderboard import make_board
    from distill.evaluation.leaderboard_table import render, to_csv
    from embedcache.fsio import write_bytes, write_json

    board = make_board(folders, suites)
    if csv_file is not None:
        write_bytes(csv_file, to_csv(board).encode())
    if out is not None:
        write_json(out, board.to_json())
    if as_json:
        click.echo(json.dumps(board.to_json(), indent=2, ensure_ascii=False))
        return
    table_console().print(render(board))
