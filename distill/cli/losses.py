"""``distill losses``."""

from __future__ import annotations

import click


@click.command("losses")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def losses_command(as_json: bool) -> None:
    """List the losses: what each takes, and with which defaults."""
    import json
    from dataclasses import asdict

    from distill.losses.registry import LOSSES

    if as_json:
        facts = {name: asdict(loss) for name, loss in LOSSES.items()}
        click.echo(json.dumps(facts, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title="losses", title_justify="left")
    for heading in ("--loss", "views", "targets", "queue starts", "settings", "what it asks for"):
        table.add_column(heading)
    for name, loss in LOSSES.items():
        start = {None: "no queue", True: "full", False: "empty"}[loss.full_queue]
        settings = ", ".join(
            f"{key.replace('_', '-')} {'learned' if value is None else value}"
            for key, value in loss.settings.items()
        )
        table.add_row(name, str(loss.views), loss.targets, start, settings, loss.summary)
    Console().print(table)
