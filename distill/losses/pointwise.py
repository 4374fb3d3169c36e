"""Losses between each student vector and its own teacher vector, or the student's other view."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from distill.losses.base import DistillLoss, LossBatch
from distill.losses.registry import register_loss


@register_loss(
    "mse", summary="squared error to the teacher's vector, mean over dimensions", targets="as they are"
)
class MSELoss(DistillLoss):
    r"""Mean squared error, mean over dimensions: :math:`\frac{1}{d}\sum_j(s_j-t_j)^2`.

    Source: DistilCSE, Eq. 2 and 3; the mean over dimensions is its code's. The teacher's vectors are taken as
    they are, not normalised. SimTDE's baseline LRN-KD (section 4.3) is this loss for ``layers:2``.
    """

    def forward(self, batch: LossBatch) -> Tensor:
        """Return the loss of each row, shape (B,)."""
        return (batch.students[0] - batch.targets).square().mean(dim=-1)


@register_loss("cosine", summary="one minus the cosine to the teacher's vector")
class CosineLoss(DistillLoss):
    r"""One minus the cosine: :math:`1-\cos(s,t)`.

    For vectors of length one it is half of ``L2Loss`` and :math:`d/2` times ``MSELoss``.
    """

    def forward(self, batch: LossBatch) -> Tensor:
        """Return the loss of each row, shape (B,)."""
        return 1 - F.cosine_similarity(batch.students[0], batch.targets, dim=-1)


@register_loss(
    "kl", summary="divergence of the softmax over dimensions from the teacher's", targets="as they are"
)
class KLLoss(DistillLoss):
    r"""Divergence of vectors as distributions: :math:`KL(\mathrm{softmax}(t)\,\|\,\mathrm{softmax}(s))`.

    Source: SimTDE, section 4.3, one of the output losses that its squared error is compared with. The paper
    gives no formula; the softmax over dimensions, at temperature 1, is an inference.
    """

    def forward(self, batch: LossBatch) -> Tensor:
        """Return the loss of each row, shape (B,)."""
        has, wanted = (F.log_softmax(one, dim=-1) for one in (batch.students[0], batch.targets))
        return F.kl_div(has, wanted, reduction="none", log_target=True).sum(dim=-1)


@register_loss("l2", summary="squared distance of unit vectors")
class L2Loss(DistillLoss):
    r"""Squared distance of unit vectors: :math:`\|t-s\|^2`.

    Source: ConGen, section 4.2, baseline "L2".
    """

    def forward(self, batch: LossBatch) -> Tensor:
        """Return the loss of each row, shape (B,)."""
        return _squared_distance(_unit(batch.targets), _unit(batch.students[0]))


@register_loss("dual-l2", summary="l2 of two views", views=2)
class DualL2Loss(DistillLoss):
    r"""Squared distances of both views' unit vectors to the teacher's: :math:`\|t-s_1\|^2+\|t-s_2\|^2`.

    Source: ConGen, section 4.2, baseline "Making monolingual" (Dual-L2).
    """

    def forward(self, batch: LossBatch) -> Tensor:
        """Return the loss of each row, shape (B,)."""
        target = _unit(batch.targets)
        first, second = (_unit(view) for view in batch.students)
        return _squared_distance(target, first) + _squared_distance(target, second)


@register_loss("skd", summary="dual-l2, and the distance of the views from each other", views=2)
class SKDLoss(DistillLoss):
    r"""``DualL2Loss`` plus the squared distance of the views from each other: :math:`\|s_1-s_2\|^2`.

    Source: ConGen, section 4.2, baseline "SKD".
    """

    def forward(self, batch: LossBatch) -> Tensor:
        """Return the loss of each row, shape (B,)."""
        target = _unit(batch.targets)
        first, second = (_unit(view) for view in batch.students)
        return (
            _squared_distance(target, first)
            + _squared_distance(target, second)
            + _squared_distance(first, second)
        )


def _unit(vectors: Tensor) -> Tensor:
    return F.normalize(vectors, dim=-1)


def _squared_distance(a: Tensor, b: Tensor) -> Tensor:
    return (a - b).square().sum(dim=-1)
