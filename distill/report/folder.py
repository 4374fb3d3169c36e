"""What a run's folder tells without loading any model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from distill.errors import DataError
from distill.evaluation.setting import run_setting
from distill.layout import BEST, CONFIG, METRICS, RECORD
from distill.record import run_folder


@dataclass(frozen=True)
class RunFolder:
    """A run's folder, read.

    Attributes:
        folder: the folder.
        record: its ``run.json``.
        config: its configuration; empty where there is none.
        config_text: the same as it stands in the file.
        metrics: the lines of its ``metrics.jsonl``.
    """

    folder: Path
    record: Mapping[str, Any]
    config: Mapping[str, Any]
    config_text: str
    metrics: Sequence[Mapping[str, Any]]

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.name

    @property
    def seed(self) -> int | None:
        """The seed."""
        seed = self.config.get("seed")
        return seed if isinstance(seed, int) else None

    @property
    def teacher(self) -> str:
        """What tells its teachers, and what was made of their vectors, from other runs'; empty without."""
        teachers = self.record.get("teachers") or []
        if not teachers:
            return ""
        made = (self.record.get("targets") or {}).get("projected_from")
        known = [(one.get("contract_id") or one.get("name"), one.get("share")) for one in teachers]
        return json.dumps([known, made])

    @property
    def teacher_name(self) -> str:
        """The teachers' names."""
        return " + ".join(str(one.get("name")) for one in self.record.get("teachers") or [])

    @property
    def result(self) -> Mapping[str, Any]:
        """What came out; empty of a run that is not finished."""
        return self.record.get("result") or {}

    @property
    def has_student(self) -> bool:
        """Whether a student was saved."""
        return (self.folder / BEST).is_dir()

    @property
    def setting(self) -> dict[str, Any]:
        """What runs of one student have in common: everything but the seed that decides how they end."""
        return run_setting(self.record, self.config)

    def curve(self, key: str) -> list[tuple[int, float]]:
        """Return (step, value) of a measure, by step."""
        points = {
            line["step"]: float(line[key])
            for line in self.metrics
            if isinstance(line.get("step"), int) and isinstance(line.get(key), (int, float))
        }
        return sorted(points.items())

    @property
    def dev_measure(self) -> str:
        """What the checkpoint was chosen by, as the metrics call it; empty where there is no such score."""
        names = [key for line in self.metrics for key in line if key.endswith("_spearman")]
        return names[0] if names else ""


def find_runs(places: Sequence[str | Path]) -> list[RunFolder]:
    """Return the runs in ``places``: run folders, or folders with runs anywhere below, sweeps for example.

    Raises:
        DataError: if a place is not there or holds no run, or a record cannot be read.
    """
    found: dict[Path, RunFolder] = {}
    for place in places:
        folder = Path(place).expanduser()
        if not folder.is_dir():
            raise DataError(f"no folder {folder}: give run folders, or a folder with runs below it")
        run = run_folder(folder)
        below = [run] if run else sorted(path.parent.resolve() for path in folder.rglob(RECORD))
        runs = [read_run(path) for path in below]
        if not runs:
            raise DataError(
                f"{folder} holds no run, there is no {RECORD} in it or below: give a folder that "
                "'distill run', 'distill finetune' or 'distill sweep' wrote"
            )
        found |= {one.folder: one for one in runs}
    return list(found.values())


def read_run(folder: Path) -> RunFolder:
    """Read a run's folder.

    Raises:
        DataError: if its record or its configuration cannot be read.
    """
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        place = folder / CONFIG
        text = place.read_text(encoding="utf-8") if place.is_file() else ""
        config = yaml.safe_load(text) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise DataError(
            f"the run {folder} cannot be read ({' '.join(str(error).split())}): restore its {RECORD} and "
            f"{CONFIG} from a copy, or leave it out"
        ) from error
    if not isinstance(record, dict) or not isinstance(config, dict):
        raise DataError(f"the run {folder}: {RECORD} and {CONFIG} hold no objects; leave it out")
    return RunFolder(folder, record, config, text, _read_metrics(folder / METRICS))


def _read_metrics(path: Path) -> list[dict[str, Any]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        # The last line of a run that was killed may be torn.
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings as dotted key -> value."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found |= flat(value, f"{name}.")
        else:
            found[name] = value
    return found
