"""Finished run: its folder, configuration and record."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from distill.config.finetune import FinetuneConfig
from distill.config.models import RunConfig
from distill.layout import BEST, METRICS
from distill.record import RunRecord, TrainResult
from embedcache.notebook import data_frame, html_table

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class Run:
    """Finished run.

    Attributes:
        folder: the run's folder.
        config: the configuration with all defaults filled in.
        record: the run's record, as ``run.json`` has it.
        resumed: step that it was last resumed from; 0 where it was never interrupted.
    """

    folder: Path
    config: RunConfig | FinetuneConfig
    record: RunRecord
    resumed: int = 0

    def __repr__(self) -> str:
        """Return folder, student, data and scores in a few lines."""
        lines = [f"{name}: {value}" for name, value in self._shown().items()]
        return "\n  ".join([f"Run({str(self.folder)!r})", *lines])

    def _repr_html_(self) -> str:
        """Return the same as a table, as a notebook shows it."""
        return html_table(
            [{"": name, "run": value} for name, value in self._shown().items()], str(self.folder)
        )

    def _shown(self) -> dict[str, str]:
        record, result = self.record, self.record.result
        teachers = " + ".join(teacher.name for teacher in record.teachers)
        scores = ", ".join(f"{100 * value:.2f} {name}" for name, value in self.scores.items())
        shown = {
            "student": f"{record.student}, {record.parameters / 1e6:.2f} M parameters",
            "teacher": teachers,
            "corpus": f"{record.corpus.name}, {record.rows:,} rows trained on",
            "loss": record.loss if result is None else f"{record.loss} {result.final_loss:.6f}",
            "steps": "not finished" if result is None else f"{result.steps:,} of {result.total_steps:,}",
            "best": scores,
        }
        return {name: value for name, value in shown.items() if value}

    def to_frame(self) -> pd.DataFrame:
        """Return the metrics of the training as a pandas data frame, a row a report.

        Raises:
            MissingExtraError: if pandas is not installed.
        """
        lines = (self.folder / METRICS).read_text(encoding="utf-8").splitlines()
        return data_frame([json.loads(line) for line in lines])

    def __fspath__(self) -> str:
        """Return the folder: a run stands where a run's folder is taken."""
        return str(self.folder)

    @property
    def best(self) -> Path:
        """The folder of the best student; ``SentenceTransformer(str(run.best))`` opens it."""
        return self.folder / BEST

    @property
    def result(self) -> TrainResult:
        """The result of the training."""
        if self.record.result is None:
            raise ValueError(f"the run {self.folder} is not finished")
        return self.record.result

    @property
    def scores(self) -> dict[str, float]:
        """Scores of the best checkpoint by name; empty where there was nothing to choose by."""
        return self.record.scores

    @property
    def parameters(self) -> int:
        """Parameters of the student."""
        return self.record.parameters

    def facts(self) -> dict[str, object]:
        """Return the summary of the run and its result, as a JSON object."""
        record = self.record
        return {
            "run": str(self.folder),
            "best": str(self.best),
            "resumed": self.resumed,
            "teachers": [teacher.name for teacher in record.teachers],
            **record.model_dump(mode="json", include=set(_SHOWN)),
            **self.result.model_dump(mode="json"),
        }


_SHOWN = (
    *("parameters", "rows", "held_out", "selected", "skipped", "in_dev", "labels", "notes", "scores"),
    *("identity", "seeds"),
)
