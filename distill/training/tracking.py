"""Metrics and progress of a training: ``metrics.jsonl``, trackers of accelerate, and a callback."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING

from distill.errors import MissingExtraError
from distill.layout import METRICS
from embedcache.progress import show_lines
from embedcache.sizes import size

if TYPE_CHECKING:
    from accelerate import Accelerator


@dataclass(frozen=True)
class TrainProgress:
    """State of a run, given to the progress callback after every step.

    Attributes:
        phase: ``fetch``, ``prepare``, ``note`` or ``train``.
        step: steps done (in ``prepare``: rows tokenised; in ``fetch``: bytes).
        total: steps of the run (in ``prepare``: rows; in ``fetch``: bytes).
        loss: mean loss since the last report, None before the first.
        rows_per_second: training rows a second since the start.
        best: best selection score so far.
        resumed: step that an interrupted run was resumed from.
        text: the text of a ``note``, or the name of what ``fetch`` fetches.
    """

    phase: str
    step: int
    total: int
    loss: float | None = None
    rows_per_second: float = 0.0
    best: float | None = None
    resumed: int = 0
    text: str = ""


OnProgress = Callable[[TrainProgress], None]


def tell(on_progress: OnProgress | None, text: str) -> None:
    """Report a note to ``on_progress``, if there is one."""
    if on_progress is not None:
        on_progress(TrainProgress("note", 0, 0, text=text))


def refuse_missing_trackers(names: Sequence[str]) -> None:
    """Raise ``MissingExtraError`` where the package of a tracker is not installed."""
    for name in names:
        if find_spec(name) is None:
            raise MissingExtraError(
                f"{name} is not installed: pip install {name}, or leave --log-with {name} out"
            )


class Tracker:
    """Writer of a run's metrics: ``metrics.jsonl`` and the trackers of an accelerator.

    Args:
        folder: the run's folder; None in processes that do not write.
        accelerator: its ``log_with`` says which trackers are written beside; None: none.
        after: the step that a resumed run continues from.
    """

    def __init__(
        self, folder: Path | None, accelerator: Accelerator | None = None, *, after: int = 0
    ) -> None:
        self._accelerator = accelerator
        self._file: IO[str] | None = None
        if folder is None:
            return
        self._file = (folder / METRICS).open("a", encoding="utf-8")
        if accelerator is not None and accelerator.log_with:
            names = {"wandb": {"name": folder.name}, "tensorboard": {"purge_step": after + 1}}
            accelerator.init_trackers("distill", init_kwargs=names)

    def log(self, step: int, values: dict[str, float]) -> None:
        """Write one line: the step and its values."""
        if self._file is None:
            return
        self._file.write(json.dumps({"step": step, **values}) + "\n")
        self._file.flush()
        if self._accelerator is not None:
            self._accelerator.log(values, step=step)

    def __enter__(self) -> Tracker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
            # Not end_training(), which ends the processes' group as well.
            for tracker in self._accelerator.trackers if self._accelerator is not None else ():
                tracker.finish()


def describe(progress: TrainProgress, seconds: float) -> str:
    """Return one line: steps, loss, rate, best score, time left after ``seconds`` of training."""
    if progress.phase == "note":
        return progress.text
    if progress.phase == "fetch":
        return f"{progress.text}: {size(progress.step)} of {size(progress.total)}"
    if progress.phase == "prepare":
        return f"tokenise {progress.step:,}/{progress.total:,} rows"
    loss = "" if progress.loss is None else f", loss {progress.loss:.5f}"
    best = "" if progress.best is None else f", best score {100 * progress.best:.2f}"
    here = progress.step - progress.resumed
    left = timedelta(seconds=round(seconds / max(here, 1) * (progress.total - progress.step)))
    steps = f"step {progress.step:,}/{progress.total:,}"
    steps += f" (resumed from {progress.resumed:,})" if progress.resumed else ""
    # The first steps say little of those that follow.
    rest = f", {left} left" if seconds > 5 else ""
    return f"{steps}{loss}{best}, {progress.rows_per_second:,.0f} rows/s{rest}"


def train_lines(show: Callable[[str], None], name: str = "") -> Callable[[TrainProgress], None]:
    """Return a callback of a training: notes stay on standard error, other lines go to ``show``.

    Args:
        show: receives the line of the current step.
        name: beginning of the lines.
    """
    began: dict[str, float] = {}

    def update(progress: TrainProgress) -> None:
        now = time.perf_counter()
        line = name + describe(progress, now - began.setdefault(f"{progress.phase} {progress.total}", now))
        if progress.phase == "note":
            sys.stderr.write(f"{line}\n")
        else:
            show(line)

    return update


@contextmanager
def train_progress() -> Iterator[Callable[[TrainProgress], None]]:
    """Yield a callback that keeps one line on a terminal up to date, or writes a line now and then."""
    with show_lines() as show:
        yield train_lines(show)
