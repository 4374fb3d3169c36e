"""Digests of what steps read and write, by which it is known whether anything has changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from distill.digests import ABSENT, data_digest, model_digest
from distill.errors import ConfigError
from embedcache.cache import Cache

Facts = dict[str, str]
"""What a step depends on, or has made: name -> value or digest."""


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
    return {f"content of {name}": data_digest(place)}


def model_facts(name: str, spec: str) -> Facts:
    """Return the digest of a model's folder, or of a run's student; a hub id or an alias as it is."""
    digest = model_digest(spec)
    return {name: spec} if digest is None else {f"content of {name}": digest}


def corpus_facts(cache: Cache, name: str | None) -> Facts:
    """Return the digests of a corpus and of its views."""
    corpus = cache.corpus(name)
    facts = {"corpus": corpus.name, "content of corpus": corpus.info.digest}
    views = {f"content of view {view}": corpus.view(view).info.digest for view in corpus.view_names()}
    return facts | views


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return one phrase for everything that is not as it was."""
    found = []
    for name in dict.fromkeys([*before, *now]):
        was, is_now = before.get(name, ABSENT), now.get(name, ABSENT)
        # A key that a later version has, and that is not given, changes nothing.
        if was == is_now or {was, is_now} == {ABSENT, repr(None)}:
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
