"""What a loss is: a module from student and teacher vectors to one number."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn


class DistillLoss(nn.Module, ABC):
    """Base of all losses.

    Whatever a loss learns or remembers (a temperature, a bank) is a parameter or buffer of it, so that it is
    optimised and saved with the student.
    """

    @abstractmethod
    def forward(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Return the mean loss of a batch, a float32 scalar.

        Args:
            student: float32, shape (B, d); the student's vectors, gradients on.
            teacher: float32, shape (B, d); the cached vectors of the same rows.
        """

    def after_step(self, teacher: Tensor) -> None:
        """Learn of the batch that was just trained on; called once a step, after the optimiser."""

    def metrics(self) -> dict[str, float]:
        """Return numbers worth logging beside the loss."""
        return {}
