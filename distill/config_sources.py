"""Where a configuration comes from: a recipe, a YAML file, ``--set a.b=v``, flags; later ones win.

Unknown keys are errors, and every error is reported at once with its dotted path.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, overload

import yaml
from pydantic import BaseModel, ValidationError

from distill.config import RunConfig
from distill.errors import ConfigError
from distill.losses.registry import LOSSES
from distill.students.spec import is_from_teacher

_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")

Settings = dict[str, Any]
"""A configuration, or a part of one, as YAML has it: groups of keys inside each other."""

C = TypeVar("C", bound=BaseModel)


def keyword_flags(settings: Mapping[str, object], short_keys: Mapping[str, str]) -> dict[str, object]:
    """Return keyword arguments as flags: dotted path -> value.

    Args:
        settings: short names, keys, or groups of keys.
        short_keys: what the short names stand for.
    """
    flags: dict[str, object] = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            flags |= {f"{key}.{inner}": inner_value for inner, inner_value in value.items()}
        else:
            flags[short_keys.get(key, key)] = value
    return {key: str(value) if isinstance(value, Path) else value for key, value in flags.items()}


@overload
def load_config(
    file: Path | None = None,
    assignments: Sequence[str] = (),
    flags: Mapping[str, object] | None = None,
    *,
    recipe: Mapping[str, Any] | None = None,
) -> RunConfig: ...


@overload
def load_config(
    file: Path | None = None,
    assignments: Sequence[str] = (),
    flags: Mapping[str, object] | None = None,
    kind: type[C] = ...,
    *,
    recipe: Mapping[str, Any] | None = None,
) -> C: ...


def load_config(
    file: Path | None = None,
    assignments: Sequence[str] = (),
    flags: Mapping[str, object] | None = None,
    kind: type[BaseModel] = RunConfig,
    *,
    recipe: Mapping[str, Any] | None = None,
) -> BaseModel:
    """Put a configuration together.

    Args:
        file: a YAML file.
        assignments: ``a.b=v`` texts; values are read as YAML.
        flags: dotted path -> value; None values are left out.
        kind: what it is a configuration of.
        recipe: the settings of a recipe, which all others win over.

    Raises:
        ConfigError: naming every problem with its dotted path.
    """
    return make_config(kind, gather_settings(file, assignments, flags, recipe))


def gather_settings(
    file: Path | None = None,
    assignments: Sequence[str] = (),
    flags: Mapping[str, object] | None = None,
    recipe: Mapping[str, Any] | None = None,
) -> Settings:
    """Return the settings of :func:`load_config` laid over each other, not checked yet.

    Raises:
        ConfigError: if the file or an assignment cannot be read.
    """
    values = read_yaml(file) if file is not None else {}
    for assignment in assignments:
        path, separator, text = assignment.partition("=")
        if not separator or not path:
            raise ConfigError(f"--set {assignment!r}: expected the form a.b=v, as in --set optimizer.lr=3e-4")
        put(values, path, read_value(text))
    for path, value in (flags or {}).items():
        if value is not None:
            put(values, path, value)
    return values if recipe is None else over_recipe(recipe, values)


def make_config(kind: type[C], values: Mapping[str, Any]) -> C:
    """Return ``values`` as a configuration of ``kind``.

    Raises:
        ConfigError: naming every problem with its dotted path.
    """
    problems = find_problems(kind, values)
    if problems:
        raise ConfigError(f"the configuration cannot be used: {'; '.join(problems)}")
    return kind.model_validate(values)


def find_problems(kind: type[BaseModel], values: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return what is wrong with ``values`` as a ``kind``, each with its dotted path after ``prefix``."""
    try:
        kind.model_validate(values)
    except ValidationError as error:
        return [prefix + _describe(problem, kind) for problem in error.errors(include_url=False)]
    return []


def read_yaml(file: Path) -> Settings:
    """Return what a YAML file of keys and values holds.

    Raises:
        ConfigError: if it is not there, not readable or holds something else.
    """
    try:
        loaded = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"no configuration file {file}") from None
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not readable as YAML: {' '.join(str(error).split())}") from error
    if not isinstance(loaded, dict):
        raise ConfigError(f"{file} holds {_kind(loaded)}, expected keys and values")
    return loaded


def over_recipe(recipe: Mapping[str, Any], values: Mapping[str, Any]) -> Settings:
    """Return the settings of a recipe with ``values`` laid over them.

    What cannot apply any more is left out: of another loss than the recipe's, what that one has no use for;
    for students made from their teacher, which pool as it does, the pooling; with ``head: none``, its being
    dropped.
    """
    base = copy.deepcopy(dict(recipe))
    loss, other = base.get("loss"), values.get("loss")
    name = other.get("name") if isinstance(other, dict) else None
    if isinstance(loss, dict) and isinstance(name, str) and name in LOSSES and name != loss.get("name"):
        base["loss"] = {key: value for key, value in loss.items() if key in LOSSES[name].settings}
    student, chosen = base.get("student"), values.get("student")
    if isinstance(student, dict) and isinstance(chosen, dict):
        if is_from_teacher(str(chosen.get("spec"))):
            student.pop("pooling", None)
        if chosen.get("head") == "none":
            student.pop("drop_head", None)
    return merged(base, values)


def merged(base: Mapping[str, Any], values: Mapping[str, Any]) -> Settings:
    """Return ``base`` with ``values`` laid over it, group by group."""
    result = copy.deepcopy(dict(base))
    for key, value in values.items():
        inside = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if inside else copy.deepcopy(value)
    return result


def _kind(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def read_value(text: str) -> object:
    """Return the YAML value that ``text`` of a command line means.

    Raises:
        ConfigError: if it is none.
    """
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set: {text!r} is no YAML value") from error
    # In quotes it is a word.
    return meant(value) if value == text else value


def meant(value: object) -> object:
    """Return a value of YAML as people mean it: 3e-4, which YAML reads as a word, is a number."""
    return float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value


def put(values: Settings, path: str, value: object) -> None:
    """Put ``value`` where the dotted ``path`` leads, in place.

    Raises:
        ConfigError: if the path leads through something that is not a group of keys.
    """
    *parents, last = path.split(".")
    for parent in parents:
        inner = values.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{path}: {parent} is {inner!r}, not a group of keys")
        values = inner
    values[last] = value


def _describe(problem: Any, kind: type[BaseModel]) -> str:
    path = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        return f"{path}: unknown key{suggest_key(path, find_keys(kind))}"
    if problem["type"] == "missing":
        remedies = {
            "cache": " (give --cache DIR)",
            "start": " (name what to fine-tune)",
            "data": " (give --train FILE)",
            "data.train": " (give --train FILE)",
        }
        return f"{path}: missing{remedies.get(path, '')}"
    message = str(problem["msg"]).removeprefix("Value error, ")
    # What concerns several keys names them itself.
    if not path:
        return message
    found = repr(problem["input"])
    # A number in the message may be a bound; a quoted text is what was found.
    is_told = isinstance(problem["input"], str) and found in message
    return f"{path}: {message}" if is_told else f"{path}: {message} (found {found})"


def suggest_key(path: str, keys: Sequence[str]) -> str:
    """Return the end of a message about an unknown key: which of ``keys`` may have been meant, if any.

    A key may have been typed whole or without its group.
    """
    import difflib

    names = {name: key for key in reversed(keys) for name in (key.rpartition(".")[2], key)}
    names |= {key: key for key in keys}
    close = difflib.get_close_matches(path, names, n=1, cutoff=0.5)
    return f", did you mean {names[close[0]]}?" if close else ""


def find_keys(kind: type[BaseModel] = RunConfig) -> list[str]:
    """Return the dotted paths of all keys of a configuration of ``kind``."""
    return [key for key, _ in describe_keys(kind)]


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


LOOP_KEYS = {
    "lr": "optimizer.lr",
    "schedule": "optimizer.schedule",
    "warmup": "optimizer.warmup",
    "weight_decay": "optimizer.weight_decay",
    "epochs": "training.epochs",
    "max_steps": "training.max_steps",
    "batch_size": "training.batch_size",
    "limit": "training.limit",
    "mixed_precision": "training.mixed_precision",
    "device": "training.device",
    "threads": "training.threads",
    "dev": "evaluation.data",
    "eval_every": "evaluation.every",
    "patience": "evaluation.patience",
    "patience_epochs": "evaluation.patience_epochs",
    "checkpoint_every": "training.checkpoint_every",
    "tensorboard": "tracking.tensorboard",
}
"""Those of the keys below that everything which trains has: how long, on what, and what is chosen by."""

SHORT_KEYS = {
    "student": "student.spec",
    "head": "student.head",
    "max_length": "student.max_length",
    "loss": "loss.name",
    "drop_head": "student.drop_head",
    "pooling": "student.pooling",
    "dropout": "student.dropout",
    "variant": "loss.variant",
    "tau": "loss.tau",
    "teacher_tau": "loss.teacher_tau",
    "alpha": "loss.alpha",
    "soft": "loss.soft",
    "queue": "loss.queue",
    "distance": "loss.distance",
    "angle": "loss.angle",
    "over": "loss.over",
    "embeddings": "loss.embeddings",
    "scale": "loss.scale",
    "hidden": "loss.hidden",
    "views": "training.views",
    "where": "training.where",
    "dev_rows": "evaluation.rows",
    "dev_text": "evaluation.text",
    "dev_text2": "evaluation.text2",
    "dev_label": "evaluation.label",
    "held_out": "evaluation.held_out",
    "mirror": "stream.mirror",
    "cache_limit": "stream.limit",
    "require_signature": "stream.require_signature",
    **LOOP_KEYS,
}
"""Names without their group, as flags and keyword arguments have them, and the keys they stand for."""
