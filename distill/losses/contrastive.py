"""Contrastive distillation against a bank of teacher vectors."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from distill.losses.bank import TeacherBank
from distill.losses.base import DistillLoss


class CKDLoss(DistillLoss):
    r"""Contrastive knowledge distillation.

    .. math:: -\frac{1}{B}\sum_i \log \frac{e^{\cos(s_i,t_i)/\tau}}{\sum_{j \in B} e^{\cos(s_i,t_j)/\tau}
              + \sum_{b \in bank} e^{\cos(s_i,b)/\tau}}

    A student vector has to find its own teacher vector among those of the batch and of the bank. The batch
    enters the bank after it was used, and the bank starts empty.

    Source: DistilCSE, Eq. 5 and 6. The paper names no temperature; its code learns one, starting at
    :math:`\tau = e^{-1}`, which is what leaving ``tau`` out does.

    Args:
        dimension: width d of a vector.
        bank: teacher vectors kept (Q in the paper).
        tau: a fixed temperature; None learns it.
    """

    def __init__(self, dimension: int, *, bank: int = 65536, tau: float | None = None) -> None:
        super().__init__()
        self.bank = TeacherBank(bank, dimension)
        start = 1.0 if tau is None else -math.log(tau)
        self.logit_scale = nn.Parameter(torch.tensor(start), requires_grad=tau is None)

    def forward(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Return the loss of vectors (B, d)."""
        queries, positives = F.normalize(student, dim=-1), F.normalize(teacher, dim=-1)
        cosines = torch.cat([queries @ positives.T, queries @ self.bank.content().T], dim=1)
        labels = torch.arange(len(queries), device=queries.device)
        return F.cross_entropy(self.logit_scale.exp() * cosines, labels)

    def after_step(self, teacher: Tensor) -> None:
        """Put the batch's teacher vectors (B, d) into the bank."""
        self.bank.push(F.normalize(teacher, dim=-1))

    def metrics(self) -> dict[str, float]:
        """Return the temperature."""
        return {"tau": math.exp(-float(self.logit_scale.detach()))}
