"""Evaluation: suites, anything that can be evaluated, intervals, comparisons, leaderboards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embedcache.lazy import lazy_attributes

if TYPE_CHECKING:
    from distill.evaluation.evaluated_model import EvaluatedModel
    from distill.evaluation.model import load_model
    from distill.evaluation.old_runner import evaluate, evaluate_suites
    from distill.evaluation.result import EvaluationResult, ModelReport
    from distill.evaluation.suites import SUITES

__all__ = [
    "SUITES",
    "EvaluatedModel",
    "EvaluationResult",
    "ModelReport",
    "evaluate",
    "evaluate_suites",
    "load_model",
]

__getattr__ = lazy_attributes(
    __name__,
    {
        "EvaluatedModel": "distill.evaluation.evaluated_model:EvaluatedModel",
        "EvaluationResult": "distill.evaluation.result:EvaluationResult",
        "ModelReport": "distill.evaluation.result:ModelReport",
        "SUITES": "distill.evaluation.suites:SUITES",
        "evaluate": "distill.evaluation.old_runner:evaluate",
        "evaluate_suites": "distill.evaluation.old_runner:evaluate_suites",
        "load_model": "distill.evaluation.model:load_model",
    },
)
