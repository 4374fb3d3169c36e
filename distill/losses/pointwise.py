"""Losses that compare each student vector with its own teacher vector."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from distill.losses.base import DistillLoss


class MSELoss(DistillLoss):
    r"""Mean squared error, mean over rows and dimensions: :math:`\frac{1}{Bd}\sum_{ij}(s_{ij}-t_{ij})^2`.

    Source: DistilCSE, stage 1 "KD"; the teacher's vectors are taken as they are, not normalised.
    """

    def forward(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Return the loss of vectors (B, d)."""
        return F.mse_loss(student, teacher)


class CosineLoss(DistillLoss):
    r"""One minus the cosine, mean over rows: :math:`\frac{1}{B}\sum_i (1-\cos(s_i,t_i))`.

    For vectors of length one it is :math:`d/2` times :class:`MSELoss`.
    """

    def forward(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Return the loss of vectors (B, d)."""
        return (1 - F.cosine_similarity(student, teacher, dim=-1)).mean()
