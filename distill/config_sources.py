"""Where a configuration comes from: a YAML file, then ``--set a.b=v``, then flags; later ones win.

Unknown keys are errors, and every error is reported at once with its dotted path.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from distill.config import RunConfig
from distill.errors import ConfigError

_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")


def load_config(
    file: Path | None = None,
    assignments: Sequence[str] = (),
    flags: Mapping[str, object] | None = None,
) -> RunConfig:
    """Put a configuration together.

    Args:
        file: a YAML file.
        assignments: ``a.b=v`` texts; values are read as YAML.
        flags: dotted path -> value; None values are left out.

    Raises:
        ConfigError: naming every problem with its dotted path.
    """
    values: dict[str, Any] = {}
    if file is not None:
        try:
            loaded = yaml.safe_load(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(f"no configuration file {file}") from None
        except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file} is not readable as YAML: {' '.join(str(error).split())}") from error
        if not isinstance(loaded, dict):
            raise ConfigError(f"{file} holds {_kind(loaded)}, expected keys and values")
        values = loaded
    for assignment in assignments:
        path, separator, text = assignment.partition("=")
        if not separator or not path:
            raise ConfigError(f"--set {assignment!r}: expected the form a.b=v, as in --set optimizer.lr=3e-4")
        _assign(values, path, _read_value(text))
    for path, value in (flags or {}).items():
        if value is not None:
            _assign(values, path, value)
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        problems = "; ".join(_describe(problem) for problem in error.errors(include_url=False))
        raise ConfigError(f"the configuration cannot be used: {problems}") from error


def _kind(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def _read_value(text: str) -> object:
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set: {text!r} is no YAML value") from error
    # YAML reads 3e-4 as a word; people mean the number. In quotes it is a word.
    return float(text) if isinstance(value, str) and _EXPONENT.fullmatch(text) else value


def _assign(values: dict[str, Any], path: str, value: object) -> None:
    *parents, last = path.split(".")
    for parent in parents:
        inner = values.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{path}: {parent} is {inner!r}, not a group of keys")
        values = inner
    values[last] = value


def _describe(problem: Any) -> str:
    path = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        return f"{path}: unknown key{_suggestion(path)}"
    if problem["type"] == "missing":
        return f"{path}: missing" + (" (give --cache DIR)" if path == "cache" else "")
    message = problem["msg"].removeprefix("Value error, ")
    return f"{path}: {message} (found {problem['input']!r})"


def _suggestion(path: str) -> str:
    import difflib

    close = difflib.get_close_matches(path, [key for key, _ in describe_keys()], n=1, cutoff=0.5)
    return f", did you mean {close[0]}?" if close else ""


def describe_keys(model: type[BaseModel] = RunConfig, prefix: str = "") -> list[tuple[str, str]]:
    """Return (dotted path, description) of every key there is."""
    found = []
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found += describe_keys(kind, f"{prefix}{name}.")
        else:
            found.append((prefix + name, field.description or ""))
    return found


SHORT_KEYS = {
    "student": "student.spec",
    "head": "student.head",
    "max_length": "student.max_length",
    "loss": "loss.name",
    "drop_head": "student.drop_head",
    "variant": "loss.variant",
    "tau": "loss.tau",
    "teacher_tau": "loss.teacher_tau",
    "alpha": "loss.alpha",
    "queue": "loss.queue",
    "distance": "loss.distance",
    "angle": "loss.angle",
    "lr": "optimizer.lr",
    "schedule": "optimizer.schedule",
    "warmup": "optimizer.warmup",
    "weight_decay": "optimizer.weight_decay",
    "epochs": "training.epochs",
    "batch_size": "training.batch_size",
    "limit": "training.limit",
    "views": "training.views",
    "where": "training.where",
    "mixed_precision": "training.mixed_precision",
    "device": "training.device",
    "threads": "training.threads",
    "dev": "evaluation.data",
    "held_out": "evaluation.held_out",
    "eval_every": "evaluation.every",
    "patience": "evaluation.patience",
    "patience_epochs": "evaluation.patience_epochs",
    "checkpoint_every": "training.checkpoint_every",
    "tensorboard": "tracking.tensorboard",
}
"""Names without their group, as flags and keyword arguments have them, and the keys they stand for."""
