"""Settings as nested dictionaries: read, set and merge."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from distill.config.base import Settings
from distill.errors import ConfigError

_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")


def read_yaml(file: Path) -> Settings:
    """Return the content of a YAML file of keys and values.

    Raises:
        ConfigError: if it is missing, unreadable or holds something else.
    """
    try:
        loaded = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"no configuration file {file}") from None
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not readable as YAML: {' '.join(str(error).split())}") from error
    if not isinstance(loaded, dict):
        kind = "nothing" if loaded is None else f"a {type(loaded).__name__}"
        raise ConfigError(f"{file} holds {kind}, expected keys and values")
    return loaded


def read_value(text: str) -> object:
    """Return the YAML value of a text from a command line.

    Raises:
        ConfigError: if it is none.
    """
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set: {text!r} is not a YAML value") from error
    # A quoted number is a word.
    return as_number(value) if value == text else value


def as_number(value: object) -> object:
    """Return a YAML value, with words such as 3e-4 read as numbers."""
    return float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value


def put(values: Settings, path: str, value: object) -> None:
    """Put ``value`` at the dotted ``path``, in place.

    Raises:
        ConfigError: if the path leads through something that is not a group of keys.
    """
    *parents, last = path.split(".")
    for parent in parents:
        inner = values.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{parent} is {inner!r}, not a group of keys", path)
        values = inner
    values[last] = value


def merged(base: Mapping[str, object], values: Mapping[str, object]) -> Settings:
    """Return ``base`` with ``values`` laid over it, group by group; a copy."""
    result = copy.deepcopy(dict(base))
    for key, value in values.items():
        below = result.get(key)
        if isinstance(value, dict) and isinstance(below, dict):
            result[key] = merged(below, value)
        else:
            result[key] = copy.deepcopy(value)
    return result


def flat(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield (dotted path, value) of every setting."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
