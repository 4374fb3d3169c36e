"""Configuration as the training loop reads it."""

from __future__ import annotations

from typing import Protocol

from distill.config.models import LoopConfig, OptimizerConfig, SelectionConfig, TrackingConfig


class TrainerConfig(Protocol):
    """Configuration as the training loop reads it."""

    @property
    def seed(self) -> int:
        """Seed of the order of rows and of dropout."""
        ...

    @property
    def optimizer(self) -> OptimizerConfig:
        """AdamW and its schedule."""
        ...

    @property
    def training(self) -> LoopConfig:
        """Length, batches and machine."""
        ...

    @property
    def evaluation(self) -> SelectionConfig:
        """Evaluations and early stopping."""
        ...

    @property
    def tracking(self) -> TrackingConfig:
        """Logs."""
        ...

    def to_yaml(self) -> str:
        """Return the configuration as YAML."""
        ...
