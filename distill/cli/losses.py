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
    table.add_column("--loss", no_wrap=True)
    table.add_column("views", justify="right")
    table.add_column("what it asks for, its targets and settings")
    for name, loss in LOSSES.items():
        start = {None: "", True: " (starts full)", False: " (starts empty)"}[loss.full_queue]
        settings = [
            f"--{key.replace('_', '-')}{' learned' if value is None else f'={value}'}"
            + (start if key == "queue" else "")
            for key, value in loss.settings.items()
        ]
        more = "; ".join([f"targets: {loss.targets}", *settings])
        table.add_row(name, str(loss.views), f"{loss.summary}\n[dim]{more}[/dim]")
    Console(highlight=False).print(table)
