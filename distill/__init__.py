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
    from distill.evaluation.runner import evaluate
    from distill.reaugkd.classifier import RetrievalAugmentedClassifier
    from distill.reaugkd.projection import Projection, project
    from distill.report.compare import compare
    from distill.training.run import Run
    from distill.training.train import finetune, resume, run, train

__all__ = [
    "DistillError",
    "Projection",
    "RetrievalAugmentedClassifier",
    "Run",
    "compare",
    "evaluate",
    "finetune",
    "project",
    "resume",
    "run",
    "train",
]


def __dir__() -> list[str]:
    return sorted(__all__)


__getattr__ = lazy_attributes(
    __name__,
    {
        "Run": "distill.training.run:Run",
        "Projection": "distill.reaugkd.projection:Projection",
        "project": "distill.reaugkd.projection:project",
        "compare": "distill.report.compare:compare",
        "evaluate": "distill.evaluation.runner:evaluate",
        "finetune": "distill.training.train:finetune",
        "RetrievalAugmentedClassifier": "distill.reaugkd.classifier:RetrievalAugmentedClassifier",
        "resume": "distill.training.train:resume",
        "run": "distill.training.train:run",
        "train": "distill.training.train:train",
    },
)
