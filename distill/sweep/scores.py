"""What a suite says of a run's student, evaluated once and kept in the run's folder."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from distill.digests import data_digest
from distill.errors import ConfigError
from distill.evaluation.runner import evaluate
from distill.evaluation.suites import SUITES
from distill.layout import BEST
from distill.sweep.plan import PlannedRun
from embedcache.fsio import read_sealed_json, write_sealed_json

AVERAGE = "average"
"""What that figure is called among the scores."""


@dataclass(frozen=True)
class SuiteChoice:
    """A suite and what it reads.

    Attributes:
        name: a key of :data:`distill.evaluation.suites.SUITES`.
        data: its folder or file; None where the suite has data of its own.
    """

    name: str
    data: Path | None = None

    def check(self) -> None:
        """Raise :class:`ConfigError` where there is no such suite or no such data."""
        if self.name not in SUITES:
            raise ConfigError(f"no suite is called {self.name!r}; choose one of {', '.join(SUITES)}")
        if self.data is not None and not self.data.exists():
            raise ConfigError(f"--data {self.data}: there is no such file or folder")
        if self.data is None and self.name == "sts":
            raise ConfigError("the suite sts reads files: give their folder with --data DIR")

    @cached_property
    def digest(self) -> str:
        """A digest of the suite's name and of the data's files."""
        return data_digest(self.data, self.name)


def read_scores(folder: Path, suite: SuiteChoice) -> dict[str, float] | None:
    """Return the scores kept in a run's folder; None where there are none, or of other data."""
    try:
        kept = read_sealed_json(_place(folder, suite))
    except (OSError, ValueError):
        return None
    return kept["scores"] if kept.get("digest") == suite.digest else None


def evaluate_run(run: PlannedRun, suite: SuiteChoice) -> dict[str, float]:
    """Evaluate a finished run's student, keep the scores in its folder and return them.

    Raises:
        DistillError, EmbedCacheError: as :func:`distill.evaluation.suites.evaluate`.
    """
    from distill.evaluation.model import load_model
    from distill.training.device import cpu_threads

    config, device = run.config, run.config.training.device
    with cpu_threads(config.training.threads):
        if suite.name == "fidelity":
            result = evaluate(
                run.folder, suite=suite.name, data=suite.data, cache=config.cache, device=device
            )
        else:
            # A model that is loaded stands for itself alone: its teacher is not loaded to be compared with.
            student = load_model(run.folder / BEST, device=device)
            result = evaluate([student], suite=suite.name, data=suite.data, device=device)
    facts = result.to_json()
    report = result.models[-1].to_json()
    scores = {AVERAGE: float(report[SUITES[suite.name].average])}  # type: ignore[arg-type]
    scores |= _by_set(report)
    write_sealed_json(_place(run.folder, suite), {"digest": suite.digest, "scores": scores, "result": facts})
    return scores


def _by_set(report: dict[str, Any]) -> dict[str, float]:
    """Return the score of each set a suite consists of, where it consists of several."""
    sets = report.get("sets")
    return {name: float(score["score"]) for name, score in sets.items()} if isinstance(sets, dict) else {}


def _place(folder: Path, suite: SuiteChoice) -> Path:
    return folder / f"eval-{suite.name}.json"
