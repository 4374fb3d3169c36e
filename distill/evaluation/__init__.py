from __future__ import annotations

from distill.evaluation.model import EvaluatedModel, load_model
from distill.evaluation.suites import SUITES, evaluate
from distill.evaluation.tasks import EvaluationResult, ModelReport

__all__ = ["SUITES", "EvaluatedModel", "EvaluationResult", "ModelReport", "evaluate", "load_model"]
