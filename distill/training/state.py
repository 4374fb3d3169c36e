"""State of a training beside the weights, as checkpoints hold it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from distill.errors import TrainingError
from distill.training.distributed import mean_of

LAST_STEPS = 100
"""Steps that the final loss is the mean over, or all of a shorter run."""


@dataclass
class TrainState:
    """State of a training after a step.

    Attributes:
        step: steps done.
        epoch: the epoch it is in, from 0.
        batch: batches of this epoch that were trained on.
        rows: rows trained on.
        best_step: step of the best checkpoint.
        best_score: its selection score; None before the first, and where there is nothing to select by.
        since_best: evaluations since then.
        final_loss: mean loss over the last :data:`LAST_STEPS` steps.
        seconds: wall-clock seconds, evaluations and checkpoints included.
        evaluating: seconds of evaluations.
        saving: seconds of checkpoints.
        waited: seconds the step waited for data.
        stopped: whether patience ran out.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    rows: int = 0
    best_step: int = 0
    best_score: float | None = None
    since_best: int = 0
    final_loss: float | None = None
    seconds: float = 0.0
    evaluating: float = 0.0
    saving: float = 0.0
    waited: float = 0.0
    stopped: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return asdict(self)

    @property
    def rows_per_second(self) -> float:
        """Rows a second, evaluations and checkpoints left out."""
        return self.rows / max(self.seconds - self.evaluating - self.saving, 1e-9)


@dataclass
class RecentLosses:
    """The losses since the last report, left on their device: reading one a step would make a GPU wait.

    Attributes:
        processes: over how many processes a loss is averaged.
        mean: the mean that was taken last; None at first.
        last: the losses of the last :data:`LAST_STEPS` steps that were taken, in order.
    """

    processes: int = 1
    mean: float | None = None
    last: list[float] = field(default_factory=list)
    _losses: list[Tensor] = field(default_factory=list)

    def add(self, loss: Tensor) -> None:
        """Add the loss of one step, a scalar."""
        self._losses.append(loss)

    def tensor(self) -> Tensor:
        """Return the losses since the last report, the mean over all processes, on the CPU."""
        if not self._losses:
            return torch.empty(0)
        return mean_of(torch.stack(self._losses), self.processes).cpu()

    def restore(self, losses: Tensor, mean: float | None, last: Sequence[float]) -> None:
        """Go on from what :meth:`tensor` returned, which is on the device of the losses to come."""
        self._losses, self.mean, self.last = list(losses), mean, list(last)

    def check(self, step: int) -> list[float]:
        """Return the losses of the last steps, the last of them ``step``.

        Raises:
            TrainingError: if one is NaN or infinite; it names the first such step.
        """
        values: list[float] = self.tensor().tolist()
        for number, value in enumerate(values, start=step - len(values) + 1):
            if not math.isfinite(value):
                raise TrainingError(
                    f"the loss became {value} at step {number}: lower optimizer.lr, or use "
                    "training.mixed_precision=no; the best checkpoint so far is kept"
                )
        return values

    def take(self, step: int) -> float:
        """Return the mean of the losses since the last take, the last of them of ``step``, and start anew.

        Raises:
            TrainingError: as :meth:`check`.
        """
        values = self.check(step)
        self._losses = []
        self.last = [*self.last, *values][-LAST_STEPS:]
        self.mean = sum(values) / len(values) if values else math.nan
        return self.mean
