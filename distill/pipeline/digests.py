"""Digests of what steps read and write, by which it is known whether anything has changed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from distill.errors import ConfigError
from distill.evaluation.record import run_folder
from distill.layout import BEST
from distill.sweep.scores import data_files
from embedcache.fsio import sha256_file

Facts = dict[str, str]
"""What a step depends on, or has made: name -> value or digest."""

ABSENT = "is not there"


def settings_facts(values: Mapping[str, Any], left_out: Sequence[str] = ()) -> Facts:
    """Return settings by their dotted paths, without those that are ``left_out``."""
    return {path: repr(value) for path, value in _flat(values) if path not in left_out}


def file_facts(name: str, path: str | Path | None) -> Facts:
    """Return the digest of a file, or of the files of a folder of data; nothing of None.

    Raises:
        ConfigError: if it is not there.
    """
    if path is None:
        return {}
    place = Path(path).expanduser()
    if not place.exists():
        raise ConfigError(f"{name}: there is no {place}")
    whole = hashlib.sha256()
    for file in data_files(place):
        whole.update(f"{file.name} {sha256_file(file)}\n".encode())
    return {f"content of {name}": whole.hexdigest()}


def model_facts(name: str, spec: str) -> Facts:
    """Return the digest of a model's folder, or of a run's student; nothing of a hub id or an alias."""
    run = run_folder(spec)
    folder = run / BEST if run else Path(spec).expanduser()
    if run is None and not folder.is_dir():
        return {}
    return {f"content of {name}": folder_digest(folder)}


def folder_digest(folder: Path) -> str:
    """Return a digest of all files below ``folder`` but its cards; :data:`ABSENT` where there is none."""
    if not folder.is_dir():
        return ABSENT
    whole = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix != ".md":
            whole.update(f"{path.relative_to(folder).as_posix()} {sha256_file(path)}\n".encode())
    return whole.hexdigest()


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return one phrase for everything that is not as it was."""
    found = []
    for name in dict.fromkeys([*before, *now]):
        was, is_now = before.get(name, ABSENT), now.get(name, ABSENT)
        if was == is_now:
            continue
        if name.startswith("content of ") and ABSENT not in (was, is_now):
            found.append(f"{name} has changed")
        else:
            found.append(f"{name}: {was} -> {is_now}")
    return found


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
