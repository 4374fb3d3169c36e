"""Sources of a configuration: a recipe, a YAML file, ``--set a.b=v``, options; later ones win."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, get_origin

from pydantic import BaseModel, ValidationError

from distill.config.base import Settings, keys
from distill.config.recipes import Recipe
from distill.config.tree import merged, put, read_value, read_yaml
from distill.errors import ConfigError, DistillError
from distill.students.spec import is_from_teacher

C = TypeVar("C", bound=BaseModel)

LOSS_SETTINGS = "loss.settings"
"""Key that stands for all settings of a loss: ``loss.alpha``, ``loss.tau`` ..."""


def gather(
    file: Path | None = None,
    assignments: Sequence[str] = (),
    options: Mapping[str, object] | None = None,
    recipe: Recipe | None = None,
) -> Settings:
    """Return settings from all sources, not checked yet; for the arguments see ``load_config``.

    Raises:
        ConfigError: if the file or an assignment cannot be read.
    """
    values = {} if file is None else read_yaml(file)
    typed = dict(map(_parse_assignment, assignments))
    typed |= {key: value for key, value in (options or {}).items() if value is not None}
    for key, value in typed.items():
        put(values, key, value)
    return values if recipe is None else over_recipe(recipe.config, values)


def load_config(
    model: type[C],
    file: Path | None = None,
    assignments: Sequence[str] = (),
    options: Mapping[str, object] | None = None,
    recipe: Recipe | None = None,
) -> C:
    """Put a configuration together.

    Args:
        model: the kind of configuration.
        file: a YAML file.
        assignments: ``a.b=v`` texts; values are read as YAML.
        options: dotted key -> value; those that are None are left out.
        recipe: a recipe, which all others win over.

    Raises:
        ConfigError: naming every problem with its key.
    """
    return make_config(model, gather(file, assignments, options, recipe))


def make_config(model: type[C], values: Mapping[str, Any]) -> C:
    """Return ``values`` as a configuration.

    Raises:
        ConfigError: naming every problem with its key.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        problems = [_problem(one, model) for one in error.errors(include_url=False)]
        raise ConfigError.joined(problems) from None


def over_recipe(recipe: Mapping[str, Any], values: Mapping[str, Any]) -> Settings:
    """Return the settings of a recipe with ``values`` laid over them.

    Settings of the recipe that cannot apply any more are left out: those that another loss does not take, the
    pooling for students made from their teacher, and dropping a head with ``head: none``.

    Raises:
        ConfigError: if ``values`` name another loss, and there is none of that name.
    """
    base = merged(recipe, {})
    loss, name = _group(base, "loss"), _group(values, "loss").get("name")
    if name is not None and name != loss.get("name"):
        from distill.losses.registry import get_loss

        taken = {"name", *get_loss(str(name)).defaults}
        base["loss"] = {key: value for key, value in loss.items() if key in taken}
    student, chosen = _group(base, "student"), _group(values, "student")
    if is_from_teacher(str(chosen.get("spec"))):
        student.pop("pooling", None)
    if chosen.get("head") == "none":
        student.pop("drop_head", None)
    return merged(base, values)


def full_key(model: type[BaseModel], name: str) -> str:
    """Return the dotted key of a dotted name, of an option's (``lr``), or of a field's without its group.

    Raises:
        ConfigError: if there is no such key; the message names the nearest.
    """
    known = [key for key in keys(model) if key.path != LOSS_SETTINGS]
    # An option's name comes first; a field's own name stands for the first field of that name.
    names = {_last(key.path): key.path for key in reversed(known)}
    names |= {key.word: key.path for key in known if key.word}
    names |= {key.path: key.path for key in known}
    if name in names:
        return names[name]
    if name.startswith("loss.") and "loss.name" in names:
        return name
    # A setting's help has the words that others call it by.
    phrase = name.replace("_", " ")
    meant = [key.word for key in known if key.word and " " in phrase and phrase in key.text]
    if meant and not difflib.get_close_matches(name, names, n=1, cutoff=0.8):
        raise ConfigError(f"unknown key, did you mean {meant[0]}?", name)
    raise ConfigError(f"unknown key{suggest_key(name, names)}", name)


def keyword_options(model: type[BaseModel], settings: Mapping[str, object]) -> dict[str, object]:
    """Return keyword arguments as options: dotted key -> value.

    Args:
        model: the kind of configuration.
        settings: short names (``lr``), dotted keys, or groups (``loss={"name": "ckd", "tau": 0.1}``).

    Raises:
        ConfigError: naming every keyword that is unknown, and the nearest.
    """
    options: dict[str, object] = {}
    problems: list[ConfigError] = []
    # One teacher and a list of one are written differently in records.
    lists = {key.path for key in keys(model) if get_origin(key.annotation) is list} - {"teacher"}
    for name, value in settings.items():
        path = os.fspath(value) if isinstance(value, os.PathLike) else value
        if isinstance(value, Mapping) and name in model.model_fields:
            options |= {f"{name}.{inner}": one for inner, one in value.items()}
            continue
        try:
            key = full_key(model, name)
            options[key] = [path] if isinstance(path, str) and key in lists else path
        except ConfigError as error:
            problems.append(error)
    if problems:
        raise ConfigError.joined(problems)
    return options


@contextmanager
def naming_settings(model: type[BaseModel]) -> Iterator[None]:
    """Let an error inside the block name the option of its key as well, or in Python the argument."""
    named = [key for key in keys(model) if key.option and key.option.startswith("--")]
    options = {key.path: f"{key.path} ({key.option})" for key in named}
    try:
        yield
    except DistillError as error:
        for problem in (error.problems if isinstance(error, ConfigError) else ()) or (error,):
            problem.key = options.get(problem.key or "", problem.key)
        raise


def _parse_assignment(text: str) -> tuple[str, object]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise ConfigError(f"--set {text!r}: expected the form a.b=v, as in --set optimizer.lr=3e-4")
    return key, read_value(value)


def _problem(problem: Any, model: type[BaseModel]) -> ConfigError:
    path = ".".join(str(part) for part in problem["loc"])
    options = {key.path: key.option for key in keys(model)}
    if problem["type"] == "extra_forbidden":
        return ConfigError(f"unknown key{suggest_key(path, options)}", path)
    if problem["type"] == "missing":
        return ConfigError(f"missing; give {options.get(path) or path}", path)
    raised = problem.get("ctx", {}).get("error")
    if isinstance(raised, ConfigError):
        return raised
    message = str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "model_type":
        inside = [name.removeprefix(f"{path}.") for name in options if name.startswith(f"{path}.")]
        message = f"expected its keys, as in {path}: {{{inside[0]}: …}}" if inside else message
    # A check of several keys names them itself.
    if not path:
        return ConfigError(message)
    found = " ".join(repr(problem["input"]).split())[:80]
    if any(key.path == path and key.metavar == "FILE" for key in keys(model)):
        return ConfigError("expected the path of a file; write a table in memory to one", path)
    return ConfigError(message if found in message else f"{message} (found {found})", path)


def suggest_key(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown key: the nearest of those known, if any is near."""
    whole = {key: key for key in known}
    # A key may have been typed without its group.
    names = {**{_last(key): key for key in reversed(whole)}, **whole}
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f", did you mean {names[close[0]]}?" if close else ""


def _group(values: Mapping[str, Any], name: str) -> Settings:
    """Return a group of settings; an empty one where there is none."""
    group = values.get(name)
    return group if isinstance(group, dict) else {}


def _last(path: str) -> str:
    return path.rpartition(".")[2]
