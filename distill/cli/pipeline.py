"""``distill pipeline``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from distill.pipeline.step import Watch


@click.command("pipeline")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--from",
    "start",
    metavar="STEP",
    help="Leave the steps before STEP alone, do it and the rest anew.",
)
@click.option("--force", is_flag=True, help="Do every step anew.")
@click.option("--dry-run", is_flag=True, help="Print what would be done and why, and do nothing.")
def pipeline_command(file: Path, start: str | None, force: bool, dry_run: bool) -> None:
    """Do the steps of FILE: build, run, finetune, eval, export.

    Paths in FILE are relative to the folder it lies in.
    A step whose settings and inputs have not changed, and whose outputs are there, is skipped. An interrupted
    training is gone on with.
    """
    from distill.pipeline.runner import run_pipeline
    from distill.pipeline.spec import read_pipeline

    pipeline = read_pipeline(file, start)
    with _watch() as watch:
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


@contextmanager
def _watch() -> Iterator[Watch]:
    """Yield what shows on standard error how far a step is."""
    import time

    from distill.cli.progress import describe as describe_training
    from distill.cli.ticker import steps
    from distill.pipeline.step import Watch
    from embedcache.cli.progress import LineProgress, show_lines

    with show_lines() as show:
        since: dict[str, float] = {}

        def seconds(what: str) -> float:
            return time.perf_counter() - since.setdefault(what, time.perf_counter())

        yield Watch(
            LineProgress(show),
            lambda progress: show(describe_training(progress, seconds(progress.phase + str(progress.total)))),
            steps(LineProgress(show), "sentences"),
            lambda line: click.echo(line, err=True),
        )
