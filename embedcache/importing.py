"""Import: vectors that others computed enter a cache under a contract that the user states.

First every vector is checked, and nothing is stored if one is refused; then texts
become a corpus as in a build, and vectors are stored in its order, a shard at a time. Killed at any moment,
the same call goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from embedcache.building.encode import codec_of, register
from embedcache.building.job import open_existing, read_corpus
from embedcache.cache import Cache
from embedcache.cache_documents import IMPORTED
from embedcache.contract import OPTIONAL, Contract, describe_differences
from embedcache.corpus.corpus import check_name
from embedcache.corpus.readers import ReadOptions, ReadReport
from embedcache.corpus.sources import corpus_name_of
from embedcache.errors import ContractMismatchError, CorruptCacheError, InputError
from embedcache.exporting.automodel import MANIFEST_FILE
from embedcache.keys import KEY_DTYPE, key_array
from embedcache.missing import MissingRows
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.store import ShardStore, VectorBatch
from embedcache.teacher.lazy import LazyTeacher
from embedcache.teacher.options import DEFAULT_SHARD_ROWS, EncodeOptions, TeacherOptions
from embedcache.vector_files import (
    TABLE_FORMATS,
    TAKEN_BY,
    VectorRows,
    VectorSource,
    find_texts,
    open_vectors,
    read_json,
    texts_of,
)

if TYPE_CHECKING:
    from embedcache.teacher.load import Teacher
    from embedcache.teacher.text_encoder import TextEncoder

LENGTH_TOLERANCE = 0.01
"""Largest deviation from length one: float16 rounds by 0.0005, bfloat16 by 0.004, int8 by less than 0.01."""


@dataclass(frozen=True)
class ImportResult:
    """Result of an import.

    Attributes:
        corpus, teacher: names in the cache.
        contract_id: sha256 of the contract.
        codec: codec of the vectors stored.
        rows: rows of the corpus.
        distinct: distinct texts of it.
        imported: vectors stored.
        already_there: distinct texts that had a vector of this contract, and keep it.
        without_vector: distinct texts that have none.
        without_text: vectors that no text of the corpus belongs to.
        skipped: reason -> source rows left out of the corpus.
        bytes_written: size of the new shards.
    """

    corpus: str
    teacher: str
    contract_id: str
    codec: str
    rows: int
    distinct: int
    imported: int
    already_there: int
    without_vector: int
    without_text: int
    skipped: Mapping[str, int] = field(default_factory=dict)
    bytes_written: int = 0


def import_vectors(
    path: str | Path,
    *,
    cache: str | Path,
    kind: str,
    teacher: str | Path | TeacherOptions | Teacher | TextEncoder | None = None,
    contract: Contract | str | Path | None = None,
    teacher_name: str | None = None,
    texts: str | Path | None = None,
    corpus: str | None = None,
    queries: bool = False,
    text_column: str | None = None,
    vector_column: str | None = None,
    id_column: str | None = None,
    label_column: str | None = None,
    codec: str | None = None,
    overwrite: bool = False,
    shard_rows: int = DEFAULT_SHARD_ROWS,
    progress: Progress = NO_PROGRESS,
) -> ImportResult:
    """Store vectors that others computed, and their texts as a corpus.

    That the vectors are those of the contract is stated, not checked, until a deep examination
    (``embedcache.doctor.examine``) has compared a sample of each new shard with the live model.

    Args:
        path: file or folder of the vectors.
        cache: the cache's folder; created if missing.
        kind: ``parquet``, ``npy``, ``automodel`` or ``tokenlearn``.
        teacher: model that computed them, whose contract they get; it is loaded, and encodes nothing.
        contract: their contract, or a JSON file with exactly one. Give this or ``teacher``.
        teacher_name: name in the cache; needed with ``contract``.
        texts: file of the texts, for ``npy`` and ``automodel``.
        corpus: name of the corpus; default: from the file of the texts. For ``automodel`` without ``texts`` a
            corpus of the cache; default: the only one.
        queries: import the queries of ``automodel`` instead of the documents.
        text_column: column of the texts; default: ``text``, ``sentence`` or ``content``.
        vector_column: column of the vectors; default: ``vector``, ``embedding``, or the only list of floats.
        id_column: column of unique ids that the corpus keeps.
        label_column: column of labels that it keeps.
        codec: codec of the vectors; default: as the cache stores this teacher, else float16 if that loses not
            a bit of any vector, else float32.
        overwrite: replace a corpus of the same name that holds other rows; vectors are kept.
        shard_rows: vectors per shard.
        progress: receives the phases ``check``, ``read`` and ``import``.

    Raises:
        InputError: if arguments or files cannot be used, or a vector has another width than the contract's,
            is not finite, is zero, or is not of length one where the contract promises that.
        ContractMismatchError: if the name is that of another contract, or the folder names another one.
        TeacherError: if the teacher cannot be loaded.
        CorruptCacheError: if something needed in the cache is damaged.
        StorageError: if the cache cannot be written; the same call goes on from there.
    """
    path, folder = Path(path).expanduser(), Path(cache).expanduser()
    files = find_texts(path, kind, None if texts is None else Path(texts).expanduser())
    given = {"vector_column": vector_column, "queries": queries or None}
    for option in [option for option, value in given.items() if value is not None]:
        if kind not in TAKEN_BY[option]:
            raise InputError(f"{option}: only for {' and '.join(TAKEN_BY[option])}, not for {kind}")
    opened = open_existing(folder)
    if not files and opened is None:
        raise InputError(
            f"{path} holds digests instead of texts, and the cache {folder} does not exist: give "
            "--texts FILE, or a cache with a corpus of the texts"
        )
    lazy, name, stated = _contract(teacher, contract, teacher_name, opened)
    codec = codec_of(stated.output, EncodeOptions(output=stated.output, codec=codec))
    if opened is not None:
        opened.refuse_other_contract(name, stated)
        opened.store(stated, codec)  # refuses another codec than that of the shards
    columns = {"--text-column": text_column, "--id-column": id_column, "--label-column": label_column}
    useless = [option for option, value in {**columns, "--overwrite": overwrite or None}.items() if value]
    if not files and useless:
        raise InputError(
            f"{', '.join(useless)}: the texts come from a corpus of the cache; give --texts FILE"
        )
    read = ReadOptions(text_column, id_column, label_column, TABLE_FORMATS.get(kind))
    stored = None if files else (opened or Cache(folder)).corpus(corpus)
    own_name = stored.name if stored else check_name(corpus or corpus_name_of(Path(texts or path)), "corpus")

    def own_texts() -> Iterator[str | None]:
        return texts_of(files, read) if stored is None else chain.from_iterable(stored.iter_texts())

    source = open_vectors(path, kind, own_texts, stated.dimension, vector_column, queries=queries)
    if kind == "automodel":
        _refuse_other_manifest(path / MANIFEST_FILE, stated, "queries" if queries else "docs")

    progress.phase("check")
    is_half = _check(source, stated, progress)
    opened = opened or Cache.create(folder)
    opened.refuse_other_contract(name, stated)
    report = ReadReport()
    rows = stored or read_corpus(opened, own_name, files, read, report, progress, overwrite=overwrite)
    store = opened.store(stated)
    if codec is None:
        codec = store.codec_name if len(store) else "float16" if is_half else "float32"
    store = opened.store(stated, codec)
    missing, size = MissingRows.of(rows, store), store.bytes_on_disk
    if lazy is not None:
        register(opened, lazy)
        lazy.note(opened.derived_folder)
    else:
        opened.register_teacher(name, stated, {})
    progress.phase("import", len(missing))
    imported = _store(source, store, missing.mask, {IMPORTED: kind}, shard_rows, progress)
    store.finish()
    already_there = missing.distinct - len(missing)
    return ImportResult(
        corpus=rows.name,
        teacher=name,
        contract_id=stated.id,
        codec=codec,
        rows=len(rows),
        distinct=missing.distinct,
        imported=imported,
        already_there=already_there,
        without_vector=missing.distinct - already_there - imported,
        without_text=source.without_text,
        skipped=dict(report.skipped),
        bytes_written=store.bytes_on_disk - size,
    )


def _contract(
    teacher: str | Path | TeacherOptions | Teacher | TextEncoder | None,
    contract: Contract | str | Path | None,
    name: str | None,
    cache: Cache | None,
) -> tuple[LazyTeacher | None, str, Contract]:
    """Return the teacher where one is given, and name and contract."""
    if (teacher is None) == (contract is None):
        found = "none" if teacher is None else "both"
        raise InputError(f"teacher or contract, found {found}: give the model, or a file with its contract")
    if teacher is not None:
        if isinstance(teacher, (str, Path)):
            teacher = TeacherOptions(teacher, name=name)
        lazy = LazyTeacher(
            teacher, EncodeOptions(backend="torch"), None if cache is None else cache.derived_folder
        )
        return lazy, lazy.name, lazy.contract
    if name is None:
        raise InputError("a contract has no name: give the teacher one")
    if not isinstance(contract, Contract):
        contract = contract_in(Path(str(contract)).expanduser())
    return None, name, contract


def contract_in(file: Path) -> Contract:
    """Return the contract in a JSON file: one alone, or the only one that anything in the file has.

    ``contract.json`` of a cache, the output of ``embedcache info NAME --json`` and the manifest of an export
    for NeMo Automodel are such files.

    Raises:
        InputError: if the file cannot be read, or has none or several.
    """
    found = _contracts_in(read_json(file), file)
    if len(found) != 1:
        needed = ", ".join(sorted(_NEEDED))
        raise InputError(f"{file}: {len(found)} contracts, expected one: an object of {needed}")
    return found.pop()


_FIELDS = Contract.__dataclass_fields__.keys()
_NEEDED = _FIELDS - OPTIONAL


def _contracts_in(value: object, file: Path) -> set[Contract]:
    """Return the contracts anywhere in a JSON value."""
    if isinstance(value, dict) and value.keys() >= _NEEDED:
        try:
            return {Contract.from_json({name: value[name] for name in _FIELDS if name in value})}
        except CorruptCacheError as error:
            raise InputError(f"{file}: {error}") from error
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return set().union(*(_contracts_in(one, file) for one in inner))


def _refuse_other_manifest(manifest: Path, contract: Contract, side: str) -> None:
    """Refuse a folder for NeMo Automodel whose manifest names another contract than the stated one."""
    if not manifest.is_file():
        return
    for own in _contracts_in(read_json(manifest).get(side), manifest):
        if differences := own.differences(contract):
            raise ContractMismatchError(
                f"{manifest} names another contract ({describe_differences(differences)}): state that one, "
                "or import the vectors of the right model",
                differences,
            )


def _check(source: VectorSource, contract: Contract, progress: Progress) -> bool:
    """Refuse vectors that cannot be of ``contract``; return whether all of them are exact in float16."""
    is_half, count = True, 0
    for some in source.read():
        lengths = np.linalg.norm(some.vectors.astype(np.float64), axis=1)
        _refuse(~np.isfinite(lengths), some, "holds NaN or infinity")
        _refuse(lengths == 0, some, "is zero")
        if contract.is_unit_length:
            problem = "is not of length one, as the contract promises"
            _refuse(np.abs(lengths - 1) > LENGTH_TOLERANCE, some, problem)
        with np.errstate(over="ignore"):
            is_half = is_half and bool((some.vectors.astype(np.float16) == some.vectors).all())
        count += len(some.texts)
        progress.advance(len(some.texts))
    if not count:
        unused = source.without_text
        raise InputError(f"no text has a vector, {unused:,} have no text: give the texts that were encoded")
    return is_half


def _refuse(broken: NDArray[np.bool_], some: VectorRows, problem: str) -> None:
    if broken.any():
        row = int(np.argmax(broken))
        length = np.linalg.norm(some.vectors[row].astype(np.float64))
        raise InputError(
            f"row {some.places[row]} of {some.file} (from 0) {problem} (length {length:.4g}, text "
            f"{some.texts[row][:60]!r}): nothing was stored; encode it again, or state the right contract"
        )


def _store(
    source: VectorSource,
    store: ShardStore,
    wanted: NDArray[np.bool_],
    provenance: Mapping[str, object],
    shard_rows: int,
    progress: Progress,
) -> int:
    """Store the vectors of the ``wanted`` rows of the corpus, a shard at a time; return how many."""
    keys, vectors = np.empty(0, KEY_DTYPE), np.empty((0, store.contract.dimension), np.float32)
    stored = 0

    def put(count: int) -> None:
        nonlocal keys, vectors, stored
        tokens = np.zeros(len(keys[:count]), np.int32)  # not known
        store.put(VectorBatch(keys[:count], vectors[:count], tokens, tokens > 0, provenance))
        stored += len(tokens)
        progress.advance(len(tokens))
        keys, vectors = keys[count:], vectors[count:]

    for some in source.read():
        own = np.flatnonzero(wanted[some.rows])
        keys = np.concatenate([keys, key_array([some.texts[row] for row in own.tolist()])])
        vectors = np.concatenate([vectors, some.vectors[own]])
        while len(keys) >= shard_rows:
            put(shard_rows)
    put(shard_rows)
    return stored
