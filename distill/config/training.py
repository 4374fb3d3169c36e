"""Settings that every kind of training has: optimizer, length, choice of the checkpoint, trackers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator
from typing_extensions import Self

from distill.config.base import (
    Fraction,
    NotNegative,
    Positive,
    PositiveInt,
    StrictConfig,
    setting,
)

Pooling = Literal["mean", "cls", "cls-before-pooler", "pooler", "last"]


class OptimizerConfig(StrictConfig):
    """AdamW and its schedule."""

    lr: Positive | None = setting(
        None, "peak learning rate; default: the loss's (7e-4 for most)", option="--lr", common=True
    )
    betas: tuple[Fraction, Fraction] = setting((0.9, 0.98), "AdamW's betas")
    eps: Positive = setting(1e-8, "AdamW's epsilon")
    weight_decay: NotNegative = setting(
        0.01, "weight decay, except of biases and LayerNorm weights", option="--weight-decay"
    )
    schedule: Literal["cosine", "linear", "constant"] = setting(
        "cosine", "learning rate after the warm-up", option="--schedule"
    )
    warmup: NotNegative = setting(
        0.06, "warm-up: below 1 a share of all steps, else a number of steps", option="--warmup"
    )
    max_grad_norm: NotNegative = setting(1.0, "norm that gradients are clipped to; 0: never")


class LoopConfig(StrictConfig):
    """Length of a training, its batches, and the machine."""

    epochs: PositiveInt | None = setting(
        None,
        "passes over the rows; default: 3, up to 20 below 200,000 rows",
        option="--epochs",
        common=True,
    )
    max_steps: PositiveInt | None = setting(
        None, "end after N steps, which the learning rate's schedule spans", option="--max-steps"
    )
    batch_size: PositiveInt | None = setting(
        None, "rows per step; default: the loss's (128 for most)", option="--batch-size", common=True
    )
    order: Literal["bucketed", "random"] = setting(
        "bucketed", "batches of rows of like length (fast), or of random rows", option="--order"
    )
    # An unquoted no is False in YAML.
    mixed_precision: Annotated[
        Literal["auto", "no", "bf16", "fp16"], BeforeValidator(lambda it: "no" if it is False else it)
    ] = setting("auto", "precision; auto is bf16 where that is faster", option="--mixed-precision")
    device: str = setting(
        "auto", "device: auto, cpu, cuda, cuda:1 ...", affects="machine", option="--device", metavar="NAME"
    )
    threads: PositiveInt | None = setting(
        None, "CPU threads; default: all cores", affects="machine", option="--threads"
    )
    checkpoint_every: PositiveInt | None = setting(
        None,
        "steps between checkpoints; default: at evaluations, at least a minute apart",
        affects="machine",
        option="--checkpoint-every",
    )

    def with_epochs(self, rows: int, default: int) -> Self:
        """Return a copy with the epochs filled in: ``default``, or as many as ``max_steps`` take.

        Args:
            rows: rows to train on.
            default: epochs where neither they nor ``max_steps`` are given.
        """
        if self.max_steps is not None:
            default = -(-self.max_steps // self._steps_per_epoch(rows))
        return self.model_copy(update={"epochs": self.epochs or default})

    def count_steps(self, rows: int) -> int:
        """Return the steps of a run over ``rows`` rows; epochs and batch size have to be filled in."""
        steps = (self.epochs or 1) * self._steps_per_epoch(rows)
        return min(steps, self.max_steps or steps)

    def _steps_per_epoch(self, rows: int) -> int:
        return -(-max(1, rows) // (self.batch_size or 1))


class SelectionConfig(StrictConfig):
    """Data that the best checkpoint is chosen on, evaluations in training, and early stopping."""

    every: PositiveInt | None = setting(
        None,
        "steps between evaluations; default: 20 evaluations a run (finetune: 10)",
        option="--eval-every",
    )
    patience: PositiveInt | None = setting(
        None, "stop after N evaluations without a new best", option="--patience"
    )
    patience_epochs: Positive | None = setting(
        None, "stop N epochs after the best", option="--patience-epochs"
    )
    data: str | None = setting(
        None,
        "development pairs or triplets, of a classifier labelled rows, to choose the best checkpoint on; "
        "default: held-out rows",
        option="--dev",
        common=True,
        metavar="FILE",
    )
    rows: list[str] | None = setting(
        None,
        "development rows such as split=dev, of --dev or else of finetune's file",
        option="--dev-rows",
        metavar="COLUMN=VALUE",
    )


class TrackingConfig(StrictConfig):
    """Logs."""

    log_every: PositiveInt = setting(50, "steps between lines of metrics.jsonl", affects="place")
    log_with: list[Literal["tensorboard", "wandb", "trackio"]] = setting(
        [], "tracker to log to, beside metrics.jsonl", affects="place", option="--log-with", metavar="NAME"
    )


OVERWRITE: Any = setting(
    False, "replace a run that is in the folder", affects="place", option="--overwrite", common=True
)
SEED: Any = setting(
    0,
    "seed of row order, held-out rows, new weights and dropout",
    affects="seed",
    option="--seed",
    common=True,
)
"""Settings that every kind of training has."""
