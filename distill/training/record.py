"""``run.json``: what a run says about itself, enough to find, check and evaluate what it was made of."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distill.config import RunConfig
from distill.data.dataset import DistillDataset
from distill.data.targets import Targets
from distill.errors import CheckpointError
from distill.layout import IN_TARGET_SPACE, RECORD, TARGETS
from distill.losses.registry import LOSSES
from embedcache.cache import Cache
from embedcache.corpus.part import ORIGINAL
from embedcache.fsio import sha256_file
from embedcache.teacher.resolve import ALIASES

_VERSION = 1


def new_record(
    cache: Cache,
    dataset: DistillDataset,
    config: RunConfig,
    parameters: int,
    recipe: str | None,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the record of a run that has no result yet.

    Args:
        cache: the cache it is trained from.
        dataset: what it is trained on.
        config: the resolved configuration.
        parameters: parameters of the student as it is saved.
        recipe: the recipe that it was started with; None without one.
        notes: what is worth knowing about how the student was made.
    """
    teachers = _teachers(cache, dataset.targets, config.teacher_model)
    return {
        "version": _VERSION,
        "recipe": recipe,
        "teacher": teachers[0],
        "teachers": teachers,
        "targets": _targets(dataset.targets),
        "cache": str(cache.folder.resolve()),
        "corpus": {
            "name": dataset.corpus.name,
            "rows": len(dataset.corpus),
            "digest": dataset.corpus.info.digest,
        },
        "views": {
            name: None if name == ORIGINAL else dataset.corpus.view(name).info.digest
            for name in config.training.views or [ORIGINAL]
        },
        "where": config.training.where,
        "selected": dataset.selected,
        "rows": len(dataset),
        "held_out": len(dataset.held_out),
        "student": config.student.spec,
        "parameters": parameters,
        "notes": list(notes),
        "labels": None if dataset.soft is None else list(dataset.soft.names),
        # Without its head, or learning from labels alone, a student gives vectors of a space of its own.
        IN_TARGET_SPACE: is_in_target_space(config),
        "dev": describe_dev(config.evaluation.data, config.evaluation.rows),
        "loss": config.loss.name,
        # Of a remote that grows meanwhile, other shards may be read, in another order.
        "order": dataset.order.digest,
        "result": None,
    }


def is_in_target_space(config: RunConfig) -> bool:
    """Return whether the student's vectors are to be like its targets, number by number."""
    return not config.student.drop_head and LOSSES[config.loss.name].targets != "soft labels alone"


def describe_dev(data: str | None, rows: Sequence[str] | None = None) -> dict[str, Any] | None:
    """Return what tells a development set from another; None where there is none.

    Args:
        data: the file.
        rows: the conditions on its rows.
    """
    if data is None:
        return None
    path = Path(data)
    return {"name": path.name, "sha256": sha256_file(path), **({"rows": list(rows)} if rows else {})}


def read_record(folder: Path) -> dict[str, Any] | None:
    """Return the record of the run in ``folder``; None where there is none."""
    # A run may be deleted to make room for another; other people's files that happen to be called so may not.
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    is_run = isinstance(record, dict) and {"version", "teacher", "corpus", "student", "loss"} <= set(record)
    return record if is_run else None


_FIXED = (
    *("corpus", "views", "teachers", "rows", "held_out", "selected", "order"),
    *("labels", "parameters", "dev"),
)


def refuse_other_data(before: dict[str, Any], now: dict[str, Any], fixed: Sequence[str] = _FIXED) -> None:
    """Raise :class:`CheckpointError` where a run's record and that of what is there now differ.

    Args:
        before: the record of the run that is to go on.
        now: the record it would have if it were started now.
        fixed: the keys that have to be the same.
    """
    for key in fixed:
        was, is_now = (_told_apart_by(key, record) for record in (before, now))
        if was != is_now:
            raise CheckpointError(
                f"the run's {key} was {was} and is {is_now} now: it cannot go on as it began; bring "
                "back what it began with, or start the run anew with --overwrite"
            )


def _told_apart_by(key: str, record: dict[str, Any]) -> object:
    """Return what of a key of a record has to be the same."""
    value = record.get(key)
    if key == "teachers":
        return [{name: one[name] for name in ("name", "contract_id", "share")} for one in record[key]]
    return value


def _teachers(cache: Cache, targets: Targets, first_model: str | None) -> list[dict[str, Any]]:
    shares = targets.combination.shares if targets.combination else (1.0,)
    models = [first_model, *(None for _ in targets.teachers[1:])]
    return [
        {
            "name": teacher.name,
            "spec": _place(model or cache.model_source(teacher)),
            "contract_id": teacher.contract.id,
            "contract": teacher.contract.to_json(),
            "share": share,
        }
        for teacher, model, share in zip(targets.teachers, models, shares, strict=True)
    ]


def _targets(targets: Targets) -> dict[str, Any]:
    combination = targets.combination
    projected = combination is not None and combination.projection is not None
    return {
        "dimension": targets.dimension,
        "file": TARGETS if combination else None,
        "projected_from": sum(combination.widths) if combination and projected else None,
        "energy": combination.energy if combination else None,
    }


def _place(spec: str) -> str:
    """Return the spec; of a folder its whole path, which means the same wherever it is read."""
    folder = Path(spec).expanduser()
    return str(folder.resolve()) if spec not in ALIASES and folder.is_dir() else spec
