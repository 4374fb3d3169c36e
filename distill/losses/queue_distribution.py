"""Losses that compare how student and teacher distribute similarity over a queue of teacher vectors."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from distill.losses.base import DistillLoss, LossBatch, Needs
from distill.losses.queue import TeacherQueue

Variant = Literal["paper", "code"]


class SEEDLoss(DistillLoss):
    r"""Cross-entropy between the teacher's and the student's distribution of similarity over a queue D.

    .. math:: p(z, \tau) = \mathrm{softmax}(z D^\top / \tau), \qquad
              -\sum_k p(t, \tau_T)_k \log p(s, \tau_S)_k

    The vectors are scaled to length one.

    Source: SEED (Fang et al., 2021), as ConGen takes it: ConGen with ``alpha`` 1.

    Args:
        dimension: width d of a vector.
        queue: teacher vectors kept (K in the paper); the queue starts full.
        tau: the student's temperature.
        teacher_tau: the teacher's temperature.
        variant: what D is while a batch is trained on. ``paper``: the batch's teacher vectors have entered
            the queue and the oldest have left, so D has K rows. ``code``: the batch's teacher vectors stand
            beside the K of the queue, whose oldest leave after the step.
    """

    queue: TeacherQueue

    def __init__(
        self, dimension: int, *, queue: int, tau: float, teacher_tau: float, variant: Variant = "paper"
    ) -> None:
        super().__init__()
        self.queue = TeacherQueue(queue, dimension)
        self.tau, self.teacher_tau, self.variant = tau, teacher_tau, variant

    def begin_step(self, targets: Tensor, rows: Tensor) -> None:
        """Put the teacher's vectors (G, d) of the step into the queue, where the paper does it."""
        if self.variant == "paper":
            self.queue.push(targets, rows)

    def end_step(self, targets: Tensor, rows: Tensor) -> None:
        """Put the teacher's vectors (G, d) of the step into the queue, where the code does it."""
        if self.variant == "code":
            self.queue.push(targets, rows)

    def forward(self, batch: LossBatch) -> Tensor:
        """Return the loss of each row, shape (B,)."""
        return self.divergences(batch)[0]

    def divergences(self, batch: LossBatch) -> list[Tensor]:
        """Return the cross-entropy of each view, each of shape (B,)."""
        with torch.no_grad():
            wanted = F.softmax(self._similarities(batch.targets, batch) / self.teacher_tau, dim=1)
        return [
            -(wanted * F.log_softmax(self._similarities(view, batch) / self.tau, dim=1)).sum(dim=1)
            for view in batch.students
        ]

    def _similarities(self, vectors: Tensor, batch: LossBatch) -> Tensor:
        queries = F.normalize(vectors, dim=-1)
        similarities = queries @ self.queue.content().T
        if self.variant == "paper":
            return similarities
        return torch.cat([similarities, queries @ F.normalize(batch.others, dim=-1).T], dim=1)


class ConGenLoss(SEEDLoss):
    r"""Control and generalise: :class:`SEEDLoss` of both views, weighted.

    .. math:: \alpha\, CE(p(t,\tau_T), p(s_1,\tau_S)) + (1-\alpha)\, CE(p(t,\tau_T), p(s_2,\tau_S))

    The teacher has encoded the first view alone, so that both views are drawn to one place.

    Source: ConGen, Eq. 1 to 5; there is no factor of the squared temperature.

    Args:
        dimension, queue, tau, teacher_tau, variant: see :class:`SEEDLoss`.
        alpha: what the first view counts for, 0 to 1.
    """

    needs: ClassVar[Needs] = Needs(views=2)

    def __init__(
        self,
        dimension: int,
        *,
        queue: int,
        tau: float,
        teacher_tau: float,
        variant: Variant = "paper",
        alpha: float = 0.5,
    ) -> None:
        super().__init__(dimension, queue=queue, tau=tau, teacher_tau=teacher_tau, variant=variant)
        self.alpha = alpha

    def forward(self, batch: LossBatch) -> Tensor:
        """Return the loss of each row, shape (B,)."""
        control, generalise = self.divergences(batch)
        return self.alpha * control + (1 - self.alpha) * generalise
