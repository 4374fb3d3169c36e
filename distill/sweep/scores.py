"""What a suite says of a run's student, evaluated once and kept in the run's folder."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from distill.digests import data_digest, files_digest, model_digest
from distill.errors import ConfigError, DataError
from distill.evaluation.kept import Kept, flat_scores, read_kept
from distill.evaluation.runner import evaluate
from distill.evaluation.suites import SUITES
from distill.evaluation.tasks import Request
from distill.sweep.plan import PlannedRun


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
        if self.data is None and not SUITES[self.name].reads_sentences:
            raise ConfigError(f"the suite {self.name} reads files: give their folder with --data DIR")

    @cached_property
    def digest(self) -> str:
        """A digest of the data's files that the suite reads.

        Raises:
            DataError: if they cannot be used.
        """
        if SUITES[self.name].reads_sentences:
            return data_digest(self.data)
        return files_digest(SUITES[self.name].read(Request(models=(), data=self.data)).files)


def read_evaluation(folder: Path, suite: SuiteChoice) -> Kept | None:
    """Return the evaluation kept in a run's folder; None where there is none, or of other data."""
    kept = read_kept(folder, suite.name)
    try:
        if kept is None or kept.digest["data"] != suite.digest:
            return None
    except DataError:
        # Evaluating says what is wrong with the data.
        return None
    return kept if kept.digest["student"] == model_digest(str(folder)) else None


def evaluate_run(run: PlannedRun, suite: SuiteChoice) -> dict[str, float]:
    """Evaluate a finished run's student by itself, keep that in its folder and return the scores.

    Its teacher's turn comes once for all students of a sweep; only ``fidelity``, which compares the two,
    takes it now.

    Raises:
        DistillError, EmbedCacheError: as :func:`distill.evaluation.runner.evaluate`.
    """
    from distill.training.device import cpu_threads

    config = run.config
    compared = suite.name == "fidelity"
    with cpu_threads(config.training.threads):
        result = evaluate(
            run.folder,
            suite=suite.name,
            data=suite.data,
            beside_teacher=compared,
            cache=config.cache if compared else None,
            device=config.training.device,
            keep=True,
        )
    return flat_scores(suite.name, result.models[-1])
