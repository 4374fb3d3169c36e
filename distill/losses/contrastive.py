"""Contrastive losses: pick a vector's own teacher vector, or those of its label, among others."""

from __future__ import annotations

import math
from typing import Annotated, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from distill.config.base import Count, Positive, PositiveInt
from distill.losses.base import DistillLoss, LossBatch
from distill.losses.log_sum_exp import log_sum_exp
from distill.losses.queue import TeacherQueue
from distill.losses.registry import register_loss

Duplicates: TypeAlias = Literal["leave-out", "keep"]
_DUPLICATES = "a row's own vector in the queue: leave it out of the negatives, or keep it as in the papers"


@register_loss(
    "ckd",
    summary="pick a row's teacher vector among those of this and past batches (DistilCSE)",
    full_queue=False,
)
class CKDLoss(DistillLoss):
    r"""Contrastive knowledge distillation.

    .. math:: -\log \frac{e^{\cos(s_i,t_i)/\tau}}{\sum_{j \in batch} e^{\cos(s_i,t_j)/\tau}
              + \sum_{b \in queue} e^{\cos(s_i,b)/\tau}}

    The batch enters the queue (the paper's memory bank) after it was used, and the queue starts empty. A row
    whose own teacher vector is still there from the epoch before has it among the negatives in the formula;
    unless ``duplicates`` is ``keep`` it is left out.

    Source: DistilCSE, Eq. 5 and 6. The paper names no temperature; its code learns one, starting at
    :math:`\tau = e^{-1}`, which is what leaving ``tau`` out does.

    Args:
        dimension: width d of a vector.
        queue: teacher vectors kept (Q in the paper).
        tau: a fixed temperature; None learns it.
        duplicates: ``leave-out``: a row's own vector in the queue is no negative; ``keep``: it is one.
    """

    queue: TeacherQueue

    def __init__(
        self,
        dimension: int,
        *,
        queue: Annotated[Count, "teacher vectors kept"] = 65536,
        tau: Annotated[Positive | None, "temperature; default: learned"] = None,
        duplicates: Annotated[Duplicates, _DUPLICATES] = "leave-out",
    ) -> None:
        super().__init__()
        self.queue = TeacherQueue(queue, dimension)
        start = 1.0 if tau is None else -math.log(tau)
        self.duplicates = duplicates
        self.logit_scale = nn.Parameter(torch.tensor(start), requires_grad=tau is None)

    def forward(self, batch: LossBatch) -> Tensor:
        """Return the loss of each row, shape (B,)."""
        queries = self.logit_scale.exp() * F.normalize(batch.students[0], dim=-1)
        own = (queries * F.normalize(batch.targets, dim=-1)).sum(dim=-1)
        keys = [F.normalize(batch.others, dim=-1), self.queue.content()]
        rows = batch.rows if self.duplicates == "leave-out" else None
        log_sums, _ = log_sum_exp(queries, keys, rows, [None, self.queue.content_rows()])
        return log_sums - own

    def metrics(self) -> dict[str, float]:
        """Return the temperature."""
        return {"tau": math.exp(-float(self.logit_scale.detach()))}


@register_loss(
    "disco-ckd", summary="pick a row's teacher vector among those of a queue (DisCo)", full_queue=True
)
class DisCoCKDLoss(DistillLoss):
    r"""Contrastive distillation against a memory bank alone.

    .. math:: -\log \frac{e^{\cos(s_i,t_i)/\tau}}
              {e^{\cos(s_i,t_i)/\tau} + \sum_{b \in queue} e^{\cos(s_i,b)/\tau}}

    Unlike in ``CKDLoss``, the other rows of the batch are not negatives, the queue starts full and the
    temperature is fixed. The batch enters the queue after it was used.

    Source: ConGen, section 4.2, baseline "CKD", after DisCo (Wu et al., 2021).

    Args:
        dimension: width d of a vector.
        queue: teacher vectors kept.
        tau: the temperature.
        duplicates: as of ``CKDLoss``.
    """

    queue: TeacherQueue

    def __init__(
        self,
        dimension: int,
        *,
        queue: Annotated[PositiveInt, "teacher vectors kept"] = 16384,
        tau: Annotated[Positive, "temperature"] = 0.05,
        duplicates: Annotated[Duplicates, _DUPLICATES] = "leave-out",
    ) -> None:
        super().__init__()
        self.queue = TeacherQueue(queue, dimension)
        self.tau, self.duplicates = tau, duplicates

    def forward(self, batch: LossBatch) -> Tensor:
        """Return the loss of each row, shape (B,)."""
        queries = F.normalize(batch.students[0], dim=-1) / self.tau
        own = (queries * F.normalize(batch.targets, dim=-1)).sum(dim=-1)
        rows = batch.rows if self.duplicates == "leave-out" else None
        log_sums, _ = log_sum_exp(queries, [self.queue.content()], rows, [self.queue.content_rows()])
        # The log of 1 + e^x, where x compares the queue with the own teacher vector.
        return F.softplus(log_sums - own)


def supervised_contrastive(vectors: Tensor, labels: Tensor, tau: float) -> Tensor:
    r"""Return the loss of every row that has another of its label beside it.

    .. math:: \frac{-1}{|P(i)|}\sum_{p \in P(i)}
              \log\frac{e^{z_i z_p/\tau}}{\sum_{a \ne i} e^{z_i z_a/\tau}}

    with the other rows :math:`P(i)` of i's label, and rows scaled to length one. The mean over them stands
    outside the logarithm, and i is not compared with itself.

    Source: Khosla et al., 2020, Eq. 2 (:math:`L_{out}`), which ReAugKD names for its projection; its own
    Eq. 4 leaves the mean out and has the row itself among the others, and is not followed in that.

    Args:
        vectors: float32, shape (N, d), of any length; gradients flow to them.
        labels: int64, shape (N,).
        tau: the temperature.

    Returns:
        float32, shape (A,); the rows of the A that have a partner, in their order. The other N - A rows have
        no loss, and are among those that the A are pushed from.
    """
    unit = F.normalize(vectors, dim=-1)
    itself = torch.eye(len(unit), dtype=torch.bool, device=unit.device)
    similarities = unit @ unit.T / tau
    alike = (labels[:, None] == labels) & ~itself
    partners = alike.sum(dim=1)
    log_sums = similarities.masked_fill(itself, -torch.inf).logsumexp(dim=1)
    to_partners = (similarities * alike).sum(dim=1)
    anchors = partners > 0
    return log_sums[anchors] - to_partners[anchors] / partners[anchors]
