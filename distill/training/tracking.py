"""What a run writes down on the way: ``metrics.jsonl``, TensorBoard on request, and a progress callback."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from distill.errors import MissingExtraError
from distill.layout import METRICS


@dataclass(frozen=True)
class TrainProgress:
    """Where a run stands; handed to the progress callback after every step.

    Attributes:
        phase: ``fetch``, ``select``, ``prepare``, ``note`` (once for each thing worth knowing about
            the student), ``anew`` (told once: what is gone on with has no checkpoint) or ``train``.
        step: steps done (in ``prepare``: rows tokenised; in ``select``, which comes once: rows selected; in
            ``fetch``: bytes fetched).
        total: steps of the run (in ``prepare`` and ``select``: rows; in ``fetch``: bytes).
        loss: mean loss since the last report, None before the first.
        rows_per_second: training rows a second since the start.
        best: best selection score so far.
        resumed: the step that an interrupted run went on from.
        text: of a ``note``, what it says; of ``fetch``, what is fetched.
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


def require_tensorboard() -> None:
    """Raise :class:`MissingExtraError` where TensorBoard is not installed."""
    if find_spec("tensorboard") is None:
        raise MissingExtraError(
            "TensorBoard is not installed: pip install 'embedcache[tensorboard]', or leave --tensorboard out"
        )


def best_scores(folder: Path, step: int) -> dict[str, float]:
    """Return what a run was chosen by at its best step, by name; empty where there was nothing to choose by.

    Args:
        folder: the run's folder.
        step: the best step.
    """
    lines = (folder / METRICS).read_text(encoding="utf-8").splitlines()
    # The line of an evaluation has no loss: that is logged on lines of its own.
    at_best = [values for line in lines if (values := json.loads(line)).pop("step") == step]
    return next((values for values in at_best if "loss" not in values), {})


class Tracker:
    """Writes metrics of a run.

    Args:
        folder: the run's folder; None writes nothing: another process does.
        tensorboard: whether to write TensorBoard files too.
        after: the step a resumed run goes on after.

    Raises:
        MissingExtraError: if TensorBoard is asked for and not installed.
    """

    def __init__(self, folder: Path | None, *, tensorboard: bool = False, after: int = 0) -> None:
        self._writer: Any = None
        self._file: IO[str] | None = None
        if folder is None:
            return
        if tensorboard:
            require_tensorboard()
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=after + 1)
        self._file = (folder / METRICS).open("a", encoding="utf-8")

    def log(self, step: int, values: dict[str, float]) -> None:
        """Write one line: the step and its values."""
        if self._file is not None:
            self._file.write(json.dumps({"step": step, **values}) + "\n")
            self._file.flush()
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)

    def __enter__(self) -> Tracker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
        if self._writer is not None:
            self._writer.close()
