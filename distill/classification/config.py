"""The configuration of the teaching of a classifier, as strict and as complete as that of a run."""

from __future__ import annotations

from pydantic import model_validator

from distill.config.base import Fraction, Positive, PositiveInt, Seed, StrictConfig, setting
from distill.config.models import LoopConfig, OptimizerConfig, Pooling, SelectionConfig, TrackingConfig
from distill.errors import ConfigError

KIND = "teach"
"""What the record of a teaching says it is, and the command it is made with."""

_EPOCHS = 3
_EVALUATIONS_A_RUN = 10
_SHARE = 0.1


class RowsConfig(StrictConfig):
    """Where the labelled texts are."""

    train: str = setting(
        ..., "file of labelled texts (TSV, CSV, JSONL, Parquet, Arrow)", option="--train", common=True
    )
    text: str | None = setting(
        None, "column of the text; default: the one that is plainly it", option="--text"
    )
    text2: str | None = setting(None, "column of the second text, for pairs", option="--text2")
    label: str = setting("label", "column of the label", option="--label")
    rows: list[str] | None = setting(
        None, "COLUMN=VALUE that the rows to train on have to have, as in split=train", option="--rows"
    )
    format: str | None = setting(
        None, "text, tsv, csv, jsonl, parquet, arrow; default: by the file's ending", option="--format"
    )


class TaughtConfig(StrictConfig):
    """The model that is taught, as far as it is not taken as it is."""

    layers: str | None = setting(
        None, "layers to keep: K or last:K, first:K, every:K, or 0,2,5; default: all", option="--layers"
    )
    pooling: Pooling | None = setting(
        None, "pooling of a plain model; default: as it says, else mean", option="--pooling"
    )
    max_length: PositiveInt | None = setting(
        None, "tokens after which a text is cut; default: as MODEL", option="--max-length"
    )
    dropout: Fraction = setting(0.1, "dropout while training, before the classifier too", option="--dropout")


class TeachOptimizerConfig(OptimizerConfig):
    """AdamW and its schedule."""

    lr: Positive = setting(2e-5, "peak learning rate", option="--lr", common=True)


class TeachLoopConfig(LoopConfig):
    """How long, in what pieces and where."""

    epochs: PositiveInt | None = setting(
        None,
        "times that every row is trained on; default: 3; with max_steps, as many as they take",
        option="--epochs",
        common=True,
    )
    batch_size: PositiveInt = setting(32, "rows a step", option="--batch-size", common=True)
    limit: PositiveInt | None = setting(None, "take the first so many rows", option="--limit")


class TeachEvaluationConfig(SelectionConfig):
    """What the best checkpoint is chosen by."""

    data: str | None = setting(
        None,
        "development file, with the columns of train; default: train, see rows",
        option="--dev",
        common=True,
    )
    rows: list[str] | None = setting(
        None, "COLUMN=VALUE that the development rows have to have, as in split=dev", option="--dev-rows"
    )
    share: Fraction | None = setting(
        None,
        "share of the texts of train kept out of training to choose by; default: 0.1, or none "
        "where there are data or rows",
        option="--dev-share",
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

    start: str = setting(
        ..., "what is taught: a run's folder (its best student), a folder, a hub id, an alias", option="MODEL"
    )
    data: RowsConfig
    out: str | None = setting(
        None, "the run's folder; default: runs/MODEL-FILE-teach", affects="place", option="--out", common=True
    )
    overwrite: bool = setting(
        False,
        "replace a run that is in the folder already",
        affects="place",
        option="--overwrite",
        common=True,
    )
    seed: Seed = setting(
        0,
        "of the order of rows, the held-out ones, the classifier's weights and dropout",
        affects="seed",
        option="--seed",
        common=True,
    )
    student: TaughtConfig = TaughtConfig()
    optimizer: TeachOptimizerConfig = TeachOptimizerConfig()
    training: TeachLoopConfig = TeachLoopConfig()
    evaluation: TeachEvaluationConfig = TeachEvaluationConfig()
    tracking: TrackingConfig = TrackingConfig()

    @model_validator(mode="after")
    def _check(self) -> TeachConfig:
        if self.evaluation.has_set and self.evaluation.share:
            raise ConfigError(
                "a development set is given, and rows are to be held out beside it; leave one of them out",
                "evaluation.share",
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
