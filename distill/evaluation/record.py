"""What an evaluation reads of a run's folder: the student's place, its teachers, and its cache."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from distill.errors import DataError
from distill.layout import BEST, IN_TARGET_SPACE, RECORD, TARGETS
from distill.record import run_folder

if TYPE_CHECKING:
    from distill.data.combination import Combination
    from embedcache.contract import Contract


@dataclass(frozen=True)
class RunTeacher:
    """The teacher that a run's record names; ``spec`` loads it, the contract says what it was then.

    A run whose targets were made of several teachers' vectors, or of one's by a projection, has a teacher
    with ``parts``: the teachers themselves. Two runs have the same one where the parts and the way they are
    combined are the same.

    Attributes:
        name: its name in reports.
        spec: what it is loaded from.
        contract_id: the contract it had.
        contract: the whole contract, where the record holds it.
        parts: the teachers its vectors are made of; empty where they are one teacher's own.
        made: digest of how they are made.
        run: the run, which holds how they are made.
    """

    name: str
    spec: str
    contract_id: str | None
    contract: Contract | None = None
    parts: tuple[RunTeacher, ...] = ()
    made: str | None = None
    run: Path | None = field(default=None, compare=False)

    def combination(self) -> Combination:
        """Return how the vectors of ``parts`` become targets.

        Raises:
            DataError: if the run does not say so, or not of as many teachers.
        """
        from distill.data.combination import Combination

        if self.run is None:
            raise ValueError(f"{self.name} is one teacher, nothing is combined")
        found = Combination.load(self.run)
        if len(found.names) != len(self.parts):
            raise DataError(
                f"{self.run / TARGETS} combines {len(found.names)} teachers, the run's record names "
                f"{len(self.parts)}: restore both from one copy of the run, or give --teacher"
            )
        return found


def read_run_teacher(run: Path) -> RunTeacher | None:
    """Return the teacher that ``run``'s record names; None where it names none.

    Raises:
        DataError: if the record is damaged.
    """
    path = run / RECORD
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise DataError(
            f"{path} cannot be read as JSON ({error}); give --teacher and name {run / BEST}"
        ) from error
    if not isinstance(record, dict) or record.get("teacher") is None:
        return None
    first = _read_teacher(path, record["teacher"])
    targets = record.get("targets")
    if not isinstance(targets, dict) or targets.get("file") is None:
        return first
    teachers = record.get("teachers")
    if not isinstance(teachers, list) or not teachers:
        raise DataError(f"{path}: 'teachers' is {teachers!r}, expected a list of objects; give --teacher")
    parts = tuple(_read_teacher(path, teacher) for teacher in teachers)
    name = " + ".join(part.name for part in parts)
    return RunTeacher(name, name, None, parts=parts, made=_digest_of_targets(run), run=run)


def read_run_cache(run: Path) -> Path | None:
    """Return the cache that ``run`` was trained from; None where its record names none that still exists."""
    try:
        record = json.loads((run / RECORD).read_text(encoding="utf-8"))
    except (ValueError, OSError):
        return None
    cache = record.get("cache") if isinstance(record, dict) else None
    return Path(cache) if isinstance(cache, str) and Path(cache).is_dir() else None


def is_in_target_space(spec: object) -> bool:
    """Return whether vectors of ``spec`` are to be like its teacher's, number by number.

    Those of a run whose head was dropped are not, even where they are as wide.
    """
    run = run_folder(spec)
    try:
        record = {} if run is None else json.loads((run / RECORD).read_text(encoding="utf-8"))
    except (ValueError, OSError):
        return True
    return not isinstance(record, dict) or record.get(IN_TARGET_SPACE) is not False


def _digest_of_targets(run: Path) -> str:
    try:
        return hashlib.sha256((run / TARGETS).read_bytes()).hexdigest()
    except OSError as error:
        raise DataError(
            f"{run / TARGETS}, which says how the run's targets were made, cannot be read "
            f"({error.strerror}): restore it from another copy of the run, or give --teacher"
        ) from error


def _read_teacher(path: Path, teacher: object) -> RunTeacher:
    if not isinstance(teacher, dict) or not isinstance(teacher.get("name"), str):
        raise DataError(f"{path}: 'teacher' is {teacher!r}, expected an object with a name; give --teacher")
    name = teacher["name"]
    contract_id = teacher.get("contract_id")
    return RunTeacher(
        name,
        str(teacher.get("spec") or name),
        str(contract_id) if contract_id else None,
        _read_contract(path, teacher.get("contract")),
    )


def _read_contract(path: Path, value: object) -> Contract | None:
    from embedcache.contract import Contract
    from embedcache.errors import CorruptCacheError

    if value is None:
        return None
    try:
        return Contract.from_json(value)
    except CorruptCacheError as error:
        raise DataError(f"{path}: the teacher's contract cannot be read ({error}); give --teacher") from error
