"""The configuration of the teaching of a classifier, as strict and as complete as that of a run."""

from __future__ import annotations

from pydantic import Field, model_validator

from distill.config import LoopConfig, OptimizerConfig, TrackingConfig
from distill.config_sources import LOOP_KEYS
from distill.finetune_config import Pooling
from distill.selection_config import SelectionConfig
from distill.strict_config import Fraction, Positive, PositiveInt, Seed, StrictConfig

KIND = "teach"
"""What the record of a teaching says it is, and the command it is made with."""

_EPOCHS = 3
_EVALUATIONS_A_RUN = 10
_SHARE = 0.1


class RowsConfig(StrictConfig):
    """Where the labelled texts are."""

    train: str = Field(description="file of labelled texts (TSV, CSV, JSONL, Parquet, Arrow)")
    text: str | None = Field(
        default=None, description="column of the text; default: the one that is plainly it"
    )
    text2: str | None = Field(default=None, description="column of the second text, for pairs")
    label: str = Field(default="label", description="column of the label")
    rows: list[str] | None = Field(
        default=None, description="COLUMN=VALUE that the rows to train on have to have, as in split=train"
    )
    format: str | None = Field(
        default=None, description="text, tsv, csv, jsonl, parquet, arrow; default: by the file's ending"
    )


class TaughtConfig(StrictConfig):
    """The model that is taught, as far as it is not taken as it is."""

    layers: str | None = Field(
        default=None, description="layers to keep: K or last:K, first:K, every:K, or 0,2,5; default: all"
    )
    pooling: Pooling | None = Field(
        default=None, description="pooling of a plain model; default: as it says, else mean"
    )
    max_length: PositiveInt | None = Field(
        default=None, description="tokens after which a text is cut; default: as MODEL"
    )
    dropout: Fraction = Field(default=0.1, description="dropout while training, before the classifier too")


class TeachOptimizerConfig(OptimizerConfig):
    """AdamW and its schedule."""

    lr: Positive = Field(default=2e-5, description="peak learning rate")


class TeachLoopConfig(LoopConfig):
    """How long, in what pieces and where."""

    epochs: PositiveInt | None = Field(
        default=None,
        description="times that every row is trained on; default: 3; with max_steps, as many as they take",
    )
    batch_size: PositiveInt = Field(default=32, description="rows a step")
    limit: PositiveInt | None = Field(default=None, description="take the first so many rows")


class TeachEvaluationConfig(SelectionConfig):
    """What the best checkpoint is chosen by."""

    data: str | None = Field(
        default=None, description="development file, with the columns of train; default: train, see rows"
    )
    rows: list[str] | None = Field(
        default=None, description="COLUMN=VALUE that the development rows have to have, as in split=dev"
    )
    share: Fraction | None = Field(
        default=None,
        description="share of the texts of train kept out of training to choose by; default: 0.1, or none "
        "where there are data or rows",
    )

    @property
    def has_set(self) -> bool:
        """Whether there is a development set."""
        return self.data is not None or bool(self.rows)

    @property
    def held_out(self) -> float:
        """The share of the texts that is kept out of training."""
        if self.share is not None:
            return self.share
        return 0.0 if self.has_set else _SHARE


class TeachConfig(StrictConfig):
    """Everything the teaching of a classifier depends on."""

    start: str = Field(
        description="what is taught: a run's folder (its best student), a folder, a hub id, an alias"
    )
    data: RowsConfig
    out: str | None = Field(default=None, description="the run's folder; default: runs/MODEL-FILE-teach")
    overwrite: bool = Field(default=False, description="replace a run that is in the folder already")
    seed: Seed = Field(
        default=0, description="of the order of rows, the held-out ones, the classifier's weights and dropout"
    )
    student: TaughtConfig = TaughtConfig()
    optimizer: TeachOptimizerConfig = TeachOptimizerConfig()
    training: TeachLoopConfig = TeachLoopConfig()
    evaluation: TeachEvaluationConfig = TeachEvaluationConfig()
    tracking: TrackingConfig = TrackingConfig()

    @model_validator(mode="after")
    def _check(self) -> TeachConfig:
        if self.evaluation.has_set and self.evaluation.share:
            raise ValueError(
                "evaluation.share: a development set is given, and rows are to be held out beside it; leave "
                "one of them out"
            )
        return self

    def resolved(self, rows: int) -> TeachConfig:
        """Return the configuration with every default that depends on the data filled in.

        Args:
            rows: rows to train on, held-out ones left out.
        """
        training = self.training.with_epochs(rows, _EPOCHS)
        every = self.evaluation.every or max(1, training.count_steps(rows) // _EVALUATIONS_A_RUN)
        evaluation = self.evaluation.model_copy(update={"every": every, "share": self.evaluation.held_out})
        return self.model_copy(update={"training": training, "evaluation": evaluation})


TEACH_SHORT_KEYS = {
    "train": "data.train",
    "text": "data.text",
    "text2": "data.text2",
    "label": "data.label",
    "rows": "data.rows",
    "format": "data.format",
    "layers": "student.layers",
    "pooling": "student.pooling",
    "max_length": "student.max_length",
    "dropout": "student.dropout",
    "dev_rows": "evaluation.rows",
    "dev_share": "evaluation.share",
    **LOOP_KEYS,
}
"""Names without their group, as flags and keyword arguments have them, and the keys they stand for."""
