"""After a pull, a sample of the vectors that arrived is compared with the live teacher.

Digests only show that vectors are as they were pushed, not that they are the teacher's. What is known of each
shard is told in :mod:`embedcache.share.pulling.sample_states`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import cached_property, partial

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
from embedcache.sample_notes import SampleNote, SampleNotes, bad_shards, forget_lost, keep_bad
from embedcache.share.mirror_notes import streamed_shards
from embedcache.share.pulling.contradictions import Contradiction, contradiction
from embedcache.share.pulling.models_at_hand import missing_model_note
from embedcache.share.pulling.sample_check import NOT_COMPARED, SampleCheck, apart_from_bad
from embedcache.share.pulling.sample_states import (
    begun,
    ended,
    found_bad,
    found_good,
    kept,
)
from embedcache.share.pulling.sample_texts import (
    contradiction_told,
    listed_by,
    still_bad,
    without_texts,
    wrong_told,
)
from embedcache.share.remote.manifest import Stock
from embedcache.share.remote.remote import Remote
from embedcache.sizes import counted
from embedcache.store.base import CONVERTED_FROM, TAKEN_AS
from embedcache.store.containers import ShardContainer

SAMPLE = 100
# So often a sample is taken again without the shards that were wrong.
_MOST_SAMPLES = 8


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
        self._begun_with = {contract_id: self._shards(contract_id) for contract_id in contracts}
        for contract_id in contracts:
            self._begin(contract_id)

    def compare(self, computing: Computing, on_progress: OnCheck | None = None) -> tuple[SampleCheck, ...]:
        """Compare a sample of the open shards of each teacher, and tell again of bad shards.

        Args:
            computing: how to run the teachers.
            on_progress: called as the work goes on.

        Raises:
            CorruptCacheError: if the cache is damaged.
        """
        checks: list[SampleCheck] = []
        for teacher in self._teachers():
            contract_id = teacher.contract.id
            here = self._shards(contract_id)
            found = []
            if bad_here := here & self._notes.of(contract_id).bad:
                told = still_bad(teacher.name, len(bad_here), self._pushed(contract_id, bad_here))
                found.append(SampleCheck(teacher.name, BAD, 0, told))
            found += self._compare_with_earlier(teacher, here, on_progress)
            found += self._compare_open(teacher, here, computing, on_progress)
            checks += apart_from_bad(found)
            # What is not from here may be another pull's, of a push that this one does not know of.
            note = self._notes.of(contract_id)
            came = here - note.known - note.earlier - note.bad - self._begun_with[contract_id]
            others = came - self._from_remote(contract_id, came, "")
            self._notes.revise(contract_id, partial(ended, here=here, others=others))
        return tuple(checks)

    def keep(self) -> list[str]:
        """Make all shards known without a comparison; return a line for each teacher with bad shards."""
        told = []
        for teacher in self._teachers():
            contract_id = teacher.contract.id
            here = self._shards(contract_id)
            bad_here = here & self._notes.of(contract_id).bad
            # Of what is bad from other remotes, this pull keeps what it would have brought itself.
            if of_others := here & bad_shards(self._cache, contract_id) - bad_here:
                bad_here |= of_others & self._listed.get(contract_id, frozenset())
            if bad_here:
                told.append(
                    f"{teacher.name}: {counted(len(bad_here), 'shard')} that an earlier sample found bad "
                    "kept, as --no-sample-check asks; later pulls are silent about them, and pushes send them"
                )
                keep_bad(self._cache, contract_id, bad_here)
            self._notes.revise(contract_id, partial(kept, here=here))
        return told

    def _compare_with_earlier(
        self, teacher: CachedTeacher, here: frozenset[str], on_progress: OnCheck | None
    ) -> list[SampleCheck]:
        """Compare shards that came with those that were here; return what to tell."""
        contract_id = teacher.contract.id
        note, begun_with = self._notes.of(contract_id), self._begun_with[contract_id]
        bad = bad_shards(self._cache, contract_id)
        before = (here & (note.known | note.earlier)) - bad
        came = here - note.known - note.earlier - bad
        if came:
            # A build may have added shards meanwhile.
            came = self._from_remote(contract_id, came, "")
        # A pull that was killed, or a build, may have brought what nobody has compared yet.
        found = self._contradiction(teacher, came & begun_with, before, on_progress)
        before |= here & begun_with - bad - found.shards
        found |= self._contradiction(teacher, came - begun_with, before, on_progress)
        if not found.shards:
            return []
        self._notes.revise(contract_id, partial(found_bad, shards=found.shards))
        told = contradiction_told(teacher.name, found, self._pushed(contract_id, found.shards))
        return [SampleCheck(teacher.name, BAD, 0, told)]

    def _contradiction(
        self,
        teacher: CachedTeacher,
        came: frozenset[str],
        before: frozenset[str],
        on_progress: OnCheck | None,
    ) -> Contradiction:
        if not came or not before:
            return Contradiction()
        seed = self._notes.secret_number()
        return contradiction(self._cache, teacher.contract, came, before, seed, on_progress)

    def _compare_open(
        self,
        teacher: CachedTeacher,
        here: frozenset[str],
        computing: Computing,
        on_progress: OnCheck | None,
    ) -> list[SampleCheck]:
        """Compare a sample of a teacher's open shards; return what to tell."""
        contract_id = teacher.contract.id
        note = self._notes.of(contract_id)
        open_shards = here - note.known - note.bad
        if not open_shards or note.told == self._situation(teacher, open_shards):
            return []
        missing_model = _missing_model(self._cache, teacher, computing)
        if missing_model is not None:
            return self._without_model(teacher, note, open_shards, missing_model)
        counts = count_texts(self._cache, teacher, open_shards, on_progress)
        earlier = open_shards & note.earlier
        own = earlier - self._from_remote(contract_id, earlier, "")
        checks: list[SampleCheck] = []
        # By themselves, for one's own do not become bad for what came.
        for group in (open_shards - own, own):
            texts = {name: count for name, count in counts.items() if name in group}
            check, wrong = self._without_wrong(teacher, texts, computing, on_progress)
            if check is not None and wrong:
                told = wrong_told(teacher.name, wrong, self._pushed(contract_id, wrong))
                checks.append(SampleCheck(teacher.name, BAD, check.sampled, told))
            if check is not None and check.verdict == NOT_COMPARED:
                return [*checks, check]
            left = group - wrong
            if check is not None and check.verdict != BAD:
                # One's own say nothing about what the remote has.
                verdict = note.verdict if group is own else check.verdict
                good = texts.keys() - wrong
                self._notes.revise(contract_id, partial(found_good, shards=good, verdict=verdict))
                left -= good
                if group is not own and not wrong:
                    checks.append(check)
            open_shards -= group - left
            if left and group is not own:
                # Told once, because nobody can do anything about it.
                checks.append(SampleCheck(teacher.name, NOT_COMPARED, 0, without_texts(left, texts)))
        if open_shards:
            self._note_told(contract_id, self._situation(teacher, open_shards))
        return checks

    def _without_wrong(
        self,
        teacher: CachedTeacher,
        texts: Mapping[str, int],
        computing: Computing,
        on_progress: OnCheck | None,
    ) -> tuple[SampleCheck | None, frozenset[str]]:
        """Compare samples of shards until one without those that are wrong is good, and note the wrong ones.

        Args:
            teacher: the teacher.
            texts: the shards, with how many texts each has.
            computing, on_progress: as for :meth:`compare`.

        Returns:
            The last comparison, None where there are too few texts for one, and the wrong shards.
        """
        left, wrong, sampled = dict(texts), frozenset[str](), 0
        check = None
        for number in range(_MOST_SAMPLES):
            if sum(left.values()) < LEAST_SAMPLE:
                break
            # Whoever knew the seed could push the right vectors of what is compared, and any others.
            seed = self._notes.secret_number()
            check, found = _check(self._cache, teacher, frozenset(left), computing, seed, on_progress)
            sampled += check.sampled
            check = replace(check, sampled=sampled)
            if check.verdict != BAD:
                break
            # If each sample finds more, nobody knows how much is wrong.
            fresh = found if number + 1 < _MOST_SAMPLES else frozenset(left)
            self._notes.revise(teacher.contract.id, partial(found_bad, shards=fresh))
            wrong |= fresh
            left = {name: count for name, count in left.items() if name not in fresh}
        return check, wrong

    def _without_model(
        self, teacher: CachedTeacher, note: SampleNote, open_shards: frozenset[str], check: SampleCheck
    ) -> list[SampleCheck]:
        """Tell that a model is missing, once for the same shards of the remote."""
        from_remote = self._from_remote(teacher.contract.id, open_shards, note.verdict)
        told = digest_of([check.told, sorted(from_remote)])
        if note.told == told:
            return []
        self._note_told(teacher.contract.id, told)
        return [check]

    def _note_told(self, contract_id: str, told: str) -> None:
        self._notes.revise(contract_id, partial(replace, told=told))

    def _begin(self, contract_id: str) -> None:
        """Note that a pull begins."""
        here, streamed = self._begun_with[contract_id], streamed_shards(self._cache, contract_id)
        note = self._notes.revise(contract_id, partial(forget_lost, here=here))
        new = here - note.known - note.earlier - note.bad
        own = new - self._from_remote(contract_id, new, note.verdict)
        self._notes.revise(contract_id, partial(begun, here=here, own=own, streamed=streamed))

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

    def _pushed(self, contract_id: str, names: frozenset[str]) -> str:
        """Return which manifests list some shards, or what these are copies of, as a clause."""
        container = self._cache.container(self._contracts[contract_id])
        made_from = {_provenance(container, name).get(CONVERTED_FROM) for name in names}
        return listed_by(names | made_from, self._stock.manifests)

    @cached_property
    def _listed(self) -> Mapping[str, frozenset[str]]:
        """The shards of each teacher that the remote has, in manifests that this pull leaves out as well."""
        return {
            contract_id: frozenset(file.sha256 for file in self._stock.shards(contract_id))
            for contract_id in self._stock.teacher_names
        }

    @cached_property
    def _stock(self) -> Stock:
        """What the remote has, in manifests that this pull leaves out as well."""
        return Stock(self._remote.survey(self._cache).manifests)

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
    SampleNotes(cache, remote.id).revise(contract_id, partial(replace, verdict=verdict))


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


def _missing_model(cache: Cache, teacher: CachedTeacher, computing: Computing) -> SampleCheck | None:
    """Return what to tell if a teacher's model is not on this machine, else None."""
    note = missing_model_note(cache, teacher, computing, "the same command")
    return None if note is None else SampleCheck(teacher.name, NOT_COMPARED, 0, note)


def _check(
    cache: Cache,
    teacher: CachedTeacher,
    shards: Collection[str],
    computing: Computing,
    seed: int,
    on_progress: OnCheck | None,
) -> tuple[SampleCheck, frozenset[str]]:
    """Compare texts that have their vector from ``shards`` with the live teacher, and return wrong shards."""
    try:
        (deep,) = check_deep(
            cache.folder,
            teacher=teacher.contract.id,
            shards=shards,
            sample=SAMPLE,
            seed=seed,
            computing=computing,
            on_progress=on_progress,
        )
    except (TeacherError, ContractMismatchError, InputError) as error:
        with_own_model = replace(computing, teacher_model=None)
        # --teacher-model names one model, and several teachers may be pulled.
        is_another = isinstance(error, ContractMismatchError) and with_own_model != computing
        if is_another and _missing_model(cache, teacher, with_own_model) is None:
            check, wrong = _check(cache, teacher, shards, with_own_model, seed, on_progress)
            told = f"compared with its own model, for that of --teacher-model is another's; {check.told}"
            return replace(check, told=told), wrong
        return SampleCheck(teacher.name, NOT_COMPARED, 0, str(error)), frozenset()
    worst = next(line for line in deep.lines if line.verdict == deep.worst)
    return SampleCheck(teacher.name, deep.worst, deep.sampled, worst.meaning), frozenset(deep.wrong_shards)
