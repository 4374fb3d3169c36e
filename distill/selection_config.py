"""What the best checkpoint is chosen by, and when a training stops: keys of every configuration."""

from __future__ import annotations

from pydantic import Field

from distill.strict_config import Count, Positive, PositiveInt, StrictConfig


class SelectionConfig(StrictConfig):
    """When a student is scored, and when its training stops."""

    every: PositiveInt | None = Field(
        default=None, description="steps between evaluations; default: 20 evaluations a run"
    )
    patience: PositiveInt | None = Field(
        default=None, description="stop after so many evaluations without a new best"
    )
    patience_epochs: Positive | None = Field(
        default=None, description="stop once the best is so many epochs old"
    )


class EvaluationConfig(SelectionConfig):
    """What the best checkpoint is chosen by."""

    data: str | None = Field(
        default=None,
        description="development set: TSV with subset, score, sentence1, sentence2, of a classifier "
        "labelled rows; default: held-out rows",
    )
    held_out: Count | None = Field(
        default=None, description="rows kept out of training; default: 2 %, at most 1000"
    )


class RunEvaluationConfig(EvaluationConfig):
    """What the best checkpoint is chosen by, that of a classifier too."""

    rows: list[str] | None = Field(
        default=None, description="kd, rkd-kd, reaugkd: COLUMN=VALUE that the rows of data have to have"
    )
    text: str | None = Field(
        default=None,
        description="kd, rkd-kd, reaugkd: column of the text in data; default: as the corpus was built, else "
        "the one that is plainly it",
    )
    text2: str | None = Field(
        default=None,
        description="the same of the second text, for pairs; default: as the corpus was built, else text2",
    )
    label: str | None = Field(
        default=None, description="the same of the label; default: as the corpus was built, else label"
    )

    @property
    def of_labelled(self) -> list[str]:
        """Which keys are given that only a development file of labelled rows has a use for."""
        return [f"evaluation.{key}" for key in ("rows", "text", "text2", "label") if getattr(self, key)]
