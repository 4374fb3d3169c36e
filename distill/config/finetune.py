"""Configuration of a fine-tuning on triples, pairs, sentences or labels."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from distill.config.base import (
    Fraction,
    NotNegative,
    Positive,
    PositiveInt,
    Seed,
    StrictConfig,
    default_held_out,
    setting,
)
from distill.config.training import (
    OVERWRITE,
    SEED,
    LoopConfig,
    OptimizerConfig,
    Pooling,
    SelectionConfig,
    TrackingConfig,
)
from distill.errors import ConfigError

_EVALUATE_EVERY = 125
_EVALUATIONS_PER_RUN = 10
_LABELLED_SHARE = 0.1
# Epochs, rows per step and peak learning rate by default.
_CONTRAST, _LABELS = (5, 128, 1e-5), (3, 32, 2e-5)


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
    layers: str | None = setting(
        None,
        "layers to keep: K or last:K, first:K, every:K, or 0,2,5; default: all",
        option="--layers",
        metavar="WHICH",
    )
    max_length: PositiveInt | None = setting(
        None,
        "tokens after which a text is cut in training, with --labels also in the student; default: START's",
        option="--max-length",
    )
    dropout: Fraction = setting(0.1, "dropout in training", option="--dropout")


class ContrastiveConfig(StrictConfig):
    """InfoNCE, the loss on triples, pairs and sentences."""

    tau: Positive = setting(0.05, "temperature", option="--tau")
    duplicates: Literal["leave-out", "keep"] = setting(
        "leave-out",
        "candidates of a batch with the same text as an anchor or its positive: left out of its negatives, "
        "or kept as the formula has it",
    )


class FinetuneOptimizerConfig(OptimizerConfig):
    """AdamW and its schedule, with the defaults of a fine-tuning."""

    lr: Positive | None = setting(
        None, "peak learning rate; default: 1e-5, with --labels 2e-5", option="--lr", common=True
    )


class FinetuneLoopConfig(LoopConfig):
    """Length of a fine-tuning, its batches, the machine, and the rows."""

    epochs: PositiveInt | None = setting(
        None, "passes over the rows; default: 5, with --labels 3", option="--epochs", common=True
    )
    batch_size: PositiveInt | None = setting(
        None, "rows per step; default: 128, with --labels 32", option="--batch-size", common=True
    )
    limit: PositiveInt | None = setting(None, "read at most N rows", option="--limit")


class FinetuneEvaluationConfig(SelectionConfig):
    """Data that the best checkpoint is chosen on."""

    held_out: NotNegative | None = setting(
        None,
        "anchors or labelled texts kept out of training, below 1 a share; default: 2 %, at most 1000, with "
        "--labels 0.1",
        option="--held-out",
    )

    @property
    def has_set(self) -> bool:
        """True if there is a development set."""
        return self.data is not None or bool(self.rows)


class FinetuneConfig(StrictConfig):
    """Configuration of a fine-tuning."""

    start: str = setting(
        ...,
        "model to fine-tune: folder of a run (its best student), another folder, hub id or alias",
        option="START",
        metavar="SPEC",
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
    labels: str | None = setting(
        None,
        "instead: labelled texts or pairs of texts, for a classifier",
        option="--labels",
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
    text: str | None = setting(
        None,
        "with --labels: column of the text; default: the only candidate",
        option="--text",
        metavar="COLUMN",
    )
    text2: str | None = setting(
        None, "with --labels: column of the second text of pairs", option="--text2", metavar="COLUMN"
    )
    label: str = setting("label", "with --labels: column of the label", option="--label", metavar="COLUMN")
    rows: list[str] | None = setting(
        None, "with --labels: train on rows such as split=train", option="--rows", metavar="COLUMN=VALUE"
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
    overwrite: bool = OVERWRITE
    seed: Seed = SEED
    student: FinetuneStudentConfig = FinetuneStudentConfig()
    loss: ContrastiveConfig = ContrastiveConfig()
    optimizer: FinetuneOptimizerConfig = FinetuneOptimizerConfig()
    training: FinetuneLoopConfig = FinetuneLoopConfig()
    evaluation: FinetuneEvaluationConfig = FinetuneEvaluationConfig()
    tracking: TrackingConfig = TrackingConfig()

    @property
    def file(self) -> str:
        """The file of texts."""
        return self.triples or self.sentences or self.labels or ""

    @model_validator(mode="after")
    def _check(self) -> FinetuneConfig:
        kinds = [name for name in ("triples", "sentences", "labels") if getattr(self, name) is not None]
        if len(kinds) != 1:
            raise ConfigError(
                f"one of triples, sentences and labels is needed, found {' and '.join(kinds) or 'none'}"
            )
        evaluation, held_out = self.evaluation, self.evaluation.held_out
        of_labels = {
            **{name: getattr(self, name) for name in ("text", "text2", "rows")},
            "label": self.label != "label",
            "evaluation.rows": evaluation.rows,
        }
        useless: dict[str, object] = {
            "triples": of_labels,
            "sentences": {**of_labels, "evaluation.held_out": held_out},
            "labels": {
                "columns": self.columns,
                "student.head": self.student.head != "none",
            },
        }[kinds[0]]
        if given := [name for name, value in useless.items() if value]:
            raise ConfigError(f"{', '.join(given)}: not for {kinds[0]}; leave it out")
        if self.labels is not None and evaluation.has_set and held_out:
            raise ConfigError("not beside a development set; leave one of the two out", "evaluation.held_out")
        if self.columns and (len(self.columns) > 1) != (self.triples is not None):
            wanted = "one, of the sentences" if self.sentences else "two or three, of the triples"
            raise ConfigError(f"found {', '.join(self.columns)}; expected {wanted}", "columns")
        if self.sentences is not None and not self.student.dropout:
            raise ConfigError(
                "without dropout a text and its positive are one vector, and nothing is learnt from "
                "sentences; leave it at 0.1",
                "student.dropout",
            )
        return self

    def count_held_out(self, distinct: int) -> int:
        """Return the number of distinct anchors, or labelled texts, to hold out."""
        evaluation, given = self.evaluation, self.evaluation.held_out
        if given is None and self.labels is None:
            no_use = self.sentences is not None or evaluation.has_set
            return 0 if no_use else default_held_out(distinct)
        if given is None:
            given = 0.0 if evaluation.has_set else _LABELLED_SHARE
        return round(given * distinct) if given < 1 else round(given)

    def resolved(self, rows: int, held_out: int) -> FinetuneConfig:
        """Return the configuration with every default that depends on the data filled in.

        Args:
            rows: rows to train on, held-out ones left out.
            held_out: anchors or labelled texts kept out of training.
        """
        epochs, batch_size, lr = _CONTRAST if self.labels is None else _LABELS
        training = self.training.model_copy(update={"batch_size": self.training.batch_size or batch_size})
        training = training.with_epochs(rows, epochs)
        steps = training.count_steps(rows)
        by_default = min(_EVALUATE_EVERY, -(-steps // _EVALUATIONS_PER_RUN))
        if self.labels is not None:
            by_default = max(1, steps // _EVALUATIONS_PER_RUN)
        evaluation = {"held_out": held_out, "every": self.evaluation.every or by_default}
        return self.model_copy(
            update={
                "optimizer": self.optimizer.model_copy(update={"lr": self.optimizer.lr or lr}),
                "training": training,
                "evaluation": self.evaluation.model_copy(update=evaluation),
            }
        )
