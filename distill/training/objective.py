"""What is minimised in a step: from a batch to the share of its mean loss that this process computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from distill.data.source import Share
from distill.losses.base import DistillLoss, LossBatch
from distill.training.processes import gather_rows

if TYPE_CHECKING:
    from torch import nn

    from distill.data.collate import Batch
    from distill.data.dataset import DistillDataset
    from distill.training.inside import Inside

_ROWS_AT_ONCE = 8192


class Objective(Protocol):
    """What a student is trained towards."""

    @property
    def module(self) -> nn.Module:
        """What is optimised, moved and saved with the student."""
        ...

    def begin_step(self, batch: Batch) -> None:
        """Learn of the batch that is about to be trained on."""
        ...

    def loss(self, vectors: Tensor, batch: Batch, share: Share) -> Tensor:
        """Return a scalar whose mean over all processes is the mean loss of the step's rows.

        Args:
            vectors: float32, shape (V * B, d); the student's vectors of the batch's texts, gradients on.
            batch: the batch, on the training device.
            share: which part of the step this process has.
        """
        ...

    def end_step(self, batch: Batch) -> None:
        """Learn of the batch that was just trained on."""
        ...

    def restored(self) -> None:
        """Find again what a checkpoint does not hold, after one was loaded."""
        ...

    def metrics(self) -> dict[str, float]:
        """Return numbers worth logging beside the loss."""
        ...


class Distillation:
    """Draws the student's vectors to the teacher's.

    Args:
        loss: the loss; where its queue starts full, it is filled.
        dataset: what is trained on.
        inside: what the loss is to see of the inside of the models.
    """

    def __init__(self, loss: DistillLoss, dataset: DistillDataset, inside: Sequence[Inside] = ()) -> None:
        self.module, self._dataset, self._inside = loss, dataset, inside
        if loss.queue is not None:
            for start in range(0, len(dataset.queue_rows), _ROWS_AT_ONCE):
                rows = dataset.queue_rows[start : start + _ROWS_AT_ONCE].astype(np.int64)
                loss.queue.push(torch.from_numpy(dataset.targets_of(rows)), torch.from_numpy(rows))

    def begin_step(self, batch: Batch) -> None:
        """Tell the loss which targets come."""
        # The cache may hold half precision; a loss is computed in float32 whatever the forward pass runs in.
        self.module.begin_step(batch.targets.float(), batch.rows)

    def loss(self, vectors: Tensor, batch: Batch, share: Share) -> Tensor:
        """Return this process's share of the mean loss; see :class:`Objective`."""
        targets = batch.targets.float()
        views = vectors.chunk(batch.texts)
        if self.module.needs_whole_batch:
            if share.processes > 1:
                views = tuple(gather_all(view, batch, share) for view in views)
            return self._of(self._looked_inside(LossBatch.alone(tuple(views), targets), batch, share)).mean()
        own = targets[batch.offset : batch.offset + len(batch)]
        rows = self._of(self._looked_inside(LossBatch(tuple(views), own, targets), batch, share))
        return rows[: batch.counted].sum() * (share.processes / len(targets))

    def restored(self) -> None:
        """Put the vectors of the rows that stand in the queue back into it."""
        queue = self.module.queue
        if queue is None:
            return
        for start in range(0, len(queue), _ROWS_AT_ONCE):
            rows = queue.rows[: len(queue)][start : start + _ROWS_AT_ONCE].cpu().numpy()
            vectors = torch.from_numpy(self._dataset.targets_of(rows))
            queue.refill(start, vectors.to(queue.vectors.device))

    def _looked_inside(self, step: LossBatch, batch: Batch, share: Share) -> LossBatch:
        for inside in self._inside:
            step = inside.add(step, batch, share)
        return step

    def _of(self, batch: LossBatch) -> Tensor:
        found: Tensor = self.module(batch)
        return found

    def end_step(self, batch: Batch) -> None:
        """Tell the loss which targets came."""
        self.module.end_step(batch.targets.float(), batch.rows)

    def metrics(self) -> dict[str, float]:
        """Return the loss's metrics."""
        return self.module.metrics()


def gather_all(vectors: Tensor, batch: Batch, share: Share) -> Tensor:
    """Return the vectors (G, d) of the whole step in the order of its rows; see :func:`gather_rows`."""
    counts = [Share(process, share.processes).of(len(batch.rows))[1] for process in range(share.processes)]
    return torch.cat(gather_rows(vectors, counts))
