"""Merge: the union of caches, with an answer to every conflict before anything is written."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from embedcache import model_note
from embedcache.cache import Cache, read_origin
from embedcache.corpus import view_store
from embedcache.corpus.corpus import Corpus, View
from embedcache.corpus.view_record import VIEWS, is_recorded
from embedcache.errors import InputError
from embedcache.fsio import remove_file, sha256_file, write_sealed_json
from embedcache.housekeeping import remove_corpus
from embedcache.merge.conflicts import Conflict, MergeConflictError
from embedcache.merge.corpora import CorpusPlan, Ruling, Source, TakenCorpus, identity, plan_corpora
from embedcache.merge.files import Carrier
from embedcache.merge.shards import Written, write_shards
from embedcache.merge.teachers import OnStep, TakenTeacher, TeacherPlan, plan_teachers

FIRST, LAST = "first", "last"
"""Words for whose side wins, beside the caches themselves."""


@dataclass(frozen=True)
class MergedTeacher:
    """A teacher of the merged cache.

    Attributes:
        names: its names.
        contract_id: sha256 of its contract.
        caches: which caches have vectors of it, the winner first.
        rows: rows that are taken; a key that stands in several shards counts in each.
        same: keys that a second cache has with the same vector.
        near: keys that a second cache has with a vector that is the same but for noise.
        worst_near: the lowest cosine among these.
        coarser: rows left behind because another cache has them in a finer codec.
        unread: rows left behind that were never read: another vector of a key, in another shard.
        lost: keys that lost against another cache's vector.
        shards: what became of the shards; None of a dry run.
    """

    names: tuple[str, ...]
    contract_id: str
    caches: tuple[str, ...]
    rows: int
    same: int
    near: int
    worst_near: float
    coarser: int
    unread: int
    lost: int
    shards: Written | None


@dataclass(frozen=True)
class MergedCorpus:
    """A corpus of the merged cache: its name, rows, digest and views, and which cache it is of."""

    name: str
    rows: int
    digest: str
    views: tuple[str, ...]
    cache: str


@dataclass(frozen=True)
class MergeResult:
    """What a merge did, or would do.

    Attributes:
        into: folder of the merged cache.
        caches: the caches that it is made of; ``into`` among them where it was there.
        corpora: its corpora.
        teachers: its teachers.
        conflicts: what the caches did not agree on, and what became of it.
        told: what else there is to know, a line each.
        files: files and shards written, with the digest of each taken.
        bytes: their size.
        seconds: how long it took.
        written: False for a dry run.
    """

    into: Path
    caches: tuple[str, ...]
    corpora: tuple[MergedCorpus, ...]
    teachers: tuple[MergedTeacher, ...]
    conflicts: tuple[Conflict, ...]
    told: tuple[str, ...]
    files: int = 0
    bytes: int = 0
    seconds: float = 0.0
    written: bool = False

    @property
    def undecided(self) -> tuple[Conflict, ...]:
        """The conflicts without an answer; only a dry run can have any."""
        return tuple(conflict for conflict in self.conflicts if not conflict.answer)

    def to_json(self) -> dict[str, object]:
        """Return the result as a JSON object."""
        return {**asdict(self), "into": str(self.into)}


@dataclass
class _Plan:
    corpora: CorpusPlan
    teachers: TeacherPlan
    conflicts: list[Conflict] = field(init=False)

    def __post_init__(self) -> None:
        self.conflicts = [*self.corpora.conflicts, *self.teachers.conflicts]


@dataclass(frozen=True)
class _Before:
    """What was in the target when the merge was planned: nothing else there may be deleted.

    Attributes:
        corpora: name -> digest.
        views: name of the corpus, name of the view -> identity.
    """

    corpora: Mapping[str, str]
    views: Mapping[tuple[str, str], str]

    @classmethod
    def of(cls, target: Cache | None) -> _Before:
        """Return what is in ``target``; None: nothing is."""
        corpora = [] if target is None else list(target.corpora())
        views = {(corpus.name, view.name): identity(view) for corpus in corpora for view in corpus.views()}
        return cls({corpus.name: corpus.info.digest for corpus in corpora}, views)

    def refuse_others(self, found: Corpus) -> None:
        """Refuse a corpus, or a view, that somebody has put there since.

        Raises:
            InputError: if ``found`` was not there.
        """
        if isinstance(found, View):
            known = self.views.get((found.of.name, found.name)) == identity(found)
        else:
            known = self.corpora.get(found.name) == found.info.digest
        if not known:
            raise _changed(found.title, found.folder)


def merge_caches(
    caches: Sequence[str | Path],
    into: str | Path,
    *,
    prefer: str | Path | None = None,
    keep_both: bool = False,
    noise: float | None = None,
    link: bool = False,
    dry_run: bool = False,
    on_step: OnStep | None = None,
) -> MergeResult:
    """Make ``into`` the union of itself, where it is there, and of ``caches``, which stay as they are.

    Killed at any moment, the same call goes on from there; once done, it has nothing to do.

    Args:
        caches: folders of the caches, one or more.
        into: folder of the merged cache.
        prefer: whose word counts where they do not agree: ``first`` or ``last`` in the order of ``into`` and
            ``caches``, or one of these folders; default: nobody's, and a conflict is an error.
        keep_both: let corpora, views and names of teachers that lose keep a name of their own, and the first
            win where ``prefer`` is not given. It says nothing of vectors.
        noise: how much 1 - cosine of two vectors of a key may be; default: what the headers of their shards
            explain, see :mod:`embedcache.merge.noise`.
        link: give files a second name on the same disk instead of copying them.
        dry_run: only say what would be done, conflicts without an answer among it.
        on_step: called as the work goes on.

    Raises:
        MergeConflictError: if there is a conflict that nobody has decided; nothing was written then.
        InputError: if the folders or arguments do not fit together.
        CorruptCacheError: if a cache is damaged.
        StorageError: if ``into`` cannot be written.
    """
    started = time.perf_counter()
    report = on_step or (lambda *_: None)
    target = Path(into).expanduser()
    sources = _sources(caches, target)
    ruling, ranked = _ruling(sources, prefer, keep_both=keep_both)
    before = _Before.of(next((one.cache for one in sources if _is(one, target)), None))
    plan = _Plan(plan_corpora(ranked, ruling), plan_teachers(ranked, ruling, noise, report))
    undecided = [conflict for conflict in plan.conflicts if not conflict.answer]
    if undecided and not dry_run:
        raise MergeConflictError(undecided)
    carrier, shards = Carrier(link), list[Written | None]()
    if not dry_run:
        written = Cache.create(target)
        _give_names(plan.teachers.taken, written)
        # Vectors first: a corpus that is there should find those of its texts.
        shards += [_write_teacher(one, ranked, written, carrier, report) for one in plan.teachers.taken]
        _write_corpora(plan.corpora.taken, written, carrier, report, before)
    return MergeResult(
        target,
        tuple(source.label for source in sources),
        tuple(
            MergedCorpus(
                one.name,
                len(one.corpus),
                one.corpus.info.digest,
                tuple(sorted(view.name for view in one.views)),
                one.source.label,
            )
            for one in plan.corpora.taken
        ),
        tuple(
            _merged_teacher(one, written_shards)
            for one, written_shards in zip(
                plan.teachers.taken, shards or [None] * len(plan.teachers.taken), strict=True
            )
        ),
        tuple(plan.conflicts),
        (*plan.corpora.told, *plan.teachers.told),
        carrier.files,
        carrier.bytes,
        time.perf_counter() - started,
        written=not dry_run,
    )


def _sources(caches: Sequence[str | Path], target: Path) -> list[Source]:
    """Return the caches to be merged in order; first what is at ``target``, if there is one."""
    if not caches:
        raise InputError("no cache to merge was given: name one or more, and --into for where they go")
    place = target.resolve()
    # What is there and is no cache is refused before the work, not after it.
    empty = target.is_dir() and all(entry.name.startswith(".") for entry in target.iterdir())
    sources = [Source(str(target), Cache(target))] if target.exists() and not empty else []
    places = [place]
    for one in caches:
        source = Cache(one)
        where = source.folder.resolve()
        if any(where == other or where in other.parents or other in where.parents for other in places):
            raise InputError(
                f"{one} is named twice, or lies in another of the caches: name each once; what is at --into "
                f"({target}) already takes part without being named"
            )
        places.append(where)
        sources.append(Source(str(one), source))
    return sources


def _ruling(
    sources: Sequence[Source], prefer: str | Path | None, *, keep_both: bool
) -> tuple[Ruling, list[Source]]:
    """Return how conflicts are decided, and the sources with the winner first."""
    if prefer is None:
        return Ruling(preferred=False, keep_both=keep_both, verdict="--keep-both, the first"), list(sources)
    verdict = f"--prefer {prefer}"
    if prefer == FIRST:
        return Ruling(preferred=True, keep_both=keep_both, verdict=verdict), list(sources)
    if prefer == LAST:
        return Ruling(preferred=True, keep_both=keep_both, verdict=verdict), list(reversed(sources))
    wanted = Path(prefer).expanduser().resolve()
    best = [source for source in sources if source.cache.folder.resolve() == wanted]
    if not best:
        raise InputError(
            f"{verdict}: expected {FIRST}, {LAST} or one of the caches "
            f"({', '.join(source.label for source in sources)})"
        )
    others = [source for source in sources if source not in best]
    return Ruling(preferred=True, keep_both=keep_both, verdict=verdict), [*best, *others]


def _merged_teacher(taken: TakenTeacher, shards: Written | None) -> MergedTeacher:
    weighed = taken.weighed
    return MergedTeacher(
        tuple(sorted(taken.names)),
        taken.contract.id,
        tuple(source.label for source, store in taken.holders if store.shards),
        sum(one.rows for one in weighed.taken),
        weighed.same,
        weighed.near,
        weighed.worst_near,
        weighed.coarser,
        weighed.unread,
        sum(dispute.keys for dispute in weighed.disputes),
        shards,
    )


def _write_teacher(
    taken: TakenTeacher, sources: Sequence[Source], target: Cache, carrier: Carrier, report: OnStep
) -> Written:
    folder = target.teacher_folder(taken.contract)
    # Before the contract: a teacher that is listed has its files.
    for name, (path, sha256) in taken.files.items():
        there = (folder / name).exists()
        if there and sha256_file(folder / name) != sha256:
            remove_file(folder / name)
        carrier.carry(path, folder / name, sha256)
    for name, origin in taken.names.items():
        target.register_teacher(name, taken.contract, origin)
        file = folder / "names" / f"{name}.json"
        if read_origin(file) != origin:
            write_sealed_json(file, origin)
    givers = [store for _, store in taken.holders]
    own = [store for source, store in taken.holders if _is(source, target.folder)]
    kinds = [store.kind for store in givers if store.shards]
    store = (
        own[0] if own and own[0].shards else target.store(taken.contract, kind=kinds[0] if kinds else None)
    )
    title = next(iter(taken.names))
    # As the merge was planned with: what others have added since was not weighed, and stays.
    before = {shard.name for one in own for shard in one.shards}
    written, names = write_shards(
        taken.weighed.taken,
        givers,
        store,
        folder / "codebooks",
        carrier,
        lambda done, total: report(f"write shards of {title}", done, total),
    )
    for lost in sorted(before - names):
        store.container.remove(lost)
    store.container.finish()
    # Opened anew, all that lies there is read once more and its digest taken; then the index is made.
    target.store(taken.contract).finish()
    for source in sources:
        note = model_note.read(source.cache.derived_folder, taken.contract.id)
        if note is not None and model_note.read(target.derived_folder, taken.contract.id) is None:
            target.remember_model(taken.contract, note)
    return written


def _give_names(teachers: Sequence[TakenTeacher], target: Cache) -> None:
    """Take from teachers of the target the names that others have won; they have their other ones first.

    Raises:
        InputError: if another process has given such a name to a teacher since the merge was planned.
    """
    names = {taken.contract: taken.names for taken in teachers}
    winners = {name: taken.contract for taken in teachers for name in taken.names}
    for teacher in target.teachers():
        if winners.get(teacher.name, teacher.contract) != teacher.contract:
            if teacher.contract not in names:
                raise _changed(f"teacher {teacher.name!r}", target.folder)
            for name, origin in names[teacher.contract].items():
                target.register_teacher(name, teacher.contract, origin)
            remove_file(target.teacher_folder(teacher.contract) / "names" / f"{teacher.name}.json")


def _is(source: Source, folder: Path) -> bool:
    return source.cache.folder.resolve() == folder.resolve()


def _changed(what: str, folder: Path) -> InputError:
    return InputError(
        f"another process has written {what} to {folder} since the merge was planned, which stays: run the "
        "same command again"
    )


def _write_corpora(
    corpora: Sequence[TakenCorpus], target: Cache, carrier: Carrier, report: OnStep, before: _Before
) -> None:
    # Those that lose their name first: what they are copied from is still there then.
    ordered = sorted(corpora, key=lambda one: one.name == one.corpus.name)
    total = len(ordered)
    for number, one in enumerate(ordered):
        report("write corpora", number, total)
        folder = target.corpora_folder / one.name
        if one.name in target.corpus_names() and Corpus(folder).info.digest != one.corpus.info.digest:
            before.refuse_others(Corpus(folder))
            remove_corpus(target, one.name)
        corpus = carrier.corpus(one.corpus, target.corpora_folder, one.name)
        for view in sorted(one.views, key=lambda view: view.name == view.view.name):
            if view.name in view_store.stale_views(corpus):
                view_store.remove_view(corpus, view.name)
            elif is_recorded(corpus.folder / VIEWS / view.name):
                there = corpus.view(view.name)
                if identity(there) != identity(view.view):
                    before.refuse_others(there)
                    view_store.remove_view(corpus, view.name)
            carrier.view(view.view, corpus, view.name)
    report("write corpora", total, total)
