"""Copy caches, or a part of them, into another cache: merge, split, subset, convert and compact.

Where neither codec nor shard size changes and a whole shard is wanted, its file is copied unchanged. Other
rows are written again as full shards, apart by codec and provenance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from embedcache.cache import Cache
from embedcache.cached_teacher import noted_model
from embedcache.codecs import FLOAT_CODECS
from embedcache.contract import Contract, describe_differences
from embedcache.copying.conflicts import VectorConflict, VectorConflictError, Wanted
from embedcache.copying.corpora import CorpusCopy, choose_corpora, copy_checked, refuse_unused
from embedcache.copying.options import CopyOptions
from embedcache.copying.shards import ShardsWritten, plan_shards, write_shards
from embedcache.corpus.subset import text_keys
from embedcache.errors import ContractMismatchError, InputError
from embedcache.fsio import sha256_file
from embedcache.keys import KeyIndex
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.projection import PROJECTION, projection_digest
from embedcache.store import ShardStore
from embedcache.teacher.outputs import LOGITS
from embedcache.teacher.token_table import TokenTable, table_path

_LEAST_DIGITS = 6
"""Digits of a contract id that select a teacher."""

Names = Mapping[str, Mapping[str, str]]
"""Name of a teacher -> origin of its model."""


@dataclass(frozen=True)
class CopiedCorpus:
    """Corpus of a copy: its name, rows, views, and whether the target lacked any of it."""

    name: str
    rows: int
    views: tuple[str, ...]
    is_missing: bool


@dataclass(frozen=True)
class CopiedTeacher:
    """Teacher of a copy.

    Attributes:
        names: its names.
        contract_id: id of its contract.
        rows: texts whose vectors are copied.
        missing: those that the target lacked.
        shards: shards written; None of a dry run.
    """

    names: tuple[str, ...]
    contract_id: str
    rows: int
    missing: int
    shards: ShardsWritten | None


@dataclass(frozen=True)
class CopyResult:
    """Result of a copy, or of a dry run.

    Attributes:
        target: folder of the copy.
        corpora: its corpora.
        teachers: its teachers.
        conflicts: conflicts of vectors.
        is_dry_run: whether nothing was written.
    """

    target: str
    corpora: tuple[CopiedCorpus, ...]
    teachers: tuple[CopiedTeacher, ...]
    conflicts: tuple[VectorConflict, ...]
    is_dry_run: bool

    def to_json(self) -> dict[str, object]:
        """Return the result as a JSON object."""
        return asdict(self)


def copy(
    sources: Sequence[str | Path],
    target: str | Path,
    options: CopyOptions | None = None,
    *,
    dry_run: bool = False,
    progress: Progress = NO_PROGRESS,
) -> CopyResult:
    """Copy caches, or a part of them, into a new or an existing cache; the sources stay as they are.

    Nothing is written before all conflicts are decided. Interrupted, the same call finishes the copy.

    Args:
        sources: folders of the caches to read.
        target: folder of the cache to write.
        options: what is copied, and in which form; default: everything, unchanged.
        dry_run: write nothing; the result says what the target lacks, and its conflicts may be undecided.
        progress: receives the progress.

    Raises:
        VectorConflictError: if two caches hold different vectors in one codec and ``prefer`` is not given.
        ContractMismatchError: if a name stands for different contracts; it names the fields that differ.
        InputError: if the options do not fit the caches, or a corpus of one name has other rows.
        CorruptCacheError: if a source is damaged.
        StorageError: if the target cannot be written.
    """
    chosen, folder = options or CopyOptions(), Path(target).expanduser()
    caches = [Cache(source) for source in sources]
    for cache in caches:
        if cache.folder.resolve() in (folder.resolve(), *folder.resolve().parents):
            raise InputError(f"{cache.folder} would be copied into itself. Copy to a new folder.")
    here = Cache(folder) if (folder / "cache.json").exists() else None
    corpora = choose_corpora(caches, here, chosen)
    teachers = _choose_teachers(caches, here, chosen)
    wanted = _wanted(corpora, chosen)
    plans = {}
    for contract, names in teachers.items():
        stores, own = _stores(contract, caches), _stores(contract, [] if here is None else [here])
        # Logits are stored as floats only.
        fits = contract.output != LOGITS or chosen.codec in FLOAT_CODECS
        form = chosen if fits else replace(chosen, codec=None)
        plans[contract] = plan_shards(next(iter(names)), stores, own, wanted, form, progress)
    conflicts = tuple(conflict for plan in plans.values() for conflict in plan.conflicts)
    undecided = [conflict for conflict in conflicts if not conflict.decided_by]
    if undecided and not dry_run:
        raise VectorConflictError(undecided)
    copied = tuple(
        CopiedCorpus(one.name, len(one), tuple(view.name for view in one.views), not one.is_in(here))
        for one in corpora
    )
    written: dict[Contract, ShardsWritten] = {}
    if not dry_run:
        cache = Cache.create(folder)
        for contract, plan in plans.items():
            kind = chosen.store or _kind([cache, *caches], contract)
            store, codebooks = cache.store(contract, kind=kind), cache.teacher_folder(contract) / "codebooks"
            _write_teacher(cache, contract, teachers[contract], caches)
            written[contract] = write_shards(plan, store, codebooks, progress)
        # Last: a corpus that is listed should find its vectors.
        for corpus in corpora:
            corpus.write(cache, overwrite=chosen.overwrite, progress=progress)
    done = tuple(
        CopiedTeacher(tuple(teachers[one]), one.id, plan.rows, plan.missing, written.get(one))
        for one, plan in plans.items()
    )
    return CopyResult(str(folder), copied, done, conflicts, dry_run)


def _choose_teachers(
    caches: Sequence[Cache], here: Cache | None, options: CopyOptions
) -> dict[Contract, Names]:
    """Return the teachers to copy, each with its names.

    Raises:
        InputError: if a teacher is missing.
        ContractMismatchError: if a name stands for two contracts.
    """
    chosen: dict[Contract, dict[str, Mapping[str, str]]] = {}
    owners = {} if here is None else {one.name: (here, one.contract) for one in here.teachers()}
    unused = dict.fromkeys(options.teachers)
    for cache in caches:
        for teacher in cache.teachers():
            for spec in options.teachers or (teacher.name,):
                selected, _, new = spec.partition("=")
                is_id = len(selected) >= _LEAST_DIGITS and teacher.contract.id.startswith(selected)
                if selected != teacher.name and not is_id:
                    continue
                unused.pop(spec, None)
                name = new or teacher.name
                first, known = owners.setdefault(name, (cache, teacher.contract))
                if known != teacher.contract:
                    differences = known.differences(teacher.contract)
                    raise ContractMismatchError(
                        f"teacher {name!r} has another contract in {first.folder} than in {cache.folder} "
                        f"({describe_differences(differences)}). Rename one with --teacher "
                        f"{teacher.contract.id[:12]}=NEW.",
                        differences,
                    )
                chosen.setdefault(teacher.contract, {}).setdefault(name, teacher.origin)
    refuse_unused("--teacher", unused, (one.name for cache in caches for one in cache.teachers()))
    return dict(chosen)


def _wanted(corpora: Sequence[CorpusCopy], options: CopyOptions) -> Wanted:
    """Return the test for keys to copy: all keys, or with chosen corpora or rows those of their texts."""
    if not options.corpora and options.where is None:
        return lambda keys: np.ones(len(keys), dtype=np.bool_)
    index = KeyIndex(np.concatenate([text_keys(one.corpus, one.rows, one.views) for one in corpora]))
    return lambda keys: index.locate(keys) >= 0


def _stores(contract: Contract, caches: Sequence[Cache]) -> dict[str, ShardStore]:
    """Return the vectors of a contract by the folder of their cache."""
    return {str(one.folder): one.store(contract) for one in caches if one.teacher_folder(contract).exists()}


def _write_teacher(cache: Cache, contract: Contract, names: Names, sources: Sequence[Cache]) -> None:
    """Write the names of a teacher, and before them the files beside its vectors."""
    folder, projection = cache.teacher_folder(contract), projection_digest(contract)
    for source in sources:
        table = table_path(source.folder, contract)
        if table.exists():
            TokenTable.read(table, contract)
            copy_checked(table, folder / table.name, sha256_file(table))
        if projection is not None and source.teacher_folder(contract).exists():
            copy_checked(source.teacher_folder(contract) / PROJECTION, folder / PROJECTION, projection)
        note = noted_model(source.derived_folder, contract.id)
        if note is not None and noted_model(cache.derived_folder, contract.id) is None:
            cache.remember_model(contract, note)
    for name, origin in names.items():
        cache.register_teacher(name, contract, dict(origin))


def _kind(caches: Sequence[Cache], contract: Contract) -> str | None:
    """Return the kind of store of the first cache that holds vectors of a contract."""
    containers = (cache.container(contract) for cache in caches)
    return next((container.kind for container in containers if container.names()), None)
