"""A sample of what a pull has brought is compared with the live teacher, where that is here.

Digests say that vectors are as they were pushed, not that they are the teacher's.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from embedcache import model_note
from embedcache.cache import Cache, CachedTeacher
from embedcache.check.live import Computing
from embedcache.check.progress import OnCheck
from embedcache.check.verify.deep import BAD, check_deep
from embedcache.contract import Contract
from embedcache.errors import ContractMismatchError, InputError, TeacherError
from embedcache.share.mirror_notes import streamed_shards
from embedcache.share.remote import Remote
from embedcache.share.sample_notes import SampleNote, SampleNotes
from embedcache.sizes import counted
from embedcache.teacher.aliases import ALIASES

SAMPLE = 100
NOT_COMPARED = "not compared"


@dataclass(frozen=True)
class SampleCheck:
    """What became of comparing a teacher's vectors with the live teacher.

    Attributes:
        teacher: its name.
        verdict: ``ok``, ``look`` or ``bad`` as ``embedcache verify --deep`` gives it, or ``not compared``.
        sampled: texts encoded; 0 where an earlier pull has found the vectors bad.
        told: why it was not compared, or what the verdict means.
    """

    teacher: str
    verdict: str
    sampled: int
    told: str


class ArrivalSamples:
    """Samples of what comes from a remote; to be made before anything does.

    What was there before is noted: should the pull be killed, or the teacher not be at hand, the next one
    compares what this one has brought. What was found bad stays noted until it is gone from the cache, or
    somebody says to keep it.

    Args:
        cache: the cache that is pulled into.
        remote: where from.
        contracts: the teachers that are pulled, by contract id.
    """

    def __init__(self, cache: Cache, remote: Remote, contracts: Mapping[str, Contract]) -> None:
        self._cache, self._contracts = cache, contracts
        self._notes = SampleNotes(cache, remote)
        notes = {one: self._notes.get(one) for one in contracts}
        self._notes.put(
            {
                # What a run has fetched into a mirror was not compared either.
                one: replace(note, before=tuple(sorted(self._shards(one) - streamed_shards(cache, one))))
                for one, note in notes.items()
                if note.before is None
            }
        )

    def compare(self, computing: Computing, on_progress: OnCheck | None = None) -> tuple[SampleCheck, ...]:
        """Compare a sample of each teacher of which something came, and tell again of what was found bad.

        Args:
            computing: how to run the teachers.
            on_progress: called as the work goes on.

        Raises:
            CorruptCacheError: if the cache is damaged.
        """
        checks = []
        for teacher in self._teachers():
            contract_id = teacher.contract.id
            note, here = self._notes.get(contract_id), self._shards(contract_id)
            came = here - set(note.before or ())
            if bad := here & set(note.bad):
                checks.append(SampleCheck(teacher.name, BAD, 0, _still_bad(teacher.name, len(bad))))
                continue
            if not came:
                self._notes.put({contract_id: SampleNote(note.verdict)})
                continue
            check = _check(self._cache, teacher, came, computing, on_progress)
            checks.append(check)
            if check.verdict == BAD:
                self._notes.put({contract_id: SampleNote(BAD, note.before, tuple(sorted(came)))})
            elif check.verdict != NOT_COMPARED:
                self._notes.put({contract_id: SampleNote(check.verdict)})
        return tuple(checks)

    def keep(self) -> list[str]:
        """Compare nothing, now or later, and return what is worth telling: what was found bad and is kept."""
        told = []
        for teacher in self._teachers():
            contract_id = teacher.contract.id
            note = self._notes.get(contract_id)
            if bad := self._shards(contract_id) & set(note.bad):
                told.append(
                    f"{teacher.name}: {counted(len(bad), 'shard')} that an earlier sample found bad kept, as "
                    "--no-sample-check asks; later pulls are silent about them"
                )
            self._notes.put({contract_id: SampleNote(note.verdict)})
        return told

    def _teachers(self) -> Iterable[CachedTeacher]:
        known = {one.contract.id: one for one in reversed(self._cache.teachers())}
        return [known[one] for one in self._contracts if one in known]

    def _shards(self, contract_id: str) -> set[str]:
        return set(self._cache.container(self._contracts[contract_id]).names())


def sampled_before(cache: Cache, remote: Remote, contract_id: str) -> str:
    """Return the last verdict on a teacher's vectors from ``remote``; empty where there was none."""
    return SampleNotes(cache, remote).get(contract_id).verdict


def note_sampled(cache: Cache, remote: Remote, contract_id: str, verdict: str) -> None:
    """Remember a verdict, so that nothing is compared twice; where that cannot be written it is."""
    notes = SampleNotes(cache, remote)
    notes.put({contract_id: replace(notes.get(contract_id), verdict=verdict)})


def _still_bad(teacher: str, shards: int) -> str:
    return (
        f"an earlier pull found other vectors than the teacher's; still here of what came with them: "
        f"{counted(shards, 'shard')}; {_remedy(teacher)}"
    )


def _remedy(teacher: str) -> str:
    return (
        f"'embedcache rm teacher {teacher}' takes its vectors away, and a pull with --skip-manifest or "
        "--require-signature does without those; --no-sample-check keeps them"
    )


def _check(
    cache: Cache,
    teacher: CachedTeacher,
    shards: Collection[str],
    computing: Computing,
    on_progress: OnCheck | None,
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
            shards=shards,
            sample=SAMPLE,
            computing=computing,
            on_progress=on_progress,
        )
    except (TeacherError, ContractMismatchError, InputError) as error:
        return SampleCheck(teacher.name, NOT_COMPARED, 0, str(error))
    worst = next(line for line in found.lines if line.verdict == found.worst)
    told = (
        f"other vectors than the teacher's: {_remedy(teacher.name)}" if found.worst == BAD else worst.meaning
    )
    return SampleCheck(teacher.name, found.worst, found.sampled, told)


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
