"""Progress and result of a training run, for people."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from embedcache.cli.tables import size

if TYPE_CHECKING:
    from distill.classification.teach import TeachRun
    from distill.training.finetune import FinetuneRun
    from distill.training.run import Run
    from distill.training.tracking import OnProgress, TrainProgress

R = TypeVar("R", "Run", "FinetuneRun", "TeachRun")

_LINE_SECONDS = 30.0
# What stays on the screen: a selection of the wrong rows, say, is to be seen at once.
_STAYS = ("select", "anew", "note")


def describe(progress: TrainProgress, seconds: float) -> str:
    """Return one line: steps, loss, rate, best score, time left after ``seconds`` of training."""
    if progress.phase == "select":
        return f"{progress.step:,} of {progress.total:,} rows selected by --where"
    if progress.phase == "note":
        return progress.text
    if progress.phase == "anew":
        return "no checkpoint was written yet: the run begins anew"
    if progress.phase == "fetch":
        return f"{progress.text}: {size(progress.step)} of {size(progress.total)}"
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
    is_training, last = False, 0.0

    def seconds(progress: TrainProgress) -> float:
        nonlocal started, is_training
        is_training = is_training or progress.phase == "train"
        # Notes in the midst of training are a part of it.
        goes_on = progress.phase == "train" or (is_training and progress.phase in ("note", "fetch"))
        if started is None or not goes_on:
            started = time.perf_counter()
        return time.perf_counter() - started

    if console.is_terminal:
        with Live(console=console, refresh_per_second=5, transient=True) as live:

            def update(progress: TrainProgress) -> None:
                shown = Text(describe(progress, seconds(progress)), overflow="ellipsis", no_wrap=True)
                if progress.phase in _STAYS:
                    console.print(shown)
                else:
                    live.update(shown)

            yield update
        return

    fetched: float | None = None

    def line(progress: TrainProgress) -> None:
        nonlocal last, fetched
        now = seconds(progress)
        if progress.phase in _STAYS:
            print(describe(progress, now), file=sys.stderr, flush=True)  # noqa: T201 - as below
        elif progress.phase == "fetch":
            # A line every 30 seconds, so short transfers print nothing.
            fetched = fetched or time.perf_counter()
            if time.perf_counter() - fetched >= _LINE_SECONDS:
                fetched = time.perf_counter()
                print(describe(progress, now), file=sys.stderr, flush=True)  # noqa: T201 - as below
        elif progress.phase == "train" and (now - last >= _LINE_SECONDS or progress.step == progress.total):
            last = now
            print(describe(progress, now), file=sys.stderr, flush=True)  # noqa: T201 - the log of a batch job

    yield line


def report(train: Callable[[OnProgress], R], show: Callable[[R], None], as_json: bool) -> None:
    """Train, show how it goes, and say how it ended; of several processes, the first one alone.

    Args:
        train: trains, given what to call on the way.
        show: prints the result for people.
        as_json: whether to print it as JSON instead.
    """
    from distill.training.processes import is_first_process

    if not is_first_process():
        train(lambda progress: None)
        return
    with train_progress() as on_progress:
        run = train(on_progress)
    if as_json:
        click.echo(json.dumps(run.facts(), indent=2))
    else:
        show(run)


def print_run(run: Run) -> None:
    """Print how a run ended and what to type next."""
    from distill.losses.registry import get_loss
    from embedcache.corpus.part import ORIGINAL

    config, score = run.config, run.result.best_score
    queue = config.loss.settings.get("queue")
    selected = None if run.selected is None else f"{run.selected:,} of {run.corpus_rows:,} rows by --where"
    views = config.training.views or [ORIGINAL]
    by = "development pairs" if config.evaluation.data else "held-out rows"
    best = None if score is None else f"{100 * score:.2f} Spearman on {by}"
    if get_loss(config.loss.name).inside == "classes":
        best = describe_scores(run.scores, f"on {by.replace('pairs', 'rows')}")
    _print_result(
        run,
        f"{config.student.spec} from {' + '.join(run.teachers)} on {run.corpus}",
        {
            "selected": selected,
            "trained on": f"{run.rows:,} rows",
            "views": ", ".join(views) if views != [ORIGINAL] else None,
        },
        {
            "loss": f"{config.loss.name} {run.result.final_loss:.6f}",
            "queue": f"{queue:,} teacher vectors" if queue else None,
            "best": best,
        },
        # Without held-out rows the command would have no sentences to compare on.
        "--suite fidelity" if config.evaluation.held_out else None,
        predicts=get_loss(config.loss.name).inside == "classes",
        base=config.cache if config.loss.name == "reaugkd" else None,
    )


def print_finetune(run: FinetuneRun) -> None:
    """Print how a fine-tuning ended and what to type next."""
    config, score = run.config, run.result.best_score
    kind = ("sentences", "pairs", "triples")[run.texts - 1]
    by = "Spearman on development pairs" if config.evaluation.data else "% of held-out anchors right"
    _print_result(
        run,
        f"{Path(config.start).name} fine-tuned on {Path(config.triples or config.sentences or '').name}",
        {
            "trained on": f"{run.rows:,} {kind}",
            "skipped": _skipped(run.skipped),
            "in the dev file": None if run.in_dev is None else f"{run.in_dev:,} of them hold a text of it",
        },
        {
            "loss": f"{run.result.final_loss:.6f}",
            "best": None if score is None else f"{100 * score:.2f} {by}",
        },
        "--suite sts --data DIR",
    )


def print_teach(run: TeachRun) -> None:
    """Print how a teaching ended and what to type next."""
    config = run.config
    by = "development" if config.evaluation.has_set else "held-out"
    _print_result(
        run,
        f"{Path(config.start).name} taught on {Path(config.data.train).name}",
        {
            "trained on": f"{run.rows:,} {'pairs' if config.data.text2 else 'texts'}",
            "labels": run.balance,
            "skipped": _skipped(run.skipped),
            "in the dev rows": None
            if run.in_dev is None
            else f"{run.in_dev:,} of them have a text of theirs",
        },
        {
            "loss": f"{run.result.final_loss:.6f}",
            "best": describe_scores(run.scores, f"on {run.scored:,} {by} rows"),
        },
        None,
        predicts=True,
    )


def describe_scores(scores: Mapping[str, float], rows: str) -> str | None:
    """Return accuracy and macro F1 in words; None where there are no scores.

    Args:
        scores: by names that end in ``_accuracy`` (or ``_agreement``) and ``_f1``.
        rows: what they were taken on.
    """
    words = {"accuracy": "% right", "agreement": "% as the teacher", "f1": "macro F1"}
    parts = [f"{100 * value:.2f} {words[name.rpartition('_')[2]]}" for name, value in scores.items()]
    return f"{', '.join(parts)} {rows}" if parts else None


def _skipped(skipped: Mapping[str, int]) -> str | None:
    """Return how many rows of a file were left out, and why."""
    return ", ".join(f"{count:,} {reason}" for reason, count in sorted(skipped.items())) or None


def _print_result(
    run: Run | FinetuneRun | TeachRun,
    title: str,
    data: Mapping[str, str | None],
    outcome: Mapping[str, str | None],
    check: str | None,
    *,
    predicts: bool = False,
    base: str | None = None,
) -> None:
    """Print a table of a training's end and what to type next.

    Args:
        run: the training.
        title: the table's.
        data: lines on what was trained on; None leaves one out.
        outcome: lines on loss and score.
        check: options of the ``distill eval`` that judges the student; None where there is none.
        predicts: whether it is a classifier.
        base: the cache that its knowledge base can be made of; None where it was not trained to ask one.
    """
    result, training = run.result, run.config.training
    table = Table(title=title, show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    epochs = "1 epoch" if training.epochs == 1 else f"{training.epochs} epochs"
    # Those of the steps may end in the midst of one.
    epochs = epochs if training.max_steps is None else f"at most {epochs} and {training.max_steps:,} steps"
    early = ", stopped early" if result.stopped_early else ""
    resumed = f", resumed from step {run.resumed:,}" if run.resumed else ""
    more = {
        "trained on": f", {epochs}, batches of at most {training.batch_size}",
        "best": f", at step {result.best_step:,}",
    }
    rows = {
        "parameters": f"{run.parameters / 1e6:.2f} M",
        **data,
        "steps": f"{result.steps:,} of {result.total_steps:,}{early}{resumed}",
        **outcome,
        "speed": f"{result.rows_per_second:,.0f} rows/s, {100 * result.waited:.2f} % of it waiting for data",
        "time": f"{result.seconds:.0f} s",
        "student": str(run.best),
    }
    for name, value in rows.items():
        if value is not None:
            table.add_row(name, value + more.get(name, ""))
    console = Console()
    console.print(table)
    use = f"distill predict {run.folder} FILE" if predicts else f'SentenceTransformer("{run.best}")'
    console.print(f"Use it:    {use}", highlight=False, soft_wrap=True)
    if base is not None:
        build = f"distill kb build {run.folder} --cache {base}"
        console.print(f"Its base:  {build}", highlight=False, soft_wrap=True)
    if check is not None:
        console.print(f"Check it:  distill eval {run.folder} {check}", highlight=False, soft_wrap=True)
