"""What decides how a run ends but for its seeds: runs in which that is the same are one student."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distill.layout import CONFIG, RECORD
from embedcache.fsio import canonical_json

# What a run learns does not depend on these, or the record says it better (corpus, teachers, dev).
_PLACES = ("cache", "corpus", "teacher", "teacher_model", "start", "out", "overwrite", "seed", "tracking")
_MACHINE = ("device", "threads", "checkpoint_every")
_LATER = ("text", "text2", "label")
# Of how vectors come: these decide which of them are read, and in which order.
_STREAM = ("limit", "require_signature")

_SEED_IN_NAME = re.compile(r"[-_]?seed[-_]?\d+(?:-[0-9a-f]{10})?$|-[0-9a-f]{10}$")


Seed = int | str
"""A run's seed as it is shown: of a training in stages with different seeds these, as in ``0+1``."""


@dataclass(frozen=True)
class Setting:
    """What a run was trained with.

    Attributes:
        digest: sha256 of what decides how it ends but for its seeds.
        seeds: the seed of each stage of its training, the first stage first; empty where its configuration
            names none.
    """

    digest: str
    seeds: tuple[int, ...]

    @property
    def seed(self) -> Seed | None:
        """The seed to be shown: one number where all stages have the same; None where it is not known."""
        if len(set(self.seeds)) > 1:
            return "+".join(map(str, self.seeds))
        return self.seeds[0] if self.seeds else None

    def to_json(self) -> dict[str, object]:
        """Return what the record of a later stage says of this one."""
        return {"setting": self.digest, "seeds": list(self.seeds)}


def read_setting(folder: Path) -> Setting | None:
    """Return the setting of the run in ``folder``; None where its record or configuration cannot be read."""
    import yaml

    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        config = yaml.safe_load((folder / CONFIG).read_text(encoding="utf-8"))
        digest = hashlib.sha256(canonical_json(run_setting(record, config))).hexdigest()
        before, own = _start_setting(record), config.get("seed")
    except (OSError, ValueError, TypeError, AttributeError, KeyError, yaml.YAMLError):
        return None
    if own is None:
        return Setting(digest, ())
    return Setting(digest, (*(before.seeds if before is not None else ()), own))


def without_seed(name: str) -> str:
    """Return the name of a run's folder without the seed that it ends with."""
    return _SEED_IN_NAME.sub("", name)


def run_setting(record: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what decides how a run ends but for its seed.

    Args:
        record: its ``run.json``.
        config: its configuration.
    """
    facts = {key: value for key, value in config.items() if key not in _PLACES}
    training = facts.get("training") or {}
    facts["training"] = {key: value for key, value in training.items() if key not in _MACHINE}
    evaluation = facts.get("evaluation") or {}
    # Configurations of earlier versions lack keys that others leave empty.
    given = {key: value for key, value in evaluation.items() if value is not None or key not in _LATER}
    facts["evaluation"] = {**given, "data": record.get("dev")}
    facts.pop("stream", None)
    if stream := _stream_setting(record, config.get("stream") or {}):
        facts["stream"] = stream
    facts["corpus"] = (record.get("corpus") or {}).get("digest")
    facts["teachers"] = [one.get("contract_id") for one in record.get("teachers") or []]
    if record.get("start"):
        before = _start_setting(record)
        facts["start"] = before.digest if before is not None else record["start"].get("contract_id")
    return facts


def _stream_setting(record: Mapping[str, Any], stream: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of the stream decides how a run ends; nothing where everything is as by default."""
    given = {key: stream[key] for key in _STREAM if stream.get(key)}
    if record.get("order") is None:
        # All shards fitted into the limit, so the rows were not cut into windows.
        given.pop("limit", None)
    return given


def _start_setting(record: Mapping[str, Any]) -> Setting | None:
    """Return the setting of the run that another began with; None where there is none, or it is not known.

    Records of earlier versions do not hold it: then it is read from that run's folder, if it still is there.
    """
    start = record.get("start") or {}
    if start.get("setting") is not None:
        return Setting(start["setting"], tuple(start["seeds"]))
    return read_setting(Path(start["run"])) if start.get("run") is not None else None
