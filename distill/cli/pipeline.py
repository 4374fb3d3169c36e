"""``distill pipeline``."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("pipeline")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--from", "start", metavar="STEP", help="Keep the steps before STEP; do it and the others again."
)
@click.option("--again", is_flag=True, help="Do every step again.")
@click.option("--dry-run", is_flag=True, help="Print what would be done and why.")
def pipeline_command(file: Path, start: str | None, again: bool, dry_run: bool) -> None:
    """Do the steps of FILE: build, run, finetune, eval, export.

    Paths in FILE are relative to its folder. A step is skipped where its settings and inputs have not changed
    and its outputs are there; an interrupted training is resumed.
    """
    from distill.pipeline import run_pipeline
    from distill.steps import Watch
    from distill.training.tracking import train_lines
    from embedcache.progress import LineProgress, show_lines

    with show_lines() as show:
        watch = Watch(LineProgress(show), train_lines(show))
        run_pipeline(file, start=start, again=again, dry_run=dry_run, watch=watch, say=click.echo)
