"""Losses between relations among the rows of a batch: distances of pairs, angles of triples."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional as F

from distill.config.base import NotNegative
from distill.losses.base import DistillLoss, LossBatch
from distill.losses.registry import register_loss

# Rows whose differences to all others are held at once.
_ROWS_AT_ONCE = 16


Distance = Annotated[NotNegative, "weight of the distances"]
Angle = Annotated[NotNegative, "weight of the angles"]


@register_loss(
    "rkd",
    summary="the teacher's distances and angles among the rows of a batch",
    targets="as they are",
)
class RKDLoss(DistillLoss):
    r"""Relational knowledge distillation: the student's distances and angles follow the teacher's.

    .. math:: \lambda_D\, h(\psi_D(t_i,t_j), \psi_D(s_i,s_j))
              + \lambda_A\, h(\psi_A(t_i,t_j,t_k), \psi_A(s_i,s_j,s_k))

    with the Huber loss :math:`h`, the distance :math:`\psi_D` of a pair in units of the batch's mean
    distance, and the cosine :math:`\psi_A` of the angle at :math:`j`. A row's loss is the mean over the pairs
    it is the :math:`i` of and over the triples it is the :math:`j` of. The paper adds up; with means the
    batch's size does not change the balance. Rows are taken as they are, not normalised.

    Source: Park et al., 2019, the losses RKD-D and RKD-A; in the weights, RKD-DA for metric learning.

    Args:
        distance: weight of the distances.
        angle: weight of the angles; 0 spares the time and memory they take, which grow with B cubed.
    """

    needs_whole_batch = True

    def __init__(self, *, distance: Distance = 1.0, angle: Angle = 2.0) -> None:
        super().__init__()
        self.distance, self.angle = distance, angle

    def forward(self, batch: LossBatch) -> Tensor:
        """Return the loss of each row, shape (B,); zero where the batch has too few rows to relate."""
        student, target = batch.students[0], batch.targets
        loss = student.new_zeros(len(student)) + 0 * student.sum()
        if self.distance and len(student) > 1:
            loss = loss + self.distance * _distance_loss(student, target)
        if self.angle and len(student) > 2:
            loss = loss + self.angle * _angle_loss(student, target)
        return loss


class PairLoss(DistillLoss):
    """Error of the cosines between the rows of a batch: mean over the pairs that a row is in.

    Source: SimTDE, section 4.3, output losses that its squared error of vectors is compared with. The paper
    does not say which pairs; here all of the step.
    """

    needs_whole_batch = True

    def forward(self, batch: LossBatch) -> Tensor:
        """Return the loss of each row, shape (B,); zero where the batch has one row."""
        has, wanted = (_cosines(one) for one in (batch.students[0], batch.targets))
        # The diagonal is 1 in both, up to rounding.
        itself = torch.eye(len(has), dtype=torch.bool, device=has.device)
        return self.error(has - wanted).masked_fill(itself, 0).sum(dim=1) / max(len(has) - 1, 1)

    def error(self, differences: Tensor) -> Tensor:
        """Return the error of each difference of two cosines."""
        raise NotImplementedError


@register_loss("pair-mse", summary="squared error of the cosines between the rows of a batch")
class PairMSELoss(PairLoss):
    r"""Squared error of cosines: :math:`\frac{1}{B-1}\sum_{j\ne i}(\cos(s_i,s_j)-\cos(t_i,t_j))^2`."""

    def error(self, differences: Tensor) -> Tensor:
        """Return the squares."""
        return differences.square()


@register_loss("pair-mae", summary="absolute error of the cosines between the rows of a batch")
class PairMAELoss(PairLoss):
    r"""Absolute error of cosines: :math:`\frac{1}{B-1}\sum_{j\ne i}|\cos(s_i,s_j)-\cos(t_i,t_j)|`."""

    def error(self, differences: Tensor) -> Tensor:
        """Return the absolute values."""
        return differences.abs()


def _cosines(vectors: Tensor) -> Tensor:
    unit = F.normalize(vectors, dim=-1)
    return unit @ unit.T


def _distance_loss(student: Tensor, target: Tensor) -> Tensor:
    with torch.no_grad():
        wanted = _relative_distances(target)
    # The diagonal is 0 in both.
    huber = F.smooth_l1_loss(_relative_distances(student), wanted, reduction="none")
    return huber.sum(dim=1) / (len(student) - 1)


def _relative_distances(vectors: Tensor) -> Tensor:
    """Return the distances (B, B) of all pairs, in units of the mean over different rows."""
    first, second = torch.triu_indices(len(vectors), len(vectors), offset=1, device=vectors.device)
    distances = _lengths(vectors[first] - vectors[second])
    square = vectors.new_zeros(len(vectors), len(vectors)).index_put((first, second), distances)
    # Rows that are all alike have no distances to compare.
    mean = distances.mean().clamp_min(torch.finfo(vectors.dtype).tiny)
    return (square + square.T) / mean


def _angle_loss(student: Tensor, target: Tensor) -> Tensor:
    parts = []
    for start in range(0, len(student), _ROWS_AT_ONCE):
        corner = slice(start, start + _ROWS_AT_ONCE)
        with torch.no_grad():
            wanted = _cosines_at(target, corner)
        huber = F.smooth_l1_loss(_cosines_at(student, corner), wanted, reduction="none")
        # A leg with itself makes no angle; legs of length zero have been given cosine 0 in both.
        legs = torch.eye(len(student), dtype=torch.bool, device=student.device)
        parts.append(huber.masked_fill(legs, 0).sum(dim=(1, 2)))
    count = len(student)
    return torch.cat(parts) / ((count - 1) * (count - 2))


def _cosines_at(vectors: Tensor, corner: slice) -> Tensor:
    """Return the cosines (C, B, B) of the angles that all pairs make at each of the rows ``corner``."""
    legs = vectors[None] - vectors[corner, None]
    lengths = _lengths(legs)
    unit = legs / lengths.masked_fill(lengths == 0, 1)[..., None]
    return unit @ unit.transpose(1, 2)


def _lengths(vectors: Tensor) -> Tensor:
    """Return the lengths of the last dimension; that of a zero vector has gradient zero, not NaN."""
    squares = vectors.square().sum(dim=-1)
    zero = squares == 0
    return squares.masked_fill(zero, 1).sqrt().masked_fill(zero, 0)
