"""``distill pipeline``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from distill.training.tracking import TrainProgress


@click.command("pipeline")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--from", "start", metavar="STEP", help="Keep the steps before STEP; do it and the others again."
)
@click.option("--force", is_flag=True, help="Do every step again.")
@click.option("--dry-run", is_flag=True, help="Print what would be done and why.")
def pipeline_command(file: Path, start: str | None, force: bool, dry_run: bool) -> None:
    """Do the steps of FILE: build, run, finetune, eval, export.

    Paths in FILE are relative to its folder. A step is skipped where its settings and inputs have not changed
    and its outputs are there; an interrupted training is resumed.
    """
    import time

    from distill.cli.progress import describe
    from distill.cli.ticker import steps
    from distill.pipeline.read import read_pipeline
    from distill.pipeline.run import run_pipeline
    from distill.pipeline.steps import Watch
    from embedcache.cli.progress import LineProgress, show_lines

    pipeline = read_pipeline(file, start)
    began: dict[str, float] = {}
    with show_lines() as show:

        def show_training(progress: TrainProgress) -> None:
            now = time.perf_counter()
            show(describe(progress, now - began.setdefault(f"{progress.phase} {progress.total}", now)))

        watch = Watch(
            LineProgress(show),
            show_training,
            steps(LineProgress(show), "sentences"),
            lambda line: click.echo(line, err=True),
        )
        run_pipeline(
            pipeline,
            start=start,
            force=force,
            dry_run=dry_run,
            watch=watch,
            on_report=lambda report: click.echo(str(report)),
        )
    if not dry_run:
        click.echo(f"everything is in {pipeline.out}")
