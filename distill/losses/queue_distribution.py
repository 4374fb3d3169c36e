"""Losses between the distributions of similarity of student and teacher over a queue of teacher vectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from distill.config.base import Fraction, Positive, PositiveInt
from distill.losses.base import DistillLoss, LossBatch, Need
from distill.losses.log_sum_exp import log_sum_exp
from distill.losses.queue import TeacherQueue
from distill.losses.registry import register_loss

Queue = Annotated[PositiveInt, "teacher vectors kept"]
Tau = Annotated[Positive, "the student's temperature"]
TeacherTau = Annotated[Positive, "the teacher's temperature"]
Variant = Annotated[
    Literal["paper", "code"], "when a batch enters the queue: before the step (paper), or after it (code)"
]


@register_loss("seed", summary="the teacher's distribution of similarity over a queue", full_queue=True)
class SEEDLoss(DistillLoss):
    r"""Cross-entropy between the teacher's and the student's distribution of similarity over a queue D.

    .. math:: p(z, \tau) = \mathrm{softmax}(z D^\top / \tau), \qquad
              -\sum_k p(t, \tau_T)_k \log p(s, \tau_S)_k

    The vectors are scaled to length one.

    Source: SEED (Fang et al., 2021), as ConGen takes it: Eq. 2 of that paper with :math:`\alpha = 1`.

    Args:
        dimension: width d of a vector.
        queue: teacher vectors kept (K in the paper); the queue starts full.
        tau: the student's temperature.
        teacher_tau: the teacher's temperature.
        variant: definition of D during a batch. ``paper``: the batch's teacher vectors have entered
            the queue and the oldest have left, so D has K rows. ``code``: the batch's teacher vectors stand
            beside the K of the queue, whose oldest leave after the step.
    """

    queue: TeacherQueue

    def __init__(
        self,
        dimension: int,
        *,
        queue: Queue = 16384,
        tau: Tau = 0.05,
        teacher_tau: TeacherTau = 0.05,
        variant: Variant = "paper",
    ) -> None:
        super().__init__()
        self.queue = TeacherQueue(queue, dimension)
        self.tau, self.teacher_tau, self.variant = tau, teacher_tau, variant

    @classmethod
    def needs(cls, settings: Mapping[str, Any]) -> set[Need]:
        """Rows apart, where a batch enters the queue after its step."""
        return {"rows apart"} if settings.get("variant") == "code" else set()

    def begin_step(self, targets: Tensor, rows: Tensor) -> None:
        """Put the teacher's vectors (G, d) of the step into the queue, where the paper does it."""
        if self.variant == "paper":
            self.queue.push(targets, rows)

    def end_step(self, targets: Tensor, rows: Tensor) -> None:
        """Put the teacher's vectors (G, d) of the step into the queue, where the code does it."""
        if self.variant == "code":
            super().end_step(targets, rows)

    def forward(self, batch: LossBatch) -> Tensor:
        """Return the loss of each row, shape (B,)."""
        return self.divergences(batch)[0]

    def divergences(self, batch: LossBatch) -> list[Tensor]:
        """Return the cross-entropy of each view, each of shape (B,)."""
        target = F.normalize(batch.targets, dim=-1) / self.teacher_tau
        views = [F.normalize(view, dim=-1) / self.tau for view in batch.students]
        log_sums, means = log_sum_exp(torch.cat([target, *views]), self._keys(batch))
        # The student's log-probabilities are similarities less a logarithm. Similarities weighted by the
        # teacher's distribution are the similarity to the vector that is so weighted.
        wanted = means[: len(target)]
        of_views = log_sums.view(1 + len(views), len(target))[1:]
        return [log_sum - (view * wanted).sum(dim=1) for view, log_sum in zip(views, of_views, strict=True)]

    def _keys(self, batch: LossBatch) -> list[Tensor]:
        beside = [F.normalize(batch.others, dim=-1)] if self.variant == "code" else []
        return [self.queue.content(), *beside]


@register_loss(
    "congen",
    summary="seed of two views, of which the teacher has encoded one (ConGen)",
    views=2,
    full_queue=True,
)
class ConGenLoss(SEEDLoss):
    r"""Control and generalise: ``SEEDLoss`` of both views, weighted.

    .. math:: \alpha\, CE(p(t,\tau_T), p(s_1,\tau_S)) + (1-\alpha)\, CE(p(t,\tau_T), p(s_2,\tau_S))

    The teacher has encoded the first view alone, so that both views are drawn to one place.

    Source: ConGen, Eq. 1 and 2; there is no factor of the squared temperature.

    Args:
        dimension, queue, tau, teacher_tau, variant: see ``SEEDLoss``.
        alpha: weight of the first view, 0 to 1.
    """

    def __init__(
        self,
        dimension: int,
        *,
        queue: Queue = 16384,
        tau: Tau = 0.05,
        teacher_tau: TeacherTau = 0.05,
        variant: Variant = "paper",
        alpha: Annotated[Fraction, "weight of the first view"] = 0.5,
    ) -> None:
        super().__init__(dimension, queue=queue, tau=tau, teacher_tau=teacher_tau, variant=variant)
        self.alpha = alpha

    def forward(self, batch: LossBatch) -> Tensor:
        """Return the loss of each row, shape (B,)."""
        control, generalise = self.divergences(batch)
        return self.alpha * control + (1 - self.alpha) * generalise
