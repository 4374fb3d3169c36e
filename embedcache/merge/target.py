"""Writing a merge as it was planned: what others have put there since is never deleted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from embedcache import model_note
from embedcache.cache import Cache, read_origin
from embedcache.corpus import view_store
from embedcache.corpus.corpus import Corpus, View
from embedcache.corpus.view_record import VIEWS, is_recorded
from embedcache.errors import InputError
from embedcache.fsio import remove_file, sha256_file, write_sealed_json
from embedcache.housekeeping import remove_corpus
from embedcache.merge.corpora import TakenCorpus, TakenView, identity
from embedcache.merge.files import Carrier
from embedcache.merge.shards import Written, write_shards
from embedcache.merge.sources import Source
from embedcache.merge.teachers import OnStep, TakenTeacher
from embedcache.store import ShardStore


@dataclass(frozen=True)
class Before:
    """What was in the target when the merge was planned: nothing else there may be deleted.

    Attributes:
        corpora: name -> digest.
        views: name of the corpus, name of the view -> identity.
    """

    corpora: Mapping[str, str]
    views: Mapping[tuple[str, str], str]

    @classmethod
    def of(cls, target: Cache | None) -> Before:
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


@dataclass(frozen=True)
class Target:
    """The cache that a merge writes. All of its methods raise ``StorageError`` where it cannot be written.

    Attributes:
        cache: the cache.
        before: what was in it when the merge was planned.
        carrier: carries files into it, and counts them.
        report: told how far the work is.
    """

    cache: Cache
    before: Before
    carrier: Carrier
    report: OnStep

    def give_names(self, teachers: Sequence[TakenTeacher]) -> None:
        """Take from teachers that are there the names that others have won; they have their other ones first.

        Raises:
            InputError: if another process has given such a name to a teacher since the merge was planned.
        """
        names = {taken.contract: taken.names for taken in teachers}
        winners = {name: taken.contract for taken in teachers for name in taken.names}
        for teacher in self.cache.teachers():
            if winners.get(teacher.name, teacher.contract) != teacher.contract:
                if teacher.contract not in names:
                    raise _changed(f"teacher {teacher.name!r}", self.cache.folder)
                for name, origin in names[teacher.contract].items():
                    self.cache.register_teacher(name, teacher.contract, origin)
                remove_file(self.cache.teacher_folder(teacher.contract) / "names" / f"{teacher.name}.json")

    def write_teacher(self, taken: TakenTeacher, sources: Sequence[Source]) -> Written:
        """Write a teacher, and return what became of its shards.

        Args:
            taken: the teacher.
            sources: all caches that are merged, the winner first: any may know where its model lies.

        Raises:
            CorruptCacheError: if a file or shard is damaged.
        """
        folder = self.cache.teacher_folder(taken.contract)
        # Before the contract: a teacher that is listed has its files.
        for name, (path, sha256) in taken.files.items():
            there = (folder / name).exists()
            if there and sha256_file(folder / name) != sha256:
                remove_file(folder / name)
            self.carrier.carry(path, folder / name, sha256)
        for name, origin in taken.names.items():
            self.cache.register_teacher(name, taken.contract, origin)
            file = folder / "names" / f"{name}.json"
            if read_origin(file) != origin:
                write_sealed_json(file, origin)
        written = self._write_vectors(taken)
        for source in sources:
            note = model_note.read(source.cache.derived_folder, taken.contract.id)
            if note is not None and model_note.read(self.cache.derived_folder, taken.contract.id) is None:
                self.cache.remember_model(taken.contract, note)
        return written

    def write_corpora(self, corpora: Sequence[TakenCorpus]) -> None:
        """Write corpora with their views, in place of those of the target that have lost their names.

        Raises:
            CorruptCacheError: if a part is damaged.
            InputError: if another process has put one there since the merge was planned.
        """
        # Those that lose their name first: what they are copied from is still there then.
        ordered = sorted(corpora, key=lambda one: one.name == one.corpus.name)
        total = len(ordered)
        for number, one in enumerate(ordered):
            self.report("write corpora", number, total)
            there = Corpus(self.cache.corpora_folder / one.name) if self._has_corpus(one.name) else None
            if there is not None and there.info.digest != one.corpus.info.digest:
                self.before.refuse_others(there)
                remove_corpus(self.cache, one.name)
            corpus = self.carrier.corpus(one.corpus, self.cache.corpora_folder, one.name)
            for view in sorted(one.views, key=lambda view: view.name == view.view.name):
                self._write_view(view, corpus)
        self.report("write corpora", total, total)

    def _has_corpus(self, name: str) -> bool:
        return name in self.cache.corpus_names()

    def _write_view(self, taken: TakenView, corpus: Corpus) -> None:
        if taken.name in view_store.stale_views(corpus):
            view_store.remove_view(corpus, taken.name)
        elif is_recorded(corpus.folder / VIEWS / taken.name):
            there = corpus.view(taken.name)
            if identity(there) != identity(taken.view):
                self.before.refuse_others(there)
                view_store.remove_view(corpus, taken.name)
        self.carrier.view(taken.view, corpus, taken.name)

    def _write_vectors(self, taken: TakenTeacher) -> Written:
        givers = [store for _, store in taken.holders]
        own = [store for source, store in taken.holders if source.is_at(self.cache.folder)]
        store = self._store(taken, own)
        title = next(iter(taken.names))
        # As the merge was planned with: what others have added since was not weighed, and stays.
        before = {shard.name for one in own for shard in one.shards}
        written, names = write_shards(
            taken.weighed.taken,
            givers,
            store,
            self.cache.teacher_folder(taken.contract) / "codebooks",
            self.carrier,
            lambda done, total: self.report(f"write shards of {title}", done, total),
        )
        for lost in sorted(before - names):
            store.container.remove(lost)
        store.container.finish()
        # Opened anew, all that lies there is read once more and its digest taken; then the index is made.
        self.cache.store(taken.contract).finish()
        return written

    def _store(self, taken: TakenTeacher, own: Sequence[ShardStore]) -> ShardStore:
        """Return the store that is written: the one that is there, or one of the first giver's kind."""
        if own and own[0].shards:
            return own[0]
        kinds = [store.kind for _, store in taken.holders if store.shards]
        return self.cache.store(taken.contract, kind=kinds[0] if kinds else None)


def _changed(what: str, folder: Path) -> InputError:
    return InputError(
        f"another process has written {what} to {folder} since the merge was planned, which stays: run the "
        "same command again"
    )
