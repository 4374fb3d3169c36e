"""All losses by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distill.config import LossConfig
    from distill.losses.base import DistillLoss


@dataclass(frozen=True)
class LossDefaults:
    """Training settings a loss works well with; used wherever the user gave none.

    Attributes:
        lr: peak learning rate.
        batch_size: rows a step.
    """

    lr: float
    batch_size: int


LOSS_DEFAULTS = {
    "mse": LossDefaults(lr=7e-4, batch_size=128),
    "cosine": LossDefaults(lr=7e-4, batch_size=128),
    "ckd": LossDefaults(lr=7e-4, batch_size=128),
}


def make_loss(config: LossConfig, dimension: int) -> DistillLoss:
    """Return the loss ``config`` names, for vectors of width ``dimension``."""
    from distill.losses.contrastive import CKDLoss
    from distill.losses.pointwise import CosineLoss, MSELoss

    if config.name == "ckd":
        return CKDLoss(dimension, bank=config.bank or 0, tau=config.tau)
    return MSELoss() if config.name == "mse" else CosineLoss()
