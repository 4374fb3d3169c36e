"""Losses for classifiers that also compare layers with the live teacher's: PKD and TinyBERT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from distill.config.base import NotNegative
from distill.errors import ConfigError
from distill.losses.base import DistillLoss, LossBatch, Need, required
from distill.losses.classification import Soft, Tau, label_loss
from distill.losses.inside import Hidden, LMXKDLoss, Scale
from distill.losses.registry import register_loss


@register_loss(
    "pkd",
    summary="kd, and the [CLS] states of the layers between: for classifiers, needs the live teacher (PKD)",
    targets="soft labels alone",
    inside="classes",
    lr=2e-5,
    batch_size=64,
)
class PKDLoss(DistillLoss):
    r"""``kd``, and the distance of the [CLS] states of the student's layers to the teacher's.

    .. math:: L_{kd} + \beta\,\frac{1}{L-1}\sum_{l=1}^{L-1}
              \frac{1}{h}\|\hat h_S^l-\hat h_T^{g(l)}\|^2

    with states :math:`\hat h` of length one. The last layer is left out, as soft labels teach it. The
    teacher's layers are spread evenly: every second one of twelve for six (PKD-Skip).

    Source: Sun et al., 2019, Eq. 7 and 8; means over layers and dimensions are its code's. It searches
    :math:`\tau` among 5, 10 and 20, :math:`\lambda` among 0.2, 0.5 and 0.7, and :math:`\beta` among 10, 100,
    500 and 1000.

    Args:
        student_widths, teacher_widths: h of each layer, the embedding block's first; without the live teacher
            they are empty.
        tau, soft: see ``distill.losses.classification.KDLoss``.
        hidden: :math:`\beta`, weight of the states.

    Raises:
        ConfigError: if the widths differ, or there is no layer between.
    """

    def __init__(
        self,
        student_widths: Sequence[int],
        teacher_widths: Sequence[int],
        *,
        tau: Tau = 10.0,
        soft: Soft = 0.5,
        hidden: Annotated[NotNegative, "weight of the layers (--teacher online)"] = 100.0,
    ) -> None:
        super().__init__()
        self.tau, self.soft, self.hidden = tau, soft, hidden
        if hidden and (list(student_widths) != list(teacher_widths) or len(student_widths) < 3):
            raise ConfigError(
                f"pkd: {len(student_widths) - 1} layers of {student_widths[-1]} against the teacher's of "
                f"{teacher_widths[-1]}; take a student of two layers or more that is as wide as its teacher, "
                "such as layers:6, or --loss=tinybert"
            )

    @classmethod
    def needs(cls, settings: Mapping[str, Any]) -> set[Need]:
        """The live teacher, where its layers have a weight, and labels, unless soft labels are all."""
        return _needs(settings)

    def forward(self, batch: LossBatch) -> Tensor:
        """Return the loss of each row, shape (B,)."""
        loss = label_loss(batch, self.tau, self.soft)
        if self.hidden:
            pairs = required(batch.hidden)
            own, others = (
                F.normalize(torch.stack([states[:, 0] for states in layers[1:-1]]), dim=-1)
                for layers in (pairs.students, pairs.targets)
            )
            loss = loss + self.hidden * (own - others).square().mean(dim=(0, 2))
        return loss


@register_loss(
    "tinybert",
    summary="kd, and all layers through learned matrices: for classifiers, needs the live teacher (TinyBERT)",
    targets="soft labels alone",
    inside="classes",
    lr=2e-5,
    batch_size=64,
)
class TinyBERTLoss(LMXKDLoss):
    r"""``kd``, and the error of every layer through its own matrix, as in ``lmx-kd``.

    :math:`L_{kd}+\lambda\frac{1}{L+1}\sum_{l=0}^{L}\mathrm{MSE}(H_S^lW_l,H_T^{g(l)})`, where layer 0 is the
    embedding block.

    Source: Jiao et al., 2019, Eq. 8 to 11, in one stage, without its attention maps and its augmented data.
    The paper shares one matrix among the layers and adds their errors up; here it is one a layer and a mean.
    Its task-specific soft labels have temperature 1 and no labels beside.

    Args:
        student_widths, teacher_widths, seed: see ``distill.losses.inside.LMXKDLoss``.
        tau, soft: see ``distill.losses.classification.KDLoss``.
        hidden, scale: see ``distill.losses.inside.LMXKDLoss``.
    """

    def __init__(
        self,
        student_widths: Sequence[int],
        teacher_widths: Sequence[int],
        seed: int = 0,
        *,
        tau: Tau = 1.0,
        soft: Soft = 1.0,
        hidden: Hidden = 1.0,
        scale: Scale = "paper",
    ) -> None:
        super().__init__(student_widths, teacher_widths, seed, hidden=hidden, scale=scale)
        self.tau, self.soft = tau, soft

    @classmethod
    def needs(cls, settings: Mapping[str, Any]) -> set[Need]:
        """The live teacher, where its layers have a weight, and labels, unless soft labels are all."""
        return _needs(settings)

    def vector_loss(self, batch: LossBatch) -> Tensor:
        """Return the part of the loss beside the layers, shape (B,): that of soft labels and labels."""
        return label_loss(batch, self.tau, self.soft)


def _needs(settings: Mapping[str, Any]) -> set[Need]:
    weights: dict[Need, float] = {"live teacher": settings["hidden"], "labels": 1 - settings["soft"]}
    return {need for need, weight in weights.items() if weight}
