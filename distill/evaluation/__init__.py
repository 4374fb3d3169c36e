"""Evaluation: suites, anything that can be evaluated, intervals, comparisons, leaderboards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embedcache.lazy import lazy_attributes

if TYPE_CHECKING:
    from distill.evaluation.models import Model
    from distill.evaluation.result import Evaluation, Figure, SuiteResult
    from distill.evaluation.runner import evaluate, evaluate_suites
    from distill.evaluation.task import register_suite

__all__ = ["Evaluation", "Figure", "Model", "SuiteResult", "evaluate", "evaluate_suites", "register_suite"]

__getattr__ = lazy_attributes(
    __name__,
    {
        "Evaluation": "distill.evaluation.result:Evaluation",
        "Figure": "distill.evaluation.result:Figure",
        "Model": "distill.evaluation.models:Model",
        "SuiteResult": "distill.evaluation.result:SuiteResult",
        "evaluate": "distill.evaluation.runner:evaluate",
        "evaluate_suites": "distill.evaluation.runner:evaluate_suites",
        "register_suite": "distill.evaluation.task:register_suite",
    },
)
