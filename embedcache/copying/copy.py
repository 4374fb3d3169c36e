"""Copy caches, or a part of them, into another cache: merge, split, subset, convert and compact.

Where neither codec nor shard size changes and a whole shard is wanted, its file is copied unchanged. Other
rows are written again as full shards, apart by codec and provenance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from embedcache.cache import Cache
from embedcache.cache_documents import noted_model
from embedcache.codecs import FLOAT_CODECS
from embedcache.contract import Contract, describe_differences
from embedcache.copying.corpora import choose_corpora, copy_checked
from embedcache.copying.options import CopyOptions
from embedcache.copying.vectors import VectorConflict, VectorConflictError, plan_vectors, write_vectors
from embedcache.corpus.subset import text_keys
from embedcache.errors import ContractMismatchError, InputError
from embedcache.fsio import sha256_file
from embedcache.keys import KeyIndex
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.projection import PROJECTION, projection_digest
from embedcache.store import ShardStore
from embedcache.teacher.options import LOGITS
from embedcache.teacher.token_table import TokenTable, table_path

Names = Mapping[str, Mapping[str, str]]
"""Name of a teacher -> origin of its model."""


@dataclass(frozen=True)
class CopiedTeacher:
    """Teacher of a copy.

    Attributes:
        names: its names.
        contract_id: id of its contract.
        rows: texts whose vectors are copied; not those that the target has as fine.
        copied: shards copied as files.
        written: shards written from rows.
    """

    names: tuple[str, ...]
    contract_id: str
    rows: int
    copied: int
    written: int


@dataclass(frozen=True)
class CopyResult:
    """Result of a copy, or of a dry run.

    Attributes:
        target: folder of the copy.
        corpora: name of each of its corpora -> rows.
        teachers: its teachers.
        conflicts: conflicts of vectors.
        is_dry_run: True if nothing was written.
    """

    target: str
    corpora: Mapping[str, int]
    teachers: tuple[CopiedTeacher, ...]
    conflicts: tuple[VectorConflict, ...]
    is_dry_run: bool


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
        options: selection and form of the copy; default: everything, unchanged.
        dry_run: write nothing; the result says what the target lacks, and its conflicts may be undecided.
        progress: receives the progress.

    Raises:
        VectorConflictError: if two caches hold different vectors in one codec and ``prefer`` is not given.
        ContractMismatchError: if a name stands for different contracts; it names the fields that differ.
        InputError: if the options do not fit the caches, or a corpus of one name has other rows.
        CorruptCacheError: if a source is damaged.
        StorageError: if the target cannot be written.
    """
    options, folder = options or CopyOptions(), Path(target).expanduser()
    caches = [Cache(source) for source in sources]
    for cache in caches:
        if cache.folder.resolve() in (folder.resolve(), *folder.resolve().parents):
            raise InputError(f"{cache.folder} would be copied into itself. Copy to a new folder.")
    here = Cache(folder) if (folder / "cache.json").exists() else None
    corpora = choose_corpora(caches, here, options)
    teachers = _choose_teachers(caches, here, options)
    wanted = None
    if options.corpora or options.where is not None:
        wanted = KeyIndex(np.concatenate([text_keys(one.corpus, one.rows, one.views) for one in corpora]))
    plans = {}
    for contract, names in teachers.items():
        stores, own = _stores(contract, caches), _stores(contract, [] if here is None else [here])
        # Logits are stored as floats only.
        fits = contract.output != LOGITS or options.codec in FLOAT_CODECS
        form = options if fits else replace(options, codec=None)
        plans[contract] = plan_vectors(next(iter(names)), stores, own, wanted, form, progress)
    conflicts = tuple(conflict for plan in plans.values() for conflict in plan.conflicts)
    undecided = [conflict for conflict in conflicts if not conflict.decided_by]
    if undecided and not dry_run:
        shown = "; ".join(conflict.describe() for conflict in undecided)
        raise VectorConflictError(
            f"{shown}. Nothing was copied. Set prefer to FIRST or LAST; vectors of an existing target "
            "are never replaced."
        )
    if not dry_run:
        cache = Cache.create(folder)
        for contract, plan in plans.items():
            store = cache.store(contract, kind=options.store)
            codebooks = cache.teacher_folder(contract) / "codebooks"
            _write_teacher(cache, contract, teachers[contract], caches)
            write_vectors(plan, store, codebooks, progress)
        # Last: a corpus that is listed should find its vectors.
        for corpus in corpora:
            corpus.write(cache, progress)
    return CopyResult(
        str(folder),
        {one.name: len(one) for one in corpora},
        tuple(
            CopiedTeacher(tuple(teachers[one]), one.id, plan.rows, len(plan.whole), len(plan.batches))
            for one, plan in plans.items()
        ),
        conflicts,
        dry_run,
    )


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
    found = [(cache, one) for cache in caches for one in cache.teachers()]
    names = dict.fromkeys(one.name for _, one in found)
    for spec in options.teachers or names:
        selected, _, new = spec.partition("=")
        matches = [(cache, one) for cache, one in found if selected in (one.name, one.contract.id[:12])]
        if not matches:
            raise InputError(f"teacher {spec}: not in the sources (found: {', '.join(names) or 'none'})")
        for cache, teacher in matches:
            name = new or teacher.name
            first, known = owners.setdefault(name, (cache, teacher.contract))
            if known != teacher.contract:
                differences = known.differences(teacher.contract)
                raise ContractMismatchError(
                    f"teacher {name!r} has another contract in {first.folder} than in {cache.folder} "
                    f"({describe_differences(differences)}). Rename one: teacher "
                    f"{teacher.contract.id[:12]}=NEW.",
                    differences,
                )
            chosen.setdefault(teacher.contract, {}).setdefault(name, teacher.origin)
    return dict(chosen)


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
