"""Checks of what belongs together: a teacher's files with each other, and with the corpora."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from embedcache.check.bench import Bench
from embedcache.check.findings import Findings, Kind, damage, note
from embedcache.check.inventory import Entry
from embedcache.check.noted import noted_files, noted_sizes
from embedcache.check.verify.derived import check_answers
from embedcache.corpus.corpus import Corpus, View
from embedcache.errors import CorruptCacheError, StorageError
from embedcache.key_index import KeyIndex
from embedcache.keys import KEY_DTYPE
from embedcache.missing import MissingRows
from embedcache.store import Shard
from embedcache.store.containers.base import is_shard_name
from embedcache.store.digests import FileNotes
from embedcache.store.lmdb_index import StoreIndex, may_be_made_of, open_index
from embedcache.store.mapped_lmdb import open_shared
from embedcache.store.reading_order import in_reading_order
from embedcache.view_coverage import ViewCoverage


@dataclass(frozen=True)
class TeacherFiles:
    """The files of one teacher.

    Attributes:
        contract_id: its folder's name.
        entries: its files.
        damaged: paths of those, and of shards inside an LMDB file, that are damaged.
    """

    contract_id: str
    entries: Sequence[Entry]
    damaged: frozenset[str]

    @property
    def path(self) -> str:
        """Its folder, relative to the cache."""
        return f"teachers/{self.contract_id}"

    def of(self, kind: Kind) -> list[Entry]:
        """Return its files of a kind."""
        return [entry for entry in self.entries if entry.kind is kind]

    @property
    def names(self) -> list[str]:
        """The names it is listed under."""
        return [entry.stem for entry in self.of(Kind.NAME)]

    @property
    def called(self) -> str:
        """How findings name it."""
        return " or ".join(self.names) or f"{self.contract_id[:12]}…"

    @property
    def has_vectors(self) -> bool:
        """Whether it has a store, sound or damaged."""
        return bool(self.of(Kind.SHARD) or self.of(Kind.STORE))

    @property
    def is_whole(self) -> bool:
        """Whether nothing of its store is damaged."""
        return not any(path.startswith(f"{self.path}/") for path in self.damaged)


def check_teacher(bench: Bench, teacher: TeacherFiles) -> Findings:
    """Compare the files of a teacher with each other."""
    shards = sorted(bench.shards[teacher.contract_id], key=lambda shard: shard.name)
    if not teacher.of(Kind.CONTRACT) and teacher.has_vectors:
        yield damage(f"{teacher.path}/contract.json", Kind.CONTRACT, "it is missing")
    if not teacher.names and teacher.has_vectors:
        yield damage(
            f"{teacher.path}/names",
            Kind.NAME,
            "there is no name in it, so nothing finds the teacher's vectors",
            "'embedcache repair' gives it one, that of the model where --teacher-model says which it is",
        )
    if teacher.of(Kind.SHARD) and teacher.of(Kind.STORE):
        yield damage(
            teacher.path,
            Kind.STORE,
            "vectors lie both in shards/ and in vectors.mdb, and a cache reads one of the two",
            "move one of them away, or make a cache of one kind of each with 'embedcache copy'",
        )
    if teacher.of(Kind.SEAL) and not teacher.of(Kind.STORE):
        yield damage(f"{teacher.path}/vectors.mdb", Kind.STORE, "it is missing, though its seal is there")
    yield from _check_codebooks(teacher, shards)
    if teacher.is_whole:
        for index in teacher.of(Kind.INDEX):
            if index.path not in teacher.damaged:
                yield from check_answers(bench, index.path, in_reading_order(shards))


def _check_codebooks(teacher: TeacherFiles, shards: Sequence[Shard]) -> Findings:
    there = {entry.stem: entry for entry in teacher.of(Kind.CODEBOOK)}
    needed = {shard.header.codebook: shard for shard in shards if shard.header.codebook is not None}
    for name in sorted(needed.keys() - there.keys()):
        yield damage(
            f"{teacher.path}/codebooks/{name}.npy",
            Kind.CODEBOOK,
            f"it is missing, and shard {needed[name].name[:12]}… cannot be read without it",
        )
    # Where shards are damaged, nobody knows which codebook they need.
    if teacher.is_whole and teacher.has_vectors:
        for name in sorted(there.keys() - needed.keys()):
            yield note(
                there[name].path, Kind.CODEBOOK, "no shard needs it", "nothing; 'embedcache gc' takes it away"
            )


def check_names(teachers: Sequence[TeacherFiles]) -> Findings:
    """Report names that stand for several teachers."""
    owners: dict[str, list[str]] = {}
    for teacher in teachers:
        for name in teacher.names:
            owners.setdefault(name, []).append(teacher.contract_id)
    for name, ids in sorted(owners.items()):
        for contract_id in ids if len(ids) > 1 else ():
            others = ", ".join(f"{other[:12]}…" for other in ids if other != contract_id)
            yield note(
                f"teachers/{contract_id}/names/{name}.json",
                Kind.NAME,
                f"the teacher {others} is called {name!r} as well",
                "choose by contract id, or rename one of the files",
            )


def check_emptied(bench: Bench, teacher: TeacherFiles, corpora: Mapping[str, Corpus]) -> Findings:
    """Report a teacher that has a name and no vectors: damage where it had some of texts still here.

    Args:
        bench: where the cache is.
        teacher: its files.
        corpora: the sound corpora, by name.
    """
    noted = noted_files(bench.folder / "derived" / "index" / teacher.contract_id)
    shards = [name for name in noted if is_shard_name(name.removesuffix(".arrow"))]
    was_lmdb = "vectors.mdb" in noted
    if not (shards or was_lmdb) or not _has_texts_of(bench, teacher, corpora):
        yield note(
            teacher.path,
            Kind.STORE,
            f"teacher {teacher.called} has no vectors at all",
            "'embedcache build' encodes them, 'embedcache rm teacher' removes the name",
        )
        return
    gone = "it is missing: it was there when the cache was last read, and the teacher has no vectors at all"
    for name in shards:
        yield damage(f"{teacher.path}/shards/{name}", Kind.SHARD, gone)
    if was_lmdb:
        yield damage(
            f"{teacher.path}/vectors.mdb",
            Kind.STORE,
            f"{gone}; its seal, which names its shards, is missing as well",
            "copy it back, or 'embedcache build' encodes its texts again",
        )


def _has_texts_of(bench: Bench, teacher: TeacherFiles, corpora: Mapping[str, Corpus]) -> bool:
    """Return whether the corpora have a text of a teacher's former shards; True where nothing tells it."""
    paths = [entry.path for entry in teacher.of(Kind.INDEX) if entry.path not in teacher.damaged]
    try:
        indexes = [StoreIndex(open_shared(bench.folder / path, writable=False), None) for path in paths]
        return not indexes or any(
            (index.locate(keys) >= 0).any()
            for corpus in corpora.values()
            for keys in corpus.iter_keys()
            for index in indexes
        )
    except (CorruptCacheError, StorageError):
        return True


def check_missing_shards(
    bench: Bench,
    teacher: TeacherFiles,
    corpora: Mapping[str, Corpus],
    *,
    are_all: bool,
    in_files: Collection[str],
) -> Findings:
    """Report shards that are gone from among others: an index over all of them proves that they were there.

    Args:
        bench: where the cache is, and the sound shards.
        teacher: its files.
        corpora: the sound corpora, by name.
        are_all: whether there are no others; else shards are missed whatever texts they held.
        in_files: names of the shards in files of all teachers; what lies in a wrong folder is not missing.
    """
    there = {entry.stem for entry in teacher.of(Kind.SHARD)}
    folder = f"derived/index/{teacher.contract_id}"
    gone = noted_sizes(bench.folder / folder).keys() - there
    if not there or not gone or teacher.of(Kind.STORE):
        return
    before = tuple(f"{folder}/{shards}-" for shards in may_be_made_of(there | gone))
    paths = [entry.path for entry in teacher.of(Kind.INDEX) if entry.path.startswith(before)]
    path = next((path for path in paths if path not in teacher.damaged), None)
    if path is None:
        return
    try:
        index = StoreIndex(open_shared(bench.folder / path, writable=False), None)
        is_missed = not are_all or _lacks_texts_of(index, bench.shards[teacher.contract_id], corpora)
    except (CorruptCacheError, StorageError):
        # It is as it was written and yet no index: it proves nothing.
        return
    for name in sorted(gone - set(in_files)) if is_missed else ():
        found = "it is missing: it was there when the cache was last read"
        yield damage(f"{teacher.path}/shards/{name}.arrow", Kind.SHARD, found)


def _lacks_texts_of(index: StoreIndex, shards: Sequence[Shard], corpora: Mapping[str, Corpus]) -> bool:
    """Return whether the corpora have a text that is in ``index`` and in none of ``shards``."""
    with TemporaryDirectory(prefix="embedcache-check-") as scratch:
        now = index_over(shards, Path(scratch))
        return any(
            ((index.locate(keys) >= 0) & (now.locate(keys) < 0)).any()
            for corpus in corpora.values()
            for keys in corpus.iter_keys()
        )


def check_coverage(
    bench: Bench,
    teacher: TeacherFiles,
    corpora: Mapping[str, Corpus],
    views: Mapping[str, View],
    *,
    is_whole: bool,
) -> Findings:
    """Report the corpora of which a teacher's sound shards lack texts, and the views it encoded in part.

    Args:
        bench: where the cache is, and the sound shards.
        teacher: its files.
        corpora: the sound corpora, by name.
        views: the sound views, by their places in ``corpora/``.
        is_whole: whether nothing of the teacher's store is damaged or missing.
    """
    shards = bench.shards[teacher.contract_id]
    # The vectors of a projection are made of another teacher's.
    command = "distill project --apply" if teacher.of(Kind.PROJECTION) else "embedcache build"
    way_out = f"'{command}' makes them, where they are wanted"
    if not is_whole:
        way_out = f"'embedcache repair' brings back what is damaged; '{command}' makes any others"
    with TemporaryDirectory(prefix="embedcache-check-") as scratch:
        # Made anew: the cache's own may be sound by its digest and lie.
        store = index_over(shards, Path(scratch))
        for name, corpus in corpora.items():
            missing = MissingRows.of(corpus, store)
            bench.meter.add(rows=len(corpus))
            if len(missing):
                yield note(
                    f"corpora/{name}",
                    Kind.CORPUS,
                    f"{len(missing):,} of its {missing.distinct:,} texts have no vector of teacher "
                    f"{teacher.called}",
                    way_out,
                )
        for place, view in views.items():
            coverage = ViewCoverage.of(view, store)
            bench.meter.add(rows=len(view))
            if coverage.is_embedded and coverage.missing:
                yield note(
                    f"corpora/{place}",
                    Kind.VIEW,
                    f"{coverage.missing:,} of the {coverage.own:,} texts that are its own have no vector of "
                    f"teacher {teacher.called}",
                    way_out.replace("build'", "build' with its --embed-views"),
                )


def index_over(shards: Sequence[Shard], scratch: Path) -> StoreIndex | KeyIndex:
    """Return an index over ``shards``, whose file lies in the folder ``scratch``.

    Raises:
        StorageError: if it cannot be written.
    """
    if not shards:
        return KeyIndex(np.empty(0, dtype=KEY_DTYPE))
    return open_index(
        scratch, [shard.name for shard in shards], [shard.keys for shard in shards], FileNotes()
    )
