"""Kept evaluations: ``eval-SUITE.json`` in a run's folder, or of other models in the user's cache folder.

A kept evaluation is used while its key is the same: digests of the files read, the model, the suite's
settings and the package's version. A damaged one is evaluated again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from distill.evaluation.models import user_cache
from distill.evaluation.result import Evaluation, ModelFacts, SuiteResult
from distill.layout import file_name
from embedcache.errors import EmbedCacheError
from embedcache.fsio import make_directory, read_sealed_json, write_sealed_json

LARGEST_FILE = 256 << 20
"""Bytes of a kept evaluation; outcomes of half a million items are some ten megabytes."""

_PREFIX, _ENDING = "eval-", ".json"

Scored = tuple[ModelFacts, SuiteResult]


@dataclass(frozen=True)
class Kept:
    """A kept evaluation.

    Attributes:
        key: what decided its figures, by name: ``data``, ``model``, ``settings``, ``version``.
        evaluation: the model's result, after its teacher's where that was evaluated too.
        written: UTC time.
    """

    key: Mapping[str, str]
    evaluation: Evaluation
    written: str

    @property
    def scored(self) -> Scored:
        """The model's facts and result."""
        return self.evaluation.models[-1]


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
        value = read_sealed_json(kept_path(folder, suite), LARGEST_FILE)
        return Kept(value["key"], Evaluation.from_json(value["evaluation"]), value["written"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write_kept(folder: Path, key: Mapping[str, str], evaluation: Evaluation) -> str:
    """Keep an evaluation; return why that failed, "" if it is kept."""
    value: dict[str, Any] = {
        "key": dict(key),
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "evaluation": evaluation.to_json(outcomes=True),
    }
    try:
        make_directory(folder)
        write_sealed_json(kept_path(folder, evaluation.suite), value)
    except (EmbedCacheError, OSError, ValueError) as error:
        return f"the evaluation by {evaluation.suite} is not kept in {folder}: {error}"
    return ""


def cached(
    folder: Path | None,
    suite: str,
    key: Mapping[str, str],
    compute: Callable[[], Scored],
    *,
    again: bool = False,
) -> tuple[Scored, bool, str]:
    """Return what is kept under ``key``, else what ``compute`` returns, which is then kept.

    Args:
        folder: where it is kept; None: nowhere.
        suite: name of the suite.
        key: everything that decides the figures.
        compute: scores the model.
        again: do not use what is kept.

    Returns:
        the model's facts and result, if they were kept before, and why they cannot be kept ("" if they are).
    """
    if folder is not None and not again:
        kept = read_kept(folder, suite)
        if kept is not None and dict(kept.key) == dict(key):
            return kept.scored, True, ""
    scored = compute()
    fault = "" if folder is None else write_kept(folder, key, Evaluation(suite, (scored,)))
    return scored, False, fault


def user_folder(identity: str) -> Path:
    """Return where evaluations of a model that is no run are kept."""
    return user_cache() / "evaluations" / hashlib.sha256(identity.encode()).hexdigest()[:32]
