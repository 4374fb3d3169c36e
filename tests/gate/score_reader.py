"""How the gate asks for scores: the one place to adapt where the interface of evaluation changes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Not figures of a suite, or not repeatable.
_PASSED_OVER = {"parameters", "megabytes", "dimension", "sentences_per_second", "intervals", "interval"}


def read_scores(suite: str, models: list[Path], teacher: str | None, data: Path) -> dict[str, float]:
    """Return "model/set/measure" -> figure of one suite evaluated by itself."""
    from distill.evaluation import evaluate

    result = evaluate(
        models, suite=suite, data=data, teacher=teacher, device="cpu", bootstrap=0, contamination=False
    )
    found: dict[str, float] = {}
    for model in result.to_json()["models"]:
        _flatten(model["name"], {k: v for k, v in model.items() if k not in _PASSED_OVER}, found)
    return found


def _flatten(name: str, value: Any, into: dict[str, float]) -> None:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key not in _PASSED_OVER:
                _flatten(f"{name}/{key}", inner, into)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        into[name] = float(value)
