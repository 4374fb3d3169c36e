"""``distill demo``."""

from __future__ import annotations

import click


@click.command("demo")
def demo_command() -> None:
    """Build, distil and evaluate on sentences that are already on this machine."""
