from __future__ import annotations

from distill.evaluation.evaluated_model import EvaluatedModel
from distill.evaluation.model import load_model
from distill.evaluation.result import EvaluationResult, ModelReport
from distill.evaluation.runner import evaluate, evaluate_suites
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
