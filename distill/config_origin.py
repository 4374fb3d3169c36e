"""Where a setting came from that the user did not type: a recipe or a file, told with an error about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distill.config_sources import read_yaml
from distill.errors import ConfigError, DataError


def origins(
    recipe: tuple[str, Mapping[str, Any]] | None,
    file: Path | None,
    assignments: Sequence[str],
    flags: Mapping[str, object],
) -> dict[str, str]:
    """Return dotted path -> what set it, for each setting of a recipe or a file that nothing wins over.

    Args:
        recipe: a recipe's name and its settings.
        file: a configuration file, which has been read before; a pipe is passed over.
        assignments: ``a.b=v`` texts.
        flags: dotted path -> value; those that are None were not given.
    """
    found: dict[str, str] = {}
    if recipe is not None:
        name, settings = recipe
        found |= {key: f"recipe {name} sets it to {value}" for key, value in _flat(settings)}
    # What came through a pipe has been read by now, and is not there any more.
    if file is not None and file.is_file():
        found |= {key: f"{file} sets it to {value}" for key, value in _flat(read_yaml(file))}
    typed = {assignment.partition("=")[0] for assignment in assignments}
    typed |= {key for key, value in flags.items() if value is not None}
    return {key: words for key, words in found.items() if key not in typed}


@contextmanager
def telling_origin(of: Mapping[str, str]) -> Iterator[None]:
    """Let an error inside the block that begins with a key of ``of`` say what set that."""
    try:
        yield
    except (ConfigError, DataError) as error:
        key, colon, _ = str(error).partition(":")
        if not colon or key not in of:
            raise
        raise type(error)(f"{error} ({of[key]})") from error


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
