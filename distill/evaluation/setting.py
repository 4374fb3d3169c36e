"""What decides how a run ends but for its seed: runs in which that is the same are one student."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distill.layout import CONFIG, RECORD

# What a run learns does not depend on these, or the record says it better (corpus, teachers, dev).
_PLACES = ("cache", "corpus", "teacher", "teacher_model", "start", "out", "overwrite", "seed", "tracking")
_MACHINE = ("device", "threads", "checkpoint_every")


def run_setting(record: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what decides how a run ends but for its seed.

    Args:
        record: its ``run.json``.
        config: its configuration.
    """
    facts = {key: value for key, value in config.items() if key not in _PLACES}
    training = facts.get("training") or {}
    facts["training"] = {key: value for key, value in training.items() if key not in _MACHINE}
    facts["evaluation"] = {**(facts.get("evaluation") or {}), "data": record.get("dev")}
    facts["corpus"] = (record.get("corpus") or {}).get("digest")
    facts["teachers"] = [one.get("contract_id") for one in record.get("teachers") or []]
    start = record.get("start") or {}
    if start.get("run") is not None:
        before = _read(Path(start["run"]))
        facts["start"] = before if before is not None else start.get("contract_id")
    elif start:
        facts["start"] = start.get("contract_id")
    return facts


def _read(folder: Path) -> dict[str, Any] | None:
    import yaml

    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        return run_setting(record, yaml.safe_load((folder / CONFIG).read_text(encoding="utf-8")))
    except (OSError, ValueError, yaml.YAMLError):
        return None
