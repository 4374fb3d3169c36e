"""Stored evaluations: ``eval-SUITE.json`` in a run's folder, or in the user's cache folder for other models.

A kept evaluation is used while its key is the same: digests of the files read, the model, the suite's
settings and the package's version. A damaged one is evaluated again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from distill.evaluation.result import Evaluation, Scored
from distill.layout import file_name
from embedcache.fsio import make_directory, read_sealed_json, write_sealed_json

LARGEST_FILE = 256 << 20
"""Bytes of a kept evaluation; outcomes of half a million items are some ten megabytes."""

_PREFIX, _ENDING = "eval-", ".json"


@dataclass(frozen=True)
class Kept:
    """A kept evaluation.

    Attributes:
        key: everything that decides its figures, by name: ``data``, ``model``, ``settings``, ``version``.
        evaluation: the model's result, after its teacher's where that was evaluated too.
    """

    key: Mapping[str, str]
    evaluation: Evaluation

    @property
    def scored(self) -> Scored:
        """The model's facts and result."""
        return self.evaluation.models[-1]


_KEPT = TypeAdapter(Kept)


def kept_path(folder: Path, suite: str) -> Path:
    """Return the file of a folder that keeps a suite's evaluation."""
    return folder / f"{_PREFIX}{file_name(suite)}{_ENDING}"


def kept_suites(folder: Path) -> list[str]:
    """Return the suites whose evaluation is kept in a folder, readable or not, sorted."""
    names = sorted(path.name for path in folder.glob(f"{_PREFIX}*{_ENDING}"))
    return [name.removeprefix(_PREFIX).removesuffix(_ENDING) for name in names]


def read_kept(folder: Path, suite: str) -> Kept | None:
    """Return a kept evaluation; None if there is none that can be read."""
    try:
        return _KEPT.validate_python(read_sealed_json(kept_path(folder, suite), LARGEST_FILE))
    except (OSError, ValueError):
        return None


def write_kept(folder: Path, kept: Kept) -> None:
    """Keep an evaluation.

    Raises:
        StorageError: if it cannot be written.
    """
    make_directory(folder)
    value = _KEPT.dump_python(kept, mode="json")
    for _, result in value["evaluation"]["models"]:
        # Pairs keep the suite's order; names of an object would be sorted.
        result["figures"] = list(result["figures"].items())
    write_sealed_json(kept_path(folder, kept.evaluation.suite), value)


def user_cache() -> Path:
    """Return the user's folder for what can be computed again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "distill"


def user_folder(identity: str) -> Path:
    """Return the folder of stored evaluations of a model that is not a run."""
    return user_cache() / "evaluations" / hashlib.sha256(identity.encode()).hexdigest()[:32]
