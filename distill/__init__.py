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
    from distill.classification.teach import TeachRun, teach
    from distill.evaluation.runner import evaluate
    from distill.reaugkd.classifier import RetrievalAugmentedClassifier
    from distill.reaugkd.projection import Projection, project
    from distill.training.finetune import FinetuneRun, finetune
    from distill.training.run import Run, run

__all__ = [
    "DistillError",
    "FinetuneRun",
    "Projection",
    "RetrievalAugmentedClassifier",
    "Run",
    "TeachRun",
    "evaluate",
    "finetune",
    "project",
    "run",
    "teach",
]

__getattr__ = lazy_attributes(
    __name__,
    {
        "FinetuneRun": "distill.training.finetune:FinetuneRun",
        "Run": "distill.training.run:Run",
        "Projection": "distill.reaugkd.projection:Projection",
        "project": "distill.reaugkd.projection:project",
        "evaluate": "distill.evaluation.runner:evaluate",
        "finetune": "distill.training.finetune:finetune",
        "RetrievalAugmentedClassifier": "distill.reaugkd.classifier:RetrievalAugmentedClassifier",
        "TeachRun": "distill.classification.teach:TeachRun",
        "run": "distill.training.run:run",
        "teach": "distill.classification.teach:teach",
    },
)
