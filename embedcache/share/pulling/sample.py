"""A sample of what a pull has brought is compared with the live teacher, where that is here.

Digests say that vectors are as they were pushed, not that they are the teacher's.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from embedcache import model_note
from embedcache.cache import Cache, CachedTeacher
from embedcache.check.live import Computing
from embedcache.check.progress import OnCheck
from embedcache.check.verify.deep import BAD, LEAST_SAMPLE, check_deep, count_texts
from embedcache.check.verify.shards import open_without_codebook
from embedcache.contract import Contract
from embedcache.errors import (
    CacheFormatError,
    ContractMismatchError,
    CorruptCacheError,
    InputError,
    TeacherError,
)
from embedcache.fsio import canonical_json
from embedcache.sample_notes import SampleNote, SampleNotes
from embedcache.share.mirror_notes import streamed_shards
from embedcache.share.remote.manifest import Stock
from embedcache.share.remote.remote import Remote
from embedcache.sizes import counted
from embedcache.store.base import CONVERTED_FROM, TAKEN_AS
from embedcache.store.containers import ShardContainer
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

    A shard is compared unless it was noted here as one that need not be: it was compared, or is the cache's
    own, for it was here before and the remote does not have it. So nothing gets by where a pull was killed,
    the teacher was not at hand, another pull went on meanwhile or the notes are lost. What was found bad is
    told of until it is gone from the cache, or somebody says to keep it.

    Args:
        cache: the cache that is pulled into.
        remote: where from.
        contracts: the teachers that are pulled, by contract id.

    Raises:
        RemoteError: if the remote cannot be reached.
    """

    def __init__(self, cache: Cache, remote: Remote, contracts: Mapping[str, Contract]) -> None:
        self._cache, self._remote, self._contracts = cache, remote, contracts
        self._notes = SampleNotes(cache, remote.id)
        self._notes.add({one: self._begun(one) for one in contracts})

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
            note, here = self._notes.of(contract_id), self._shards(contract_id)
            if bad := here & note.bad:
                checks.append(SampleCheck(teacher.name, BAD, 0, _still_bad(teacher.name, len(bad))))
            if came := here - note.known - note.bad:
                found, note = self._compare(teacher, note, came, computing, on_progress)
                checks += found
            pending = bool(here - note.known)
            self._notes.add({contract_id: replace(note, pending=pending)})
        return tuple(checks)

    def keep(self) -> list[str]:
        """Compare nothing, now or later, and return what is worth telling: what was found bad and is kept."""
        told = []
        for teacher in self._teachers():
            contract_id = teacher.contract.id
            note, here = self._notes.of(contract_id), self._shards(contract_id)
            if bad := here & note.bad:
                told.append(
                    f"{teacher.name}: {counted(len(bad), 'shard')} that an earlier sample found bad kept, as "
                    "--no-sample-check asks; later pulls are silent about them, and pushes send them"
                )
            self._notes.add({contract_id: SampleNote(note.verdict, here)})
        return told

    def _compare(
        self,
        teacher: CachedTeacher,
        note: SampleNote,
        came: frozenset[str],
        computing: Computing,
        on_progress: OnCheck | None,
    ) -> tuple[list[SampleCheck], SampleNote]:
        """Compare what came of a teacher; return what to tell, and what is known then."""
        if note.told == self._state(teacher, came):
            return [], note
        if (missing := _missing_model(self._cache, teacher, computing)) is not None:
            # Said once of what has come, not of what was built here since.
            theirs = self._theirs(teacher.contract.id, came, note.verdict)
            told = _digest([missing.told, sorted(theirs)])
            return ([], note) if note.told == told else ([missing], replace(note, told=told))
        texts = count_texts(self._cache, teacher, came, on_progress)
        checks = []
        left = came
        if sum(texts.values()) >= LEAST_SAMPLE:
            check = _check(self._cache, teacher, frozenset(texts), computing, on_progress)
            if check.verdict == NOT_COMPARED:
                return [check], note
            if check.verdict == BAD:
                return [check], replace(note, verdict=BAD, bad=note.bad | came)
            checks.append(check)
            left = came - texts.keys()
            verdict = BAD if note.bad else check.verdict
            note = replace(note, verdict=verdict, known=note.known | texts.keys())
        if left:
            # Said once: there is nothing to do about it.
            checks.append(SampleCheck(teacher.name, NOT_COMPARED, 0, _without_texts(left, texts)))
            note = replace(note, told=self._state(teacher, left))
        return checks, note

    def _begun(self, contract_id: str) -> SampleNote:
        """Return what is known of a teacher's vectors as a pull begins."""
        note, here = self._notes.of(contract_id), self._shards(contract_id)
        if note.bad and not note.bad & here:
            # Of what came with it, what was not bad may come again.
            note = replace(note, verdict="", bad=frozenset())
        if note.pending:
            return note
        new = here - note.known
        known = note.known & here | new - self._theirs(contract_id, new, note.verdict)
        return replace(note, known=known, pending=True)

    def _theirs(self, contract_id: str, names: frozenset[str], verdict: str) -> frozenset[str]:
        """Return which of some shards have come from the remote, as far as can be told."""
        if not names:
            return names
        listed = self._listed.get(contract_id, frozenset())
        streamed = streamed_shards(self._cache, contract_id)
        container = self._cache.container(self._contracts[contract_id])

        def is_theirs(name: str) -> bool:
            if name in listed or name in streamed:
                return True
            said = _provenance(container, name)
            # A build has compared what it takes, and has noted so.
            is_taken = TAKEN_AS in said and verdict in ("", BAD)
            return is_taken or said.get(CONVERTED_FROM) in listed

        return frozenset(filter(is_theirs, names))

    @cached_property
    def _listed(self) -> Mapping[str, frozenset[str]]:
        """The shards of each teacher that the remote has, in manifests that this pull leaves out as well."""
        stock = Stock(self._remote.survey(self._cache).manifests)
        return {
            contract_id: frozenset(file.sha256 for file in stock.shards(contract_id))
            for contract_id in stock.teacher_names
        }

    def _state(self, teacher: CachedTeacher, shards: frozenset[str]) -> str:
        """Return what tells whether some shards, or texts they might be compared by, have changed."""
        corpora = [texts.info.digest for one in self._cache.corpora() for texts in (one, *one.views())]
        here = self._shards(teacher.contract.id)
        return _digest([sorted(shards), sorted(here), sorted(corpora)])

    def _teachers(self) -> Iterable[CachedTeacher]:
        known = {one.contract.id: one for one in reversed(self._cache.teachers())}
        return [known[one] for one in self._contracts if one in known]

    def _shards(self, contract_id: str) -> frozenset[str]:
        return frozenset(self._cache.container(self._contracts[contract_id]).names())


def sampled_before(cache: Cache, remote: Remote, contract_id: str) -> str:
    """Return the last verdict on a teacher's vectors from ``remote``; empty where there was none."""
    return SampleNotes(cache, remote.id).of(contract_id).verdict


def note_sampled(cache: Cache, remote: Remote, contract_id: str, verdict: str) -> None:
    """Remember a verdict, so that nothing is compared twice; where that cannot be written it is."""
    notes = SampleNotes(cache, remote.id)
    notes.add({contract_id: replace(notes.of(contract_id), verdict=verdict)})


def _digest(said: object) -> str:
    return hashlib.sha256(canonical_json(said)).hexdigest()


def _provenance(container: ShardContainer, name: str) -> Mapping[str, object]:
    try:
        shard = open_without_codebook(container.open(name), name, container.where(name))
    except (CorruptCacheError, CacheFormatError):
        # Whoever reads it, and verify, tells of that.
        return {}
    return shard.header.provenance


def _without_texts(shards: Collection[str], texts: Mapping[str, int]) -> str:
    if texts.keys() & set(shards):
        return (
            f"{counted(sum(texts.values()), 'text')} of {counted(len(shards), 'shard')} here, expected at "
            f"least {LEAST_SAMPLE}: a later pull compares them with what comes then"
        )
    return (
        f"no text here has its vector from {counted(len(shards), 'shard')}: their texts are not here, or "
        "other shards have them too; a later pull compares once one has"
    )


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


def _missing_model(cache: Cache, teacher: CachedTeacher, computing: Computing) -> SampleCheck | None:
    """Return what to tell where a teacher's model is not here."""
    # A folder that somebody else's note names is not looked for here.
    noted = computing.teacher_model or model_note.read(cache.derived_folder, teacher.contract.id)
    spec = noted or cache.model_source(teacher)
    if is_at_hand(spec) or (noted is not None and Path(noted).expanduser().is_dir()):
        return None
    return SampleCheck(
        teacher.name,
        NOT_COMPARED,
        0,
        f"the model {str(spec)[:80]!r} is not on this machine; the same command with --teacher-model FOLDER "
        "compares once you have it",
    )


def _check(
    cache: Cache,
    teacher: CachedTeacher,
    shards: Collection[str],
    computing: Computing,
    on_progress: OnCheck | None,
) -> SampleCheck:
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
        own = replace(computing, teacher_model=None)
        # The model that somebody names is that of one of the teachers.
        is_another = isinstance(error, ContractMismatchError) and own != computing
        if is_another and _missing_model(cache, teacher, own) is None:
            found_so = _check(cache, teacher, shards, own, on_progress)
            told = f"compared with its own model, for that of --teacher-model is another's; {found_so.told}"
            return replace(found_so, told=told)
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
