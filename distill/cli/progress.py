"""Progress and result of a training, as text for a terminal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from distill.training.tracking import train_progress

if TYPE_CHECKING:
    from distill.training.run import Run
    from distill.training.tracking import OnProgress


def train_and_print(train: Callable[[OnProgress], Run], as_json: bool) -> None:
    """Train, show progress and result; of several processes, the first one alone shows them.

    Args:
        train: trains, given the progress callback.
        as_json: print the result as JSON.
    """
    from distill.training.distributed import is_first_process

    if not is_first_process():
        train(lambda progress: None)
        return
    with train_progress() as on_progress:
        run = train(on_progress)
    if as_json:
        click.echo(json.dumps(run.facts(), indent=2))
    else:
        print_run(run)


def print_run(run: Run) -> None:
    """Print how a training ended and what to type next."""
    record, result, training = run.record, run.result, run.config.training
    table = Table(title=_title(run), show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    epochs = "1 epoch" if training.epochs == 1 else f"{training.epochs} epochs"
    # Those of the steps may end in the midst of one.
    epochs = epochs if training.max_steps is None else f"at most {epochs} and {training.max_steps:,} steps"
    early = ", stopped early" if result.stopped_early else ""
    resumed = f", resumed from step {run.resumed:,}" if run.resumed else ""
    rows = {
        "parameters": f"{record.parameters / 1e6:.2f} M",
        **_data(run),
        "trained on": f"{record.rows:,} rows, {epochs}, batches of at most {training.batch_size}",
        "steps": f"{result.steps:,} of {result.total_steps:,}{early}{resumed}",
        "loss": f"{record.loss} {result.final_loss:.6f}",
        "best": _best(run),
        "speed": f"{result.rows_per_second:,.0f} rows/s, {100 * result.waited:.2f} % of it waiting for data",
        "trained in": f"{result.seconds:.0f} s",
        "student": str(run.best),
    }
    for name, value in rows.items():
        if value is not None:
            table.add_row(name, value)
    console = Console()
    console.print(table)
    for line in _next(run):
        console.print(line, highlight=False, soft_wrap=True)


def _title(run: Run) -> str:
    record, start = run.record, run.record.start
    if start is None:
        teachers = " + ".join(teacher.name for teacher in record.teachers)
        return f"{record.student} from {teachers} on {record.corpus.name}"
    return f"{Path(start.spec).name} fine-tuned on {record.corpus.name}"


def _data(run: Run) -> dict[str, str | None]:
    """Return lines on the data; None for those that say nothing."""
    from embedcache.corpus.part import ORIGINAL

    record = run.record
    views, total = list(record.views), sum((record.label_counts or {}).values())
    labels = [
        f"{name}: {count:,} ({100 * count / total:.1f} %)"
        for name, count in (record.label_counts or {}).items()
    ]
    skipped = [f"{count:,} {reason}" for reason, count in sorted(record.skipped.items())]
    return {
        "selected": None
        if record.selected is None
        else f"{record.selected:,} of {record.corpus.rows:,} rows by --where",
        "views": None if views in ([], [ORIGINAL]) else ", ".join(views),
        "reads": _reads(run),
        "labels": ", ".join(labels) or None,
        "skipped": ", ".join(skipped) or None,
        "in the dev set": None
        if record.in_dev is None
        else f"{record.in_dev:,} training rows have a text of it",
    }


def _reads(run: Run) -> str | None:
    """Return what a classifier was taught on, ``texts`` or ``pairs``; None if unknown, and of an encoder."""
    from embedcache.teacher.classifier import ClassifierHead

    head = ClassifierHead.read(run.best)
    return None if head is None else head.reads


def _best(run: Run) -> str | None:
    """Return the scores of the best checkpoint in words; None where there are none."""
    from distill.training.selection import SCORES

    parts = [f"{100 * value:.2f} {SCORES.get(name, name)}" for name, value in run.record.scores.items()]
    return f"{', '.join(parts)}, at step {run.result.best_step:,}" if parts else None


def _next(run: Run) -> list[str]:
    """Return the commands that use and check the student."""
    record, config = run.record, run.config
    use = f'SentenceTransformer("{run.best}")'
    if record.labels:
        use = f"distill predict {run.folder} FILE{' --text2 COLUMN' if _reads(run) == 'pairs' else ''}"
    lines = [f"Use it:    {use}"]
    if record.loss == "reaugkd":
        lines.append(f"Its base:  distill kb build {run.folder} --cache {record.cache}")
    if record.kind == "finetune" and not record.labels:
        lines.append(f"Check it:  distill eval {run.folder} --suite sts --data DIR")
    # Without held-out rows there are no sentences to compare on.
    elif record.kind == "run" and not record.labels and config.evaluation.held_out:
        lines.append(f"Check it:  distill eval {run.folder} --suite fidelity")
    return lines
