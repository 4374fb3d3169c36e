"""The first pull of a teacher: a sample of its vectors is compared with the live teacher, where that is here.

Digests say that vectors are as they were pushed, not that they are the teacher's.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from embedcache import model_note
from embedcache.cache import Cache, CachedTeacher
from embedcache.check.live import Computing
from embedcache.check.progress import OnCheck
from embedcache.check.verify.deep import BAD, check_deep
from embedcache.contract import Contract
from embedcache.errors import ContractMismatchError, InputError, StorageError, TeacherError
from embedcache.fsio import read_sealed_json, write_sealed_json
from embedcache.share.remote import Remote
from embedcache.teacher.aliases import ALIASES

SAMPLE = 100
NOT_COMPARED = "not compared"


@dataclass(frozen=True)
class SampleCheck:
    """What became of comparing a teacher's vectors with the live teacher.

    Attributes:
        teacher: its name.
        verdict: ``ok``, ``look`` or ``bad`` as ``embedcache verify --deep`` gives it, or ``not compared``.
        sampled: texts encoded.
        told: why it was not compared, or what the verdict means.
    """

    teacher: str
    verdict: str
    sampled: int
    told: str


def check_samples(
    cache: Cache,
    remote: Remote,
    contracts: Mapping[str, Contract],
    computing: Computing,
    on_progress: OnCheck | None = None,
) -> tuple[SampleCheck, ...]:
    """Compare a sample of each teacher that comes from ``remote`` for the first time.

    Args:
        cache: the cache that was pulled into.
        remote: where it was pulled from.
        contracts: the teachers that were pulled, by contract id.
        computing: how to run them.
        on_progress: called as the work goes on.

    Raises:
        CorruptCacheError: if the cache is damaged.
    """
    known = sampled_before(cache, remote)
    teachers = {one.contract.id: one for one in cache.teachers() if one.contract.id in contracts}
    fresh = [teacher for contract_id, teacher in teachers.items() if contract_id not in known]
    checks = [_check(cache, teacher, computing, on_progress) for teacher in fresh]
    compared = {
        teacher.contract.id: check.verdict
        for teacher, check in zip(fresh, checks, strict=True)
        if check.verdict != NOT_COMPARED
    }
    note_sampled(cache, remote, compared)
    return tuple(checks)


def sampled_before(cache: Cache, remote: Remote) -> dict[str, object]:
    """Return the verdicts on teachers of ``remote`` that were compared before, by contract id."""
    return _read(_note(cache, remote))


def note_sampled(cache: Cache, remote: Remote, verdicts: Mapping[str, str]) -> None:
    """Remember verdicts, so that nothing is compared twice; where that cannot be written it is."""
    if verdicts:
        with suppress(StorageError):
            write_sealed_json(_note(cache, remote), {**sampled_before(cache, remote), **verdicts})


def _note(cache: Cache, remote: Remote) -> Path:
    return cache.derived_folder / "remotes" / remote.id / "sampled.json"


def _check(
    cache: Cache, teacher: CachedTeacher, computing: Computing, on_progress: OnCheck | None
) -> SampleCheck:
    # A folder that somebody else's note names is not looked for here.
    noted = computing.teacher_model or model_note.read(cache.derived_folder, teacher.contract.id)
    spec = noted or cache.model_source(teacher)
    if not (is_at_hand(spec) or (noted is not None and Path(noted).expanduser().is_dir())):
        return SampleCheck(
            teacher.name,
            NOT_COMPARED,
            0,
            f"the model {str(spec)[:80]!r} is not on this machine; 'embedcache verify --deep --teacher "
            f"{teacher.contract.id[:12]} --teacher-model FOLDER' compares once you have it",
        )
    try:
        (found,) = check_deep(
            cache.folder,
            teacher=teacher.contract.id,
            sample=SAMPLE,
            computing=computing,
            on_progress=on_progress,
        )
    except (TeacherError, ContractMismatchError, InputError) as error:
        return SampleCheck(teacher.name, NOT_COMPARED, 0, str(error))
    worst = next(line for line in found.lines if line.verdict == found.worst)
    return SampleCheck(teacher.name, found.worst, found.sampled, worst.meaning)


def is_at_hand(spec: str | Path) -> bool:
    """Return whether the model that an alias or a hub id means is on this machine; nothing is downloaded."""
    text = str(spec)
    base, _, revision = text.partition("@")
    alias = ALIASES.get(base)
    if alias is not None and alias.module and not revision and importlib.util.find_spec(alias.module):
        return True
    model_id = base if alias is None else alias.model_id
    if model_id.count("/") != 1 or model_id.startswith((".", "/", "~")):
        return False
    from huggingface_hub import try_to_load_from_cache

    with suppress(ValueError):
        return isinstance(try_to_load_from_cache(model_id, "config.json", revision=revision or None), str)
    return False


def bad_samples(checks: Iterable[SampleCheck]) -> list[SampleCheck]:
    """Return those that found another teacher's vectors."""
    return [check for check in checks if check.verdict == BAD]


def _read(note: Path) -> dict[str, object]:
    try:
        return read_sealed_json(note)
    except (OSError, ValueError):
        return {}
