"""Configuration of a fine-tuning on texts."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from distill.config.base import Fraction, Positive, PositiveInt, Seed, StrictConfig, setting
from distill.config.models import EvaluationConfig, LoopConfig, OptimizerConfig, Pooling, TrackingConfig
from distill.errors import ConfigError

_EPOCHS = 5
_EVALUATE_EVERY = 125
_EVALUATIONS_PER_RUN = 10
FEWEST_HELD_OUT = 10
"""Held-out rows that a student can be scored on; fewer tell nothing."""


class FinetuneStudentConfig(StrictConfig):
    """Changes to the model that is fine-tuned."""

    pooling: Pooling | None = setting(
        None, "pooling of a plain model; default: its own, else mean", option="--pooling"
    )
    head: Literal["none", "linear", "tanh"] = setting(
        "none", "head of the model's own width to add: none, linear, linear and tanh", option="--head"
    )
    drop_head: bool = setting(
        False, "score and save the model without the head that was added", option="--drop-head"
    )
    max_length: PositiveInt | None = setting(
        None,
        "tokens after which a text is cut in training; default: as START, whose length the student keeps",
        option="--max-length",
    )
    dropout: Fraction = setting(0.1, "dropout in training", option="--dropout")


class ContrastiveConfig(StrictConfig):
    """InfoNCE."""

    tau: Positive = setting(0.05, "temperature", option="--tau")
    duplicates: Literal["leave-out", "keep"] = setting(
        "leave-out",
        "candidates of a batch with the same text as an anchor or its positive: left out of its negatives, "
        "or kept as the formula has it",
    )


class FinetuneOptimizerConfig(OptimizerConfig):
    """AdamW and its schedule."""

    lr: Positive = setting(1e-5, "peak learning rate", option="--lr", common=True)


class FinetuneLoopConfig(LoopConfig):
    """Length of a training, its batches, and the machine."""

    epochs: PositiveInt | None = setting(
        None,
        "passes over the rows; default: 5; with max_steps, as many as needed",
        option="--epochs",
        common=True,
    )
    batch_size: PositiveInt = setting(128, "rows per step", option="--batch-size", common=True)
    order: Literal["length", "random"] = setting(
        "length", "batches of rows of like length (fast), or of random rows"
    )
    limit: PositiveInt | None = setting(None, "take the first N rows", option="--limit")


class FinetuneConfig(StrictConfig):
    """Configuration of a fine-tuning."""

    start: str = setting(
        ...,
        "model to fine-tune: folder of a run (its best student), another folder, hub id or alias",
        option="START",
    )
    triples: str | None = setting(
        None,
        "anchors, positives and hard negatives: TSV, CSV, JSONL, Parquet or Arrow; two columns are pairs",
        option="--triples",
        common=True,
        metavar="FILE",
    )
    sentences: str | None = setting(
        None,
        "instead: texts, each its own positive under another dropout",
        option="--sentences",
        common=True,
        metavar="FILE",
    )
    columns: Annotated[list[str], Field(min_length=1, max_length=3)] | None = setting(
        None,
        "column of the file, in the order anchor, positive, negative; default: those, or premise, "
        "entailment, contradiction",
        option="--column",
        metavar="NAME",
    )
    format: str | None = setting(None, "format of the file; default: by its ending", option="--format")
    out: str | None = setting(
        None,
        "folder of the run; default: runs/START-FILE-finetune",
        affects="place",
        option="--out",
        common=True,
        metavar="DIR",
    )
    overwrite: bool = setting(
        False, "replace a run that is in the folder", affects="place", option="--overwrite", common=True
    )
    seed: Seed = setting(
        0,
        "seed of row order, held-out rows, a new head's weights and dropout",
        affects="seed",
        option="--seed",
        common=True,
    )
    student: FinetuneStudentConfig = FinetuneStudentConfig()
    loss: ContrastiveConfig = ContrastiveConfig()
    optimizer: FinetuneOptimizerConfig = FinetuneOptimizerConfig()
    training: FinetuneLoopConfig = FinetuneLoopConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    tracking: TrackingConfig = TrackingConfig()

    @model_validator(mode="after")
    def _check(self) -> FinetuneConfig:
        if (self.triples is None) == (self.sentences is None):
            given = "neither" if self.triples is None else "both"
            raise ValueError(f"one of triples and sentences is needed, {given} is given")
        count = len(self.columns or [])
        if self.columns and (count > 1) != (self.triples is not None):
            wanted = "that of the sentences alone"
            if self.triples is not None:
                wanted = (
                    "those of anchors, positives and hard negatives, or for pairs the first two: that of the "
                    "positives is missing"
                )
            raise ConfigError(f"{', '.join(self.columns)} given, expected {wanted}", "columns")
        if self.columns and len(set(self.columns)) < count:
            raise ConfigError(f"{', '.join(self.columns)} given; name each column once", "columns")
        if self.sentences is not None and not self.student.dropout:
            raise ConfigError(
                "without dropout a text and its positive are one vector, and nothing is "
                "learnt from sentences; leave it at 0.1",
                "student.dropout",
            )
        if self.sentences is not None and self.evaluation.held_out:
            raise ConfigError(
                "sentences without positives cannot be scored on; leave it out, and "
                "give a development set with --dev",
                "evaluation.held_out",
            )
        if self.student.drop_head and self.student.head == "none":
            raise ConfigError(
                "no head is added; add one with --head tanh, or leave it out", "student.drop_head"
            )
        return self

    def resolved(self, rows: int) -> FinetuneConfig:
        """Return the configuration with every default that depends on the data filled in.

        Args:
            rows: triples or sentences there are.
        """
        evaluation = self.evaluation
        held_out = evaluation.held_out
        if held_out is None:
            held_out = min(1000, rows // 50)
            # Of fewer nothing could be told.
            if self.sentences is not None or evaluation.data is not None or held_out < FEWEST_HELD_OUT:
                held_out = 0
        training = self.training.with_epochs(rows - held_out, _EPOCHS)
        steps = training.count_steps(rows - held_out)
        every = evaluation.every or min(_EVALUATE_EVERY, -(-steps // _EVALUATIONS_PER_RUN))
        return self.model_copy(
            update={
                "training": training,
                "evaluation": evaluation.model_copy(update={"held_out": held_out, "every": every}),
            }
        )
