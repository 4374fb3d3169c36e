"""The configuration of a fine-tuning, as strict and as complete as that of a run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from distill.config import LoopConfig, OptimizerConfig, TrackingConfig
from distill.config_sources import LOOP_KEYS
from distill.selection_config import EvaluationConfig
from distill.strict_config import Fraction, Positive, PositiveInt, Seed, StrictConfig

Pooling = Literal["mean", "cls", "cls-before-pooler", "pooler", "last"]
_EPOCHS = 5
_EVALUATE_EVERY = 125
_EVALUATIONS_A_RUN = 10
FEWEST_HELD_OUT = 10
"""Held-out rows that a student can be scored on; fewer tell nothing."""


class FinetuneStudentConfig(StrictConfig):
    """The model to fine-tune, as far as it is not taken as it is."""

    pooling: Pooling | None = Field(
        default=None, description="pooling of a plain model; default: as it says, else mean"
    )
    head: Literal["none", "linear", "tanh"] = Field(
        default="none", description="head of the model's own width added to it: none, linear, linear and tanh"
    )
    drop_head: bool = Field(
        default=False, description="score and save the model without the head that was added"
    )
    max_length: PositiveInt | None = Field(
        default=None,
        description="tokens after which a text is cut while training; default: as START, whose length the "
        "student keeps",
    )
    dropout: Fraction = Field(default=0.1, description="dropout while training")


class ContrastiveConfig(StrictConfig):
    """InfoNCE."""

    tau: Positive = Field(default=0.05, description="temperature")
    duplicates: Literal["leave-out", "keep"] = Field(
        default="leave-out",
        description="candidates of a batch that are no negatives of an anchor, because they are the same "
        "text as it or as a positive of it: left out of its loss, or kept as the formula has it",
    )


class FinetuneOptimizerConfig(OptimizerConfig):
    """AdamW and its schedule."""

    lr: Positive = Field(default=1e-5, description="peak learning rate")


class FinetuneLoopConfig(LoopConfig):
    """How long, in what pieces and where."""

    epochs: PositiveInt | None = Field(
        default=None,
        description="times that every triple is trained on; default: 5; with max_steps, as many as they take",
    )
    batch_size: PositiveInt = Field(default=128, description="triples a step")
    order: Literal["length", "random"] = Field(
        default="length",
        description="of the triples: shuffled, those of like length in one batch (fast), or just shuffled",
    )
    limit: PositiveInt | None = Field(default=None, description="take the first so many triples")


class FinetuneConfig(StrictConfig):
    """Everything a fine-tuning depends on."""

    start: str = Field(
        description="what is fine-tuned: a run's folder (its best student), a folder, a hub id, an alias"
    )
    triples: str | None = Field(
        default=None,
        description="file of anchors, positives and hard negatives (TSV, CSV, JSONL, Parquet, Arrow)",
    )
    sentences: str | None = Field(
        default=None, description="file of texts, each of which is its own positive under another dropout"
    )
    columns: Annotated[list[str], Field(min_length=1, max_length=3)] | None = Field(
        default=None,
        description="columns of the file; default: anchor, positive, negative, or premise, entailment, "
        "contradiction; without the third: pairs",
    )
    format: str | None = Field(
        default=None, description="text, tsv, csv, jsonl, parquet, arrow; default: by the file's ending"
    )
    out: str | None = Field(default=None, description="the run's folder; default: runs/START-FILE-finetune")
    overwrite: bool = Field(default=False, description="replace a run that is in the folder already")
    seed: Seed = Field(
        default=0, description="of the order of triples, the held-out ones, a new head's weights and dropout"
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
            raise ValueError(f"columns: {', '.join(self.columns)} given, expected {wanted}")
        if self.columns and len(set(self.columns)) < count:
            raise ValueError(f"columns: {', '.join(self.columns)} given; name each column once")
        if self.sentences is not None and not self.student.dropout:
            raise ValueError(
                "student.dropout: without dropout a text and its positive are one vector, and nothing is "
                "learnt from sentences; leave it at 0.1"
            )
        if self.sentences is not None and self.evaluation.held_out:
            raise ValueError(
                "evaluation.held_out: sentences without positives cannot be scored on; leave it out, and "
                "give a development set with --dev"
            )
        if self.student.drop_head and self.student.head == "none":
            raise ValueError("student.drop_head: no head is added; add one with --head tanh, or leave it out")
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
        every = evaluation.every or min(_EVALUATE_EVERY, -(-steps // _EVALUATIONS_A_RUN))
        return self.model_copy(
            update={
                "training": training,
                "evaluation": evaluation.model_copy(update={"held_out": held_out, "every": every}),
            }
        )


FINETUNE_SHORT_KEYS = {
    "pooling": "student.pooling",
    "head": "student.head",
    "drop_head": "student.drop_head",
    "max_length": "student.max_length",
    "dropout": "student.dropout",
    "tau": "loss.tau",
    "held_out": "evaluation.held_out",
    **LOOP_KEYS,
}
"""Names without their group, as flags and keyword arguments have them, and the keys they stand for."""
