"""Split: a part of a cache as a cache of its own; merging the parts gives the whole again.

Shards all of whose rows are wanted are taken as they are, bytes and names; of the others, the rows that are
wanted are written anew.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embedcache import model_note
from embedcache.cache import Cache, CachedTeacher
from embedcache.catalog import choose_rows
from embedcache.corpus.corpus import Corpus, check_name
from embedcache.corpus.subset import part_name, store_subset, subset_keys
from embedcache.corpus.view_store import stale_views
from embedcache.derived import PROJECTION, is_derived, read_projection
from embedcache.errors import InputError
from embedcache.fsio import sha256_file
from embedcache.keys import KeyArray
from embedcache.merge.files import Carrier
from embedcache.merge.shards import Written, write_shards
from embedcache.merge.teachers import base_id
from embedcache.merge.weigh import Taken
from embedcache.store import ShardStore
from embedcache.store.digests import FileNotes
from embedcache.store.index import StoreIndex, open_index
from embedcache.token_table import TokenTable, table_path

_LOCATE_ROWS = 65536

OnStep = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done and how much there is."""


@dataclass(frozen=True)
class SplitCorpus:
    """A corpus of the part: its name, rows, those of the whole, digest and views."""

    name: str
    rows: int
    rows_before: int
    digest: str
    views: tuple[str, ...]


@dataclass(frozen=True)
class SplitTeacher:
    """A teacher of the part.

    Attributes:
        names: its names.
        contract_id: sha256 of its contract.
        rows: rows of its shards that were taken.
        rows_before: rows of its shards in the whole.
        shards: what became of the shards.
    """

    names: tuple[str, ...]
    contract_id: str
    rows: int
    rows_before: int
    shards: Written


@dataclass(frozen=True)
class SplitResult:
    """What a split wrote.

    Attributes:
        out: folder of the part.
        corpora: its corpora.
        teachers: its teachers.
        told: what else there is to know, a line each.
        files: files and shards written, of those carried over with the digest of each taken.
        bytes: their size.
        seconds: how long it took.
    """

    out: Path
    corpora: tuple[SplitCorpus, ...]
    teachers: tuple[SplitTeacher, ...]
    told: tuple[str, ...]
    files: int
    bytes: int
    seconds: float

    def to_json(self) -> dict[str, object]:
        """Return the result as a JSON object."""
        return {**asdict(self), "out": str(self.out)}


def split_cache(
    cache: str | Path,
    out: str | Path,
    *,
    teachers: Sequence[str] = (),
    corpora: Sequence[str] = (),
    first: int | None = None,
    where: str | None = None,
    name: str | None = None,
    all_vectors: bool = False,
    link: bool = False,
    on_step: OnStep | None = None,
) -> SplitResult:
    """Write a part of a cache, which stays as it is, to a cache of its own.

    Without corpora, ``first`` and ``where`` all corpora and vectors are taken; with any of these, the vectors
    of the texts that are taken alone, those of views among them. Killed, the same call goes on.

    Args:
        cache: folder of the whole.
        out: folder of the part; new, or begun by the same call.
        teachers: names or contract ids; default: all.
        corpora: names; default: all.
        first: of every corpus, take so many rows at most.
        where: of every corpus, take the rows for which this holds, as for
            :func:`embedcache.catalog.select_rows`; ``first`` counts after it.
        name: what the corpus is called in the part, where it is one; default: as it is.
        all_vectors: take vectors whatever their texts.
        link: give files a second name on the same disk instead of copying them.
        on_step: called as the work goes on.

    Raises:
        InputError: if there is no such teacher, corpus or row, or ``out`` holds anything else.
        CorruptCacheError: if the cache is damaged.
        StorageError: if ``out`` cannot be written.
    """
    started = time.perf_counter()
    report = on_step or (lambda *_: None)
    source, target_folder = Cache(cache), Path(out).expanduser()
    _refuse_inside(source.folder, target_folder)
    chosen = [source.teacher(one) for one in teachers] if teachers else source.teachers()
    some = [source.corpus(one) for one in dict.fromkeys(corpora)] if corpora else source.corpora()
    if not some and (first is not None or where is not None):
        raise InputError(f"the cache {source.folder} holds no corpus to take rows of")
    if name is not None and len(some) != 1:
        raise InputError(f"--as {name}: {len(some)} corpora were chosen; name one with --corpus")
    if name is not None:
        check_name(name, "--as")
    teacher = chosen[0].contract.id if len({one.contract for one in chosen}) == 1 else None
    rows = {
        corpus.name: choose_rows(source, corpus.name, first=first, where=where, teacher=teacher)
        for corpus in some
    }
    # Two parts of a corpus under its own name could be neither merged nor pushed to one place.
    names = {corpus.name: name or part_name(corpus.name, len(corpus), first, where) for corpus in some}
    target = Cache.create(target_folder)
    _refuse_others(target, set(names.values()), chosen)
    everything = all_vectors or not (corpora or first is not None or where is not None)
    carrier = Carrier(link)
    told = [
        f"view {view!r} of corpus {corpus.name!r} is left out: it was made of other rows than it has now"
        for corpus in some
        for view in stale_views(corpus)
    ]
    with _wanted([] if everything else some, rows) as wanted:
        index = None if everything else wanted
        done = [
            _split_teacher(
                source,
                target,
                [one for one in source.teachers() if one.contract == contract],
                index,
                carrier,
                report,
            )
            for contract in dict.fromkeys(one.contract for one in chosen)
        ]
    told += _tell_of_teachers(done, chosen)
    written = [_split_corpus(one, rows[one.name], target, names[one.name], carrier, report) for one in some]
    return SplitResult(
        target_folder,
        tuple(written),
        tuple(done),
        tuple(told),
        carrier.files,
        carrier.bytes,
        time.perf_counter() - started,
    )


def _refuse_inside(whole: Path, part: Path) -> None:
    here, there = whole.resolve(), part.resolve()
    if here == there or here in there.parents or there in here.parents:
        raise InputError(f"{part} is the cache to split, or one lies in the other: give a new folder")


def _refuse_others(target: Cache, corpora: set[str], teachers: Sequence[CachedTeacher]) -> None:
    """Refuse a folder that holds a corpus or a teacher that the part does not have."""
    others = [f"corpus {name!r}" for name in target.corpus_names() if name not in corpora]
    contracts = {teacher.contract for teacher in teachers}
    others += [f"teacher {one.name!r}" for one in target.teachers() if one.contract not in contracts]
    if others:
        raise InputError(
            f"{target.folder} holds {', '.join(others[:3])}, which is not of this part: give a new folder, "
            "and put caches together with 'embedcache merge'"
        )


@contextmanager
def _wanted(corpora: Sequence[Corpus], rows: dict[str, NDArray[np.int64]]) -> Iterator[StoreIndex | None]:
    """Yield what finds the keys of rows of corpora and of their views; None of no corpora."""
    keys = [part for corpus in corpora for part in subset_keys(corpus, rows[corpus.name])]
    if not keys:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="embedcache-split-") as folder:
        yield open_index(Path(folder), [str(number) for number in range(len(keys))], keys, FileNotes())


def _split_teacher(
    source: Cache,
    target: Cache,
    teachers: Sequence[CachedTeacher],
    wanted: StoreIndex | None,
    carrier: Carrier,
    report: OnStep,
) -> SplitTeacher:
    """Take a contract, under all of its names, with the vectors that are wanted; None: with all."""
    contract, title = teachers[0].contract, teachers[0].name
    before, after = source.teacher_folder(contract), target.teacher_folder(contract)
    table = table_path(source.folder, contract)
    if table.exists():
        TokenTable.read(table, contract)
        carrier.carry(table, after / table.name, sha256_file(table))
    if is_derived(contract):
        read_projection(source, teachers[0])
        carrier.carry(before / PROJECTION, after / PROJECTION, sha256_file(before / PROJECTION))
    for teacher in teachers:
        target.register_teacher(teacher.name, contract, teacher.origin)
    whole = source.store(contract)
    part = target.store(contract, kind=whole.kind)
    taken = _taken(whole, wanted, lambda done, total: report(f"look up vectors of {title}", done, total))
    shards, names = write_shards(
        taken,
        [whole],
        part,
        after / "codebooks",
        carrier,
        lambda done, total: report(f"write shards of {title}", done, total),
    )
    if others := set(part.container.names()) - names:
        raise InputError(
            f"{target.folder} holds shards of teacher {title!r} that are not of this part "
            f"({len(others):,}): it was begun by another command; give a new folder"
        )
    # Opened anew, all that lies there is read once more and its digest taken; then the index is made.
    target.store(contract).finish()
    if (note := model_note.read(source.derived_folder, contract.id)) is not None:
        target.remember_model(contract, note)
    rows = sum(one.rows for one in taken)
    return SplitTeacher(
        tuple(teacher.name for teacher in teachers), contract.id, rows, sum(map(len, whole.shards)), shards
    )


def _taken(store: ShardStore, wanted: StoreIndex | None, report: Callable[[int, int], None]) -> list[Taken]:
    """Return which rows of which shards of the whole are wanted."""
    if wanted is None:
        return [Taken(0, shard) for shard in store.shards]
    done, total = 0, sum(map(len, store.shards))
    masks = []
    for shard in store.shards:
        masks.append(_mask(wanted, shard.keys))
        done += len(shard)
        report(done, total)
    if store.repeats_keys and not all(mask.all() for mask in masks):
        # Shards that are cut get other names, and another of two rows of a key would be read.
        for mask, (_, own) in zip(masks, store.own_rows(), strict=True):
            mask &= own
    return [
        Taken(0, shard, None if mask.all() else mask) for shard, mask in zip(store.shards, masks, strict=True)
    ]


def _mask(wanted: StoreIndex, keys: KeyArray) -> NDArray[np.bool_]:
    blocks = [keys[first : first + _LOCATE_ROWS] for first in range(0, len(keys), _LOCATE_ROWS)]
    return np.concatenate([wanted.locate(block) >= 0 for block in blocks])


def _split_corpus(
    corpus: Corpus, rows: NDArray[np.int64], target: Cache, name: str, carrier: Carrier, report: OnStep
) -> SplitCorpus:
    if len(rows) == len(corpus):
        there = target.corpus(name) if name in target.corpus_names() else None
        if there is not None and there.info.digest != corpus.info.digest:
            raise InputError(
                f"{target.folder} holds another corpus called {name!r}: it was begun by another command; "
                "give a new folder"
            )
        part = carrier.corpus(corpus, target.corpora_folder, name)
        for view in corpus.views():
            carrier.view(view, part, view.name)
    else:
        part, _ = store_subset(
            corpus,
            rows,
            target.corpora_folder,
            name,
            on_rows=lambda title, done: report(f"write {title}", done, len(rows)),
        )
        for one in (part, *part.views()):
            for piece in one.parts:
                carrier.count((one.folder / piece.file_name).stat().st_size)
    return SplitCorpus(name, len(part), len(corpus), part.info.digest, tuple(part.view_names()))


def _tell_of_teachers(done: Sequence[SplitTeacher], chosen: Sequence[CachedTeacher]) -> list[str]:
    told = [
        f"teacher {one.names[0]!r} has no vector of the texts that were taken: its contract alone is"
        for one in done
        if one.rows_before and not one.rows
    ]
    held = {one.contract_id for one in done}
    for one in {teacher.contract: teacher for teacher in chosen}.values():
        base = base_id(one.contract)
        if base is not None and base not in held:
            told.append(
                f"teacher {one.name!r} is a projection of {base[:12]}, which was not taken: its vectors can "
                "be read, but not made for other texts; choose that with --teacher as well"
            )
    return told
