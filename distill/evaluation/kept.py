"""Evaluations that are kept in the run's folder, so that nobody has to encode for them again.

``eval-SUITE.json`` in a run's folder says what a suite found out about the run's student, and about the
teacher it stood beside: the report as JSON, and the single outcomes that its figures rest on, from which
intervals and comparisons are drawn. The file carries its own digest, and digests of all that decides its
figures: the test data, the sentences, the student's weights, the settings, the version. Where one of them is
another now, it is not used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from distill.evaluation.result import ModelReport
from distill.evaluation.suites import SUITES
from embedcache import __version__
from embedcache.errors import EmbedCacheError
from embedcache.fsio import canonical_json, read_sealed_json, write_sealed_json

FORMAT_VERSION = 1

# What single outcomes are of: older evaluations can be read, but are made anew where they are asked for.
_OUTCOMES = "2"

AVERAGE = "average"
"""What the figure that models are ranked by is called among the scores."""

LARGEST_FILE = 256 << 20
"""Bytes that a kept evaluation may have: outcomes of half a million items are some ten megabytes."""

_PREFIX, _ENDING = "eval-", ".json"


@dataclass(frozen=True)
class Noted:
    """A model's report with what a reader must know of it.

    Attributes:
        report: the report.
        notes: one line each.
    """

    report: ModelReport
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Kept:
    """An evaluation of a run's student by one suite, as it is kept.

    Attributes:
        suite: the suite.
        written: the day and time (UTC) at which it was made.
        digest: what decided its figures, by name.
        teacher_digest: what told the teacher from others; None without a teacher.
        scores: as :func:`flat_scores` gives them.
        result: the result as JSON: this student's report, after the teacher's where there was one.
        model: the student's report.
        teacher: the teacher's; None without one.
    """

    suite: str
    written: str
    digest: Mapping[str, str]
    teacher_digest: str | None
    scores: Mapping[str, float]
    result: Mapping[str, Any]
    model: Noted
    teacher: Noted | None = None


def place_of(run: Path, suite: str) -> Path:
    """Return where the evaluation of ``run`` by ``suite`` is kept."""
    return run / f"{_PREFIX}{suite}{_ENDING}"


def read_kept(run: Path, suite: str) -> Kept | None:
    """Return what is kept of an evaluation; None where there is nothing, or nothing that can be read."""
    try:
        value = read_sealed_json(place_of(run, suite), LARGEST_FILE)
        if value["version"] != FORMAT_VERSION or value["suite"] != suite:
            return None
        teacher = value["teacher"]
        return Kept(
            suite,
            value["written"],
            value["digest"],
            value["teacher_digest"],
            value["scores"],
            value["result"],
            _noted(value["model"]),
            None if teacher is None else _noted(teacher),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError):
        # Whatever was kept can be found out again.
        return None


def kept_suites(run: Path) -> list[str]:
    """Return the suites of which a run's folder keeps an evaluation, readable or not, sorted."""
    names = sorted(path.name for path in run.glob(f"{_PREFIX}*{_ENDING}"))
    return [name.removeprefix(_PREFIX).removesuffix(_ENDING) for name in names]


def all_kept(run: Path) -> dict[str, Kept]:
    """Return every evaluation that is kept in a run's folder, by suite."""
    found = {suite: read_kept(run, suite) for suite in kept_suites(run)}
    return {suite: kept for suite, kept in found.items() if kept is not None}


def write_kept(run: Path, kept: Kept) -> None:
    """Keep an evaluation in the run's folder.

    Raises:
        StorageError: if the folder cannot be written.
        ValueError: if a figure is no finite number.
    """
    write_sealed_json(
        place_of(run, kept.suite),
        {
            "version": FORMAT_VERSION,
            "suite": kept.suite,
            "written": kept.written,
            "digest": dict(kept.digest),
            "teacher_digest": kept.teacher_digest,
            "scores": dict(kept.scores),
            "result": dict(kept.result),
            "model": _plain(kept.model),
            "teacher": None if kept.teacher is None else _plain(kept.teacher),
        },
    )


def new_kept(
    suite: str,
    digest: Mapping[str, str],
    teacher_digest: str | None,
    result: Mapping[str, Any],
    model: Noted,
    teacher: Noted | None,
) -> Kept:
    """Return an evaluation that was made now; ``result`` is its JSON, the student's report the last of it."""
    written = datetime.now(UTC).isoformat(timespec="seconds")
    scores = flat_scores(suite, model.report)
    return Kept(suite, written, digest, teacher_digest, scores, result, model, teacher)


def flat_scores(suite: str, report: ModelReport) -> dict[str, float]:
    """Return ``average``, the figure that models are ranked by, and the figure of each set by its name."""
    facts: dict[str, Any] = report.to_json()
    average = facts.get(SUITES[suite].average)
    scores = {AVERAGE: float(average)} if isinstance(average, float | int) else {}
    sets = facts.get("sets")
    for name, one in sets.items() if isinstance(sets, Mapping) else ():
        if isinstance(one, Mapping) and isinstance(one.get("score"), float | int):
            scores[name] = float(one["score"])
    return scores


def digest_of(
    data: str, student: str, texts: Sequence[str], settings: Mapping[str, object]
) -> dict[str, str]:
    """Return what decides the figures of an evaluation, by name.

    Args:
        data: digest of the test data.
        student: digest of the student's folder.
        texts: the sentences that are encoded.
        settings: whatever else may change a figure.
    """
    whole = hashlib.sha256()
    for text in dict.fromkeys(texts):
        whole.update(f"{len(text)} {text}\n".encode(errors="surrogatepass"))
    return {
        "data": data,
        "sentences": whole.hexdigest(),
        "student": student,
        "settings": canonical_json(settings).decode(),
        "version": __version__,
        "outcomes": _OUTCOMES,
    }


def _plain(value: Any) -> Any:
    """Return ``value`` as JSON; objects carry their class, outcomes are one line of numbers."""
    import numpy as np

    if isinstance(value, np.ndarray):
        # To the last digit: rounding would make ties, and with them other ranks.
        return {"numbers": " ".join(map(repr, value.tolist()))}
    if isinstance(value, np.generic):
        return value.item()
    if is_dataclass(value):
        named = {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
        return {"class": f"{type(value).__module__}:{type(value).__qualname__}", **named}
    if isinstance(value, Mapping):
        # As pairs, because the keys of JSON are sorted and sets have an order of their own.
        return {"mapping": [[key, _plain(one)] for key, one in value.items()]}
    if isinstance(value, tuple):
        return {"tuple": [_plain(one) for one in value]}
    return [_plain(one) for one in value] if isinstance(value, list) else value


def _from_plain(value: Any) -> Any:
    import numpy as np

    if isinstance(value, list):
        return [_from_plain(one) for one in value]
    if not isinstance(value, dict):
        return value
    if "tuple" in value:
        return tuple(_from_plain(one) for one in value["tuple"])
    if "numbers" in value:
        return np.array([float(word) for word in value["numbers"].split()], dtype=np.float64)
    if "mapping" in value:
        return {key: _from_plain(one) for key, one in value["mapping"]}
    named = {key: _from_plain(one) for key, one in value.items() if key != "class"}
    return _find_class(value["class"])(**named)


def _find_class(name: str) -> Any:
    module, _, qualified = name.partition(":")
    package = __name__.rpartition(".")[0]
    if not module.startswith(f"{package}."):
        raise ValueError(f"{name} is no class of {package}")
    found = getattr(import_module(module), qualified)
    if not (isinstance(found, type) and is_dataclass(found)):
        raise ValueError(f"{name} is no class that is kept")
    return found


def _noted(value: Any) -> Noted:
    found = _from_plain(value)
    if not isinstance(found, Noted):
        raise ValueError("it holds something else than a report")
    return found


def try_write(run: Path, kept: Kept) -> str | None:
    """Keep an evaluation where that is possible; return why it is not, None where it was."""
    try:
        write_kept(run, kept)
    except (EmbedCacheError, OSError, ValueError, TypeError) as error:
        return f"the evaluation of {run.name} by {kept.suite} is not kept: {error}"
    return None
