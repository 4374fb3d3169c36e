"""``distill suites``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from distill.evaluation.suite_files import SuiteFile


@click.command("suites")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def suites_command(as_json: bool) -> None:
    """List what 'distill eval' can measure: the sets of each suite, and the files it looks for in --data.

    Files are tab-separated with a header line, UTF-8, without quoting; each may also end in .tsv.gz.
    """
    import json

    from distill.evaluation.suite_files import SUITE_FILES
    from distill.evaluation.suites import SUITES

    if as_json:
        facts = {
            name: {
                "summary": suite.summary,
                "sets": list(dict.fromkeys(one for file in SUITE_FILES[name] for one in file.sets)),
                "files": [
                    {
                        "file": f"{file.stem}.tsv",
                        "columns": list(file.columns),
                        "sets": list(file.sets),
                        "note": file.note,
                    }
                    for file in SUITE_FILES[name]
                ],
                "reads_sentences": suite.reads_sentences,
                "on_request": suite.on_request,
            }
            for name, suite in SUITES.items()
        }
        click.echo(json.dumps(facts, indent=2))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title="suites", title_justify="left", show_lines=True)
    table.add_column("--suite", no_wrap=True)
    table.add_column("what it measures, and the files it reads: columns (sets)", overflow="fold")
    for name, suite in SUITES.items():
        about = Text(suite.summary)
        for line in _lines(SUITE_FILES[name]):
            about.append(f"\n{line}", style="dim")
        if suite.reads_sentences:
            about.append("\na file of sentences, or those that the run held out", style="dim")
        if suite.on_request:
            about.append("\nonly where it is named: --suite all leaves it out", style="dim")
        table.add_row(name, about)
    Console(highlight=False).print(table)


def _lines(files: tuple[SuiteFile, ...]) -> Iterator[str]:
    """Yield a line for every kind of file; files of the same columns share one."""
    kinds: dict[tuple[str, ...], list[SuiteFile]] = {}
    for file in files:
        kinds.setdefault(file.columns, []).append(file)
    for columns, same in kinds.items():
        names = ", ".join(f"{one.stem}.tsv" + (f" ({one.note})" if one.note else "") for one in same)
        sets = ", ".join(dict.fromkeys(name for one in same for name in one.sets))
        yield f"{names}: {', '.join(columns)} ({sets})"
