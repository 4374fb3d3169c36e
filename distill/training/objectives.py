"""Objectives: map a batch to this process's share of its mean loss."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from distill.data.collate import Batch
from distill.data.dataset import DistillDataset
from distill.data.source import Share
from distill.losses.base import DistillLoss, LossBatch
from distill.reaugkd.head import LabelHead
from distill.training.distributed import gather_step
from distill.training.intermediate import Inside

_ROWS_AT_ONCE = 8192


class Objective:
    """Objective of a training.

    Attributes:
        module: parameters and state that are optimised, moved and saved with the student.
    """

    module: nn.Module

    def begin_step(self, batch: Batch) -> None:
        """Called before the student encodes a batch."""

    def loss(self, vectors: Tensor, batch: Batch, share: Share) -> Tensor:
        """Return a scalar whose mean over all processes is the mean loss of the step's rows.

        Args:
            vectors: float32, shape (V * B, d); the student's vectors of the batch's texts, gradients on.
            batch: the batch, on the training device.
            share: this process's part of the step.
        """
        raise NotImplementedError

    def end_step(self, batch: Batch) -> None:
        """Called after the optimiser's step."""

    def restored(self) -> None:
        """Called after a checkpoint was loaded, to rebuild state that it does not hold."""

    def metrics(self) -> dict[str, float]:
        """Return numbers to log beside the loss."""
        return {}


class Distillation(Objective):
    """Loss between the student's vectors and the teacher's.

    Args:
        loss: the loss; a queue that starts full is filled.
        dataset: rows and targets.
        inside: outputs from inside the models that the loss reads.
    """

    def __init__(self, loss: DistillLoss, dataset: DistillDataset, inside: Sequence[Inside] = ()) -> None:
        self.module: DistillLoss = loss
        self._dataset, self._inside = dataset, inside
        if loss.queue is not None:
            for start in range(0, len(dataset.queue_rows), _ROWS_AT_ONCE):
                rows = dataset.queue_rows[start : start + _ROWS_AT_ONCE].astype(np.int64)
                loss.queue.push(torch.from_numpy(dataset.targets_of(rows)), torch.from_numpy(rows))

    def begin_step(self, batch: Batch) -> None:
        """Show the loss the targets to come."""
        # The cache may hold half precision; losses are computed in float32 at any precision of the model.
        self.module.begin_step(batch.targets.float(), batch.rows)

    def loss(self, vectors: Tensor, batch: Batch, share: Share) -> Tensor:
        """Return this process's share of the mean loss."""
        targets = batch.targets.float()
        views = vectors.chunk(batch.texts)
        if self.module.needs_whole_batch:
            if share.processes > 1:
                views = tuple(gather_step(view, len(batch.rows), share) for view in views)
            step = LossBatch(tuple(views), targets, targets, rows=batch.rows)
            return self._of(step, batch, share).mean()
        here = slice(batch.offset, batch.offset + len(batch))
        step = LossBatch(tuple(views), targets[here], targets, rows=batch.rows[here])
        rows = self._of(step, batch, share)
        return rows[: batch.counted].sum() * (share.processes / len(targets))

    def _of(self, step: LossBatch, batch: Batch, share: Share) -> Tensor:
        for inside in self._inside:
            step = inside.add(step, batch, share)
        found: Tensor = self.module(step)
        return found

    def end_step(self, batch: Batch) -> None:
        """Show the loss the targets that were trained on."""
        self.module.end_step(batch.targets.float(), batch.rows)

    def restored(self) -> None:
        """Put the vectors of the rows in the queue back into it."""
        queue = self.module.queue
        if queue is None:
            return
        for start in range(0, len(queue), _ROWS_AT_ONCE):
            rows = queue.rows[: len(queue)][start : start + _ROWS_AT_ONCE].cpu().numpy()
            vectors = torch.from_numpy(self._dataset.targets_of(rows))
            queue.refill(start, vectors.to(queue.vectors.device))

    def metrics(self) -> dict[str, float]:
        """Return the loss's metrics."""
        return self.module.metrics()


class InfoNCE(nn.Module):
    r"""Each anchor against all positives and all hard negatives of a batch.

    .. math:: -\log \frac{e^{\cos(a_i,p_i)/\tau}}
              {\sum_j \left(e^{\cos(a_i,p_j)/\tau} + e^{\cos(a_i,n_j)/\tau}\right)}

    Source: DistilCSE, Eq. 7; without hard negatives SimCSE's.

    Args:
        tau: the temperature.
    """

    def __init__(self, tau: float) -> None:
        super().__init__()
        self.tau = tau

    def forward(self, anchors: Tensor, candidates: Tensor, left_out: Tensor | None = None) -> Tensor:
        """Return the loss of each anchor, shape (B,).

        Args:
            anchors: float32, shape (B, d).
            candidates: float32, shape (C, d); the positives in the order of their anchors, then the others.
            left_out: bool, shape (B, C); candidates that do not count for an anchor; None: all count.
        """
        cosines = F.normalize(anchors, dim=-1) @ F.normalize(candidates, dim=-1).T
        if left_out is not None:
            cosines = cosines.masked_fill(left_out, -torch.inf)
        own = torch.arange(len(anchors), device=anchors.device)
        return F.cross_entropy(cosines / self.tau, own, reduction="none")


class Contrast(Objective):
    """InfoNCE over the texts of a step.

    Args:
        loss: the loss.
        codes: int64, shape (rows, columns); a number for each text, the same for the same text. Candidates
            that are the anchor's own text, or a positive of that anchor in the batch, are left out of its
            loss; None keeps them all, as the formula has it.
    """

    def __init__(self, loss: InfoNCE, codes: NDArray[np.int64] | None) -> None:
        self.module = nn.Module()
        self._loss = loss
        if codes is not None:
            # A buffer follows the student to its device; a checkpoint need not hold what the file does.
            self.module.register_buffer("codes", torch.from_numpy(codes), persistent=False)
        self._is_masked = codes is not None

    def loss(self, vectors: Tensor, batch: Batch, share: Share) -> Tensor:
        """Return the mean loss of the step."""
        views = vectors.chunk(batch.texts)
        if share.processes > 1:
            views = tuple(gather_step(view, len(batch.rows), share) for view in views)
        left_out = self._left_out(batch.rows, batch.texts) if self._is_masked else None
        losses: Tensor = self._loss(views[0], torch.cat(views[1:]), left_out)
        return losses.mean()

    def _left_out(self, rows: Tensor, texts: int) -> Tensor:
        codes: Tensor = self.module.get_buffer("codes")[rows]
        positives = codes[:, min(1, codes.shape[1] - 1)]
        # Of one column, the positive is the same text again.
        others = [positives] if texts == 2 else [positives, codes[:, 2]]
        return no_negatives(codes[:, 0], positives, torch.cat(others))


def no_negatives(anchors: Tensor, positives: Tensor, candidates: Tensor) -> Tensor:
    """Return the candidates that are not negatives of an anchor, bool of shape (B, C).

    Those are the texts equal to the anchor or to a positive of it, its own positive in the row excepted.

    Args:
        anchors, positives: shape (B,); the number of each text, row by row.
        candidates: shape (C,); the first B of them are ``positives``.
    """
    # An anchor that stands in several rows has a positive in each of them.
    of_one_anchor = (anchors == anchors[:, None]).float()
    is_positive = (candidates == positives[:, None]).float()
    found = (candidates == anchors[:, None]) | (of_one_anchor @ is_positive > 0)
    # Rectangular: the diagonal is that of the positives.
    found.fill_diagonal_(False)
    return found


class CrossEntropy(Objective):
    """Cross entropy between a classifier's logits and the labels of rows.

    Args:
        head: the classifier; trained along.
        labels: int64, shape (rows,); the label of every row.
    """

    def __init__(self, head: LabelHead, labels: NDArray[np.int64]) -> None:
        self.module = head
        # A buffer follows the model to its device; a checkpoint need not hold what the file does.
        head.register_buffer("row_labels", torch.from_numpy(labels), persistent=False)

    def loss(self, vectors: Tensor, batch: Batch, share: Share) -> Tensor:
        """Return this process's share of the mean loss."""
        own = batch.rows[batch.offset : batch.offset + len(batch)]
        labels = self.module.get_buffer("row_labels")[own]
        losses = F.cross_entropy(self.module(vectors), labels, reduction="none")
        return losses[: batch.counted].sum() * (share.processes / len(batch.rows))
