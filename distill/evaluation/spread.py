"""A figure over the seeds of a training: its mean and standard deviation."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Score:
    """Mean of a score over the seeds of a setting.

    Attributes:
        mean: the mean.
        std: the sample standard deviation (n - 1); None of a single run.
        n: how many runs it is over.
    """

    mean: float
    std: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float | None]) -> Score | None:
        """Return the score of the values that are there; None where none is."""
        there = [value for value in values if value is not None]
        if not there:
            return None
        return cls(statistics.fmean(there), statistics.stdev(there) if len(there) > 1 else None, len(there))

    def __str__(self) -> str:
        """Return mean and deviation with two decimals."""
        return self.text()

    def text(self, form: str = ".2f", between: str = " ") -> str:
        """Return mean and deviation, both as ``form`` has them, with ``between`` before the deviation."""
        return format(self.mean, form) + ("" if self.std is None else f"{between}± {self.std:{form}}")

    def to_json(self) -> dict[str, object]:
        """Return mean and deviation with 4 decimals, and the number of runs."""
        std = None if self.std is None else round(self.std, 4)
        return {"mean": round(self.mean, 4), "std": std, "n": self.n}
