"""Distil small sentence encoders from cached teacher vectors.

>>> import distill
>>> run = distill.run(cache="./cache", student="layers:3", loss="mse")          # doctest: +SKIP
>>> scores = distill.evaluate(run.best, suite="fidelity", teacher="minilm-l6")  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distill.errors import DistillError

if TYPE_CHECKING:
    from distill.evaluation.suites import evaluate
    from distill.training.run import Run, run

__all__ = ["DistillError", "Run", "evaluate", "run"]

_LAZY = {
    "Run": ("distill.training.run", "Run"),
    "evaluate": ("distill.evaluation.suites", "evaluate"),
    "run": ("distill.training.run", "run"),
}


def __getattr__(name: str) -> Any:
    # Torch is loaded when first used, so that importing the package costs next to nothing.
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _LAZY[name]
    value = getattr(import_module(module), attribute)
    globals()[name] = value
    return value
