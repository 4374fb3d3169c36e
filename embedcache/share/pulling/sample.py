"""After a pull, a sample of the vectors that arrived is compared with the live teacher.

Digests only show that vectors are as they were pushed, not that they are the teacher's. What is known of each
shard is told in :mod:`embedcache.share.pulling.sample_states`.
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
from embedcache.share.pulling.sample_states import forget_lost, found_bad, found_good
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
    """Compares what arrives from a remote; has to be made before anything arrives.

    Bad shards are told of by every pull until they are gone from the cache, or somebody says to keep them.

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
        self._notes.add({contract_id: self._note_at_begin(contract_id) for contract_id in contracts})

    def compare(self, computing: Computing, on_progress: OnCheck | None = None) -> tuple[SampleCheck, ...]:
        """Compare a sample of the open shards of each teacher, and tell again of bad shards.

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
            if bad_here := here & note.bad:
                checks.append(SampleCheck(teacher.name, BAD, 0, _still_bad(teacher.name, len(bad_here))))
            if open_shards := here - note.known - note.bad:
                new_checks, note = self._compare_open(teacher, note, open_shards, computing, on_progress)
                checks += new_checks
            self._notes.add({contract_id: replace(note, pending=bool(here - note.known))})
        return tuple(checks)

    def keep(self) -> list[str]:
        """Make all shards known without a comparison; return a line for each teacher with bad shards."""
        told = []
        for teacher in self._teachers():
            contract_id = teacher.contract.id
            note, here = self._notes.of(contract_id), self._shards(contract_id)
            if bad_here := here & note.bad:
                told.append(
                    f"{teacher.name}: {counted(len(bad_here), 'shard')} that an earlier sample found bad "
                    "kept, as --no-sample-check asks; later pulls are silent about them, and pushes send them"
                )
            self._notes.add({contract_id: SampleNote(note.verdict, here)})
        return told

    def _compare_open(
        self,
        teacher: CachedTeacher,
        note: SampleNote,
        open_shards: frozenset[str],
        computing: Computing,
        on_progress: OnCheck | None,
    ) -> tuple[list[SampleCheck], SampleNote]:
        """Compare a sample of a teacher's open shards; return what to tell, and the new note."""
        if note.told == self._situation(teacher, open_shards):
            return [], note
        missing_model = _missing_model(self._cache, teacher, computing)
        if missing_model is not None:
            return self._without_model(teacher, note, open_shards, missing_model)
        texts = count_texts(self._cache, teacher, open_shards, on_progress)
        checks = []
        if sum(texts.values()) >= LEAST_SAMPLE:
            check = _check(self._cache, teacher, frozenset(texts), computing, on_progress)
            if check.verdict == NOT_COMPARED:
                return [check], note
            if check.verdict == BAD:
                return [check], found_bad(note, open_shards)
            checks.append(check)
            open_shards -= texts.keys()
            note = found_good(note, texts.keys(), check.verdict)
        if open_shards:
            # Told once, because nobody can do anything about it.
            checks.append(SampleCheck(teacher.name, NOT_COMPARED, 0, _without_texts(open_shards, texts)))
            note = replace(note, told=self._situation(teacher, open_shards))
        return checks, note

    def _without_model(
        self, teacher: CachedTeacher, note: SampleNote, open_shards: frozenset[str], check: SampleCheck
    ) -> tuple[list[SampleCheck], SampleNote]:
        """Tell that a model is missing, once for the same shards of the remote."""
        from_remote = self._from_remote(teacher.contract.id, open_shards, note.verdict)
        told = digest_of([check.told, sorted(from_remote)])
        return ([], note) if note.told == told else ([check], replace(note, told=told))

    def _note_at_begin(self, contract_id: str) -> SampleNote:
        """Return the note on a teacher with which a pull begins."""
        here = self._shards(contract_id)
        note = forget_lost(self._notes.of(contract_id), here)
        if note.pending:
            return note
        new = here - note.known
        own = new - self._from_remote(contract_id, new, note.verdict)
        return replace(note, known=note.known & here | own, pending=True)

    def _from_remote(self, contract_id: str, names: frozenset[str], verdict: str) -> frozenset[str]:
        """Return which of some shards have come from the remote, as far as can be told.

        Args:
            contract_id: their teacher's.
            names: the shards.
            verdict: of the last comparison of this teacher.
        """
        if not names:
            return names
        listed = self._listed.get(contract_id, frozenset())
        streamed = streamed_shards(self._cache, contract_id)
        container = self._cache.container(self._contracts[contract_id])

        def is_from_remote(name: str) -> bool:
            if name in listed or name in streamed:
                return True
            provenance = _provenance(container, name)
            # A build that took rows from the remote has compared them, and has noted the verdict.
            is_taken_unseen = TAKEN_AS in provenance and verdict in ("", BAD)
            return is_taken_unseen or provenance.get(CONVERTED_FROM) in listed

        return frozenset(filter(is_from_remote, names))

    @cached_property
    def _listed(self) -> Mapping[str, frozenset[str]]:
        """The shards of each teacher that the remote has, in manifests that this pull leaves out as well."""
        stock = Stock(self._remote.survey(self._cache).manifests)
        return {
            contract_id: frozenset(file.sha256 for file in stock.shards(contract_id))
            for contract_id in stock.teacher_names
        }

    def _situation(self, teacher: CachedTeacher, shards: frozenset[str]) -> str:
        """Return a digest of some shards and of everything that they might be compared by."""
        corpora = [
            texts.info.digest for corpus in self._cache.corpora() for texts in (corpus, *corpus.views())
        ]
        here = self._shards(teacher.contract.id)
        return digest_of([sorted(shards), sorted(here), sorted(corpora)])

    def _teachers(self) -> Iterable[CachedTeacher]:
        teachers = {teacher.contract.id: teacher for teacher in reversed(self._cache.teachers())}
        return [teachers[contract_id] for contract_id in self._contracts if contract_id in teachers]

    def _shards(self, contract_id: str) -> frozenset[str]:
        return frozenset(self._cache.container(self._contracts[contract_id]).names())


def sampled_before(cache: Cache, remote: Remote, contract_id: str) -> str:
    """Return the last verdict on a teacher's vectors from ``remote``; empty if nothing was compared."""
    return SampleNotes(cache, remote.id).of(contract_id).verdict


def note_sampled(cache: Cache, remote: Remote, contract_id: str, verdict: str) -> None:
    """Note a verdict, so that the next build compares nothing. If the note cannot be written, it does."""
    notes = SampleNotes(cache, remote.id)
    notes.add({contract_id: replace(notes.of(contract_id), verdict=verdict)})


def digest_of(value: object) -> str:
    """Return the sha256 of a value's canonical JSON: what a note keeps of what was told."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def _provenance(container: ShardContainer, name: str) -> Mapping[str, object]:
    try:
        shard = open_without_codebook(container.open(name), name, container.where(name))
    except (CorruptCacheError, CacheFormatError):
        # Reading the shard, or verify, will tell that it is damaged.
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
    """Return what to tell if a teacher's model is not on this machine, else None."""
    note = missing_model_note(cache, teacher, computing, "the same command")
    return None if note is None else SampleCheck(teacher.name, NOT_COMPARED, 0, note)


def missing_model_note(cache: Cache, teacher: CachedTeacher, computing: Computing, again: str) -> str | None:
    """Return a note if a teacher's model is not on this machine, else None.

    Args:
        cache: the cache that has the teacher.
        teacher: the teacher.
        computing: how to run it.
        again: what compares once the model is here, for the note.
    """
    # A folder counts if this machine has noted it, not if it is named by what came with the teacher.
    noted = computing.teacher_model or model_note.read(cache.derived_folder, teacher.contract.id)
    spec = noted or cache.model_source(teacher)
    if is_at_hand(spec) or (noted is not None and Path(noted).expanduser().is_dir()):
        return None
    return (
        f"the model {str(spec)[:80]!r} is not on this machine; {again} with --teacher-model FOLDER compares "
        "once you have it"
    )


def _check(
    cache: Cache,
    teacher: CachedTeacher,
    shards: Collection[str],
    computing: Computing,
    on_progress: OnCheck | None,
) -> SampleCheck:
    """Compare texts that have their vector from ``shards`` with the live teacher."""
    try:
        (deep,) = check_deep(
            cache.folder,
            teacher=teacher.contract.id,
            shards=shards,
            sample=SAMPLE,
            computing=computing,
            on_progress=on_progress,
        )
    except (TeacherError, ContractMismatchError, InputError) as error:
        with_own_model = replace(computing, teacher_model=None)
        # --teacher-model names one model, and several teachers may be pulled.
        is_another = isinstance(error, ContractMismatchError) and with_own_model != computing
        if is_another and _missing_model(cache, teacher, with_own_model) is None:
            check = _check(cache, teacher, shards, with_own_model, on_progress)
            told = f"compared with its own model, for that of --teacher-model is another's; {check.told}"
            return replace(check, told=told)
        return SampleCheck(teacher.name, NOT_COMPARED, 0, str(error))
    worst = next(line for line in deep.lines if line.verdict == deep.worst)
    told = (
        f"other vectors than the teacher's: {_remedy(teacher.name)}" if deep.worst == BAD else worst.meaning
    )
    return SampleCheck(teacher.name, deep.worst, deep.sampled, told)


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
    """Return the checks that found another teacher's vectors."""
    return [check for check in checks if check.verdict == BAD]
