"""Distil small sentence encoders from cached teacher vectors.

>>> import distill
>>> run = distill.run(cache="./cache", student="layers:3", loss="mse")          # doctest: +SKIP
>>> scores = distill.evaluate(run.best, suite="fidelity", teacher="minilm-l6")  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from distill.errors import DistillError
from embedcache.lazy import lazy_attributes

if TYPE_CHECKING:
    from distill.evaluation.suites import evaluate
    from distill.training.run import Run, run

__all__ = ["DistillError", "Run", "evaluate", "run"]

__getattr__ = lazy_attributes(
    __name__,
    {
        "Run": "distill.training.run:Run",
        "evaluate": "distill.evaluation.suites:evaluate",
        "run": "distill.training.run:run",
    },
)
