"""The paths of a pipeline's file: all of them are relative to the folder that the file lies in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from distill.config.tree import merged, put
from embedcache.teacher.resolve import ALIASES

_PATHS = {
    "build": ("sources", "cache"),
    "run": ("cache", "out", "evaluation.data"),
    "finetune": ("triples", "sentences", "out", "evaluation.data"),
    "eval": ("data",),
    "export": ("out",),
}
_MODELS = {
    "build": ("teacher", "mask_model", "translators"),
    "run": ("student.spec", "teacher_model"),
    "finetune": ("start",),
    "eval": ("models", "teacher"),
    "export": ("model",),
}
TRAINS = ("run", "finetune")
"""The steps that train, whose settings may be laid over a recipe's."""


def placed(path: str, base: Path) -> str:
    """Return a path of a file in ``base``, as it is from here; ``-`` is standard input."""
    return path if path == "-" else str(base / Path(path).expanduser())


def with_places(steps: Mapping[str, Any], base: Path, out: Path) -> dict[str, Any]:
    """Return the steps' settings with every path as it is from here.

    A model's name is a path where a folder of that name lies there, or one of the steps will make it; else
    it is the alias or hub id that it looks like, unless it begins with a dot.

    Args:
        steps: the settings as the file has them; those that are not what they ought to be stay as they are.
        base: the folder that the file lies in.
        out: the pipeline's folder, as it is from here.
    """
    made = {out / name for name in TRAINS}
    for name in TRAINS:
        own = steps[name].get("out") if name in steps else None
        if isinstance(own, str):
            made.add(Path(placed(own, base)))

    def place(path: str) -> str:
        return placed(path, base)

    def place_model(spec: str) -> str:
        path = Path(place(spec))
        meant = spec.startswith((".", "~")) or path.is_dir() or path in made
        return str(path) if meant and spec not in ALIASES else spec

    found = {}
    for name, given in steps.items():
        several = given if isinstance(given, list) else [given]
        changed = [
            _changed(_changed(one, _PATHS[name], place), _MODELS[name], place_model) for one in several
        ]
        found[name] = changed if isinstance(given, list) else changed[0]
    return found


def _changed(settings: Any, paths: tuple[str, ...], change: Callable[[str], str]) -> Any:
    """Return ``settings`` with the texts that the dotted ``paths`` lead to changed."""
    if not isinstance(settings, dict):
        return settings
    result = merged(settings, {})
    for path in paths:
        value: Any = result
        for part in path.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            put(result, path, _each(value, change))
    return result


def _each(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, list):
        return [_each(one, change) for one in value]
    if isinstance(value, dict):
        return {key: _each(one, change) for key, one in value.items()}
    return change(value) if isinstance(value, str) else value
