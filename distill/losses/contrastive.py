"""Contrastive distillation: each student vector has to find its own teacher vector among others."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from distill.losses.base import DistillLoss, LossBatch
from distill.losses.queue import TeacherQueue


class CKDLoss(DistillLoss):
    r"""Contrastive knowledge distillation.

    .. math:: -\log \frac{e^{\cos(s_i,t_i)/\tau}}{\sum_{j \in batch} e^{\cos(s_i,t_j)/\tau}
              + \sum_{b \in queue} e^{\cos(s_i,b)/\tau}}

    The batch enters the queue (the paper's memory bank) after it was used, and the queue starts empty.

    Source: DistilCSE, Eq. 5 and 6. The paper names no temperature; its code learns one, starting at
    :math:`\tau = e^{-1}`, which is what leaving ``tau`` out does.

    Args:
        dimension: width d of a vector.
        queue: teacher vectors kept (Q in the paper).
        tau: a fixed temperature; None learns it.
    """

    queue: TeacherQueue

    def __init__(self, dimension: int, *, queue: int = 65536, tau: float | None = None) -> None:
        super().__init__()
        self.queue = TeacherQueue(queue, dimension)
        start = 1.0 if tau is None else -math.log(tau)
        self.logit_scale = nn.Parameter(torch.tensor(start), requires_grad=tau is None)

    def forward(self, batch: LossBatch) -> Tensor:
        """Return the loss of each row, shape (B,)."""
        queries = F.normalize(batch.students[0], dim=-1)
        positives = F.normalize(batch.others, dim=-1)
        cosines = torch.cat([queries @ positives.T, queries @ self.queue.content().T], dim=1)
        own = torch.arange(batch.offset, batch.offset + len(queries), device=queries.device)
        return F.cross_entropy(self.logit_scale.exp() * cosines, own, reduction="none")

    def end_step(self, targets: Tensor, rows: Tensor) -> None:
        """Put the teacher's vectors (G, d) of the step into the queue."""
        self.queue.push(targets, rows)

    def metrics(self) -> dict[str, float]:
        """Return the temperature."""
        return {"tau": math.exp(-float(self.logit_scale.detach()))}


class DisCoCKDLoss(DistillLoss):
    r"""Contrastive distillation against a memory bank alone.

    .. math:: -\log \frac{e^{\cos(s_i,t_i)/\tau}}
              {e^{\cos(s_i,t_i)/\tau} + \sum_{b \in queue} e^{\cos(s_i,b)/\tau}}

    Unlike in :class:`CKDLoss`, the other rows of the batch are no negatives, the queue starts full and the
    temperature is fixed. The batch enters the queue after it was used.

    Source: ConGen, section 4.1, baseline "CKD", after DisCo (Wu et al., 2021).

    Args:
        dimension: width d of a vector.
        queue: teacher vectors kept.
        tau: the temperature.
    """

    queue: TeacherQueue

    def __init__(self, dimension: int, *, queue: int, tau: float) -> None:
        super().__init__()
        self.queue = TeacherQueue(queue, dimension)
        self.tau = tau

    def forward(self, batch: LossBatch) -> Tensor:
        """Return the loss of each row, shape (B,)."""
        queries = F.normalize(batch.students[0], dim=-1)
        own = (queries * F.normalize(batch.targets, dim=-1)).sum(dim=-1, keepdim=True)
        cosines = torch.cat([own, queries @ self.queue.content().T], dim=1)
        return torch.logsumexp(cosines / self.tau, dim=1) - own.squeeze(1) / self.tau

    def end_step(self, targets: Tensor, rows: Tensor) -> None:
        """Put the teacher's vectors (G, d) of the step into the queue."""
        self.queue.push(targets, rows)
