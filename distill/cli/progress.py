"""Progress and result of a training run, for people."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from distill.training.run import Run
    from distill.training.tracking import TrainProgress

_LINE_SECONDS = 30.0


def describe(progress: TrainProgress, seconds: float) -> str:
    """Return one line: steps, loss, rate, best score, time left after ``seconds`` of training."""
    if progress.phase == "select":
        return f"{progress.step:,} of {progress.total:,} rows selected by --where"
    if progress.phase == "prepare":
        return f"tokenise {progress.step:,}/{progress.total:,} rows"
    loss = "" if progress.loss is None else f", loss {progress.loss:.5f}"
    best = "" if progress.best is None else f", best {100 * progress.best:.2f}"
    here = progress.step - progress.resumed
    left = timedelta(seconds=round(seconds / max(here, 1) * (progress.total - progress.step)))
    steps = f"step {progress.step:,}/{progress.total:,}"
    steps += f" (resumed from {progress.resumed:,})" if progress.resumed else ""
    return f"{steps}{loss}{best}, {progress.rows_per_second:,.0f} rows/s, {left} left"


@contextmanager
def train_progress() -> Iterator[Callable[[TrainProgress], None]]:
    """Yield a callback that keeps one line on a terminal up to date, or writes a line now and then."""
    console = Console(file=sys.stderr)
    started: float | None = None
    last = 0.0

    def seconds(progress: TrainProgress) -> float:
        nonlocal started
        if started is None or progress.phase != "train":
            started = time.perf_counter()
        return time.perf_counter() - started

    if console.is_terminal:
        with Live(console=console, refresh_per_second=5, transient=True) as live:

            def update(progress: TrainProgress) -> None:
                shown = Text(describe(progress, seconds(progress)), overflow="ellipsis", no_wrap=True)
                if progress.phase == "select":
                    # It stays on the screen: a selection of the wrong rows is to be seen at once.
                    console.print(shown)
                else:
                    live.update(shown)

            yield update
        return

    def line(progress: TrainProgress) -> None:
        nonlocal last
        now = seconds(progress)
        if progress.phase == "select":
            print(describe(progress, now), file=sys.stderr, flush=True)  # noqa: T201 - as below
        elif progress.phase == "train" and (now - last >= _LINE_SECONDS or progress.step == progress.total):
            last = now
            print(describe(progress, now), file=sys.stderr, flush=True)  # noqa: T201 - the log of a batch job

    yield line


def print_run(run: Run) -> None:
    """Print how a run ended and what to type next."""
    from embedcache.corpus.part import ORIGINAL

    result, config = run.result, run.config
    table = Table(
        title=f"{config.student.spec} from {' + '.join(run.teachers)} on {run.corpus}",
        show_header=False,
        title_justify="left",
    )
    table.add_column(style="bold")
    table.add_column()
    epochs = "1 epoch" if config.training.epochs == 1 else f"{config.training.epochs} epochs"
    early = ", stopped early" if result.stopped_early else ""
    table.add_row("parameters", f"{run.parameters / 1e6:.2f} M")
    if run.selected is not None:
        table.add_row("selected", f"{run.selected:,} of {run.corpus_rows:,} rows by --where")
    table.add_row(
        "trained on",
        f"{run.rows:,} rows, {epochs}, batches of at most {config.training.batch_size}",
    )
    if (views := config.training.views or [ORIGINAL]) != [ORIGINAL]:
        table.add_row("views", ", ".join(views))
    resumed = f", resumed from step {run.resumed:,}" if run.resumed else ""
    table.add_row("steps", f"{result.steps:,} of {result.total_steps:,}{early}{resumed}")
    table.add_row("loss", f"{config.loss.name} {result.final_loss:.6f}")
    if config.loss.queue:
        table.add_row("queue", f"{config.loss.queue:,} teacher vectors")
    if result.best_score is not None:
        by = "development pairs" if config.evaluation.data else "held-out rows"
        table.add_row("best", f"{100 * result.best_score:.2f} Spearman on {by}, at step {result.best_step:,}")
    table.add_row(
        "speed", f"{result.rows_per_second:,.0f} rows/s, {100 * result.waited:.2f} % of it waiting for data"
    )
    table.add_row("time", f"{result.seconds:.0f} s")
    table.add_row("student", str(run.best))
    console = Console()
    console.print(table)
    console.print(f'Use it:    SentenceTransformer("{run.best}")', highlight=False, soft_wrap=True)
    # Without held-out rows the command would have no sentences to compare on.
    if config.evaluation.held_out:
        console.print(
            f"Check it:  distill eval {run.folder} --suite fidelity", highlight=False, soft_wrap=True
        )
