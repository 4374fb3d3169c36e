"""Rows of a corpus with their vectors, as files that other programs read.

``NAME.parquet`` is one file: ``row``, ``text``, ``id`` and ``label`` where the corpus has them, and
``vector``. Any other path is a folder: ``vectors.npy`` of shape (n, d), and ``rows.parquet``, the other
columns of the same n rows. A text in several rows is written for each.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from embedcache.cache import Cache
from embedcache.corpus.corpus import Corpus
from embedcache.errors import InputError, MissingVectorsError
from embedcache.folders import folder_that_appears
from embedcache.fsio import commit, commit_new, temporary_sibling
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.querying import open_cache, select_rows
from embedcache.store import Positions, ShardStore

VECTORS_FILE, ROWS_FILE = "vectors.npy", "rows.parquet"

_BATCH_ROWS = 16384


@dataclass(frozen=True)
class ExportResult:
    """Result of an export.

    Attributes:
        path: the file or folder.
        corpus, teacher: names.
        rows: rows written.
        missing: rows left out because they have no vector.
        bytes: size on disk.
    """

    path: Path
    corpus: str
    teacher: str
    rows: int
    missing: int
    bytes: int


def export(
    cache: Cache | str | Path,
    path: str | Path,
    *,
    corpus: str | None = None,
    view: str | None = None,
    teacher: str | None = None,
    where: str | None = None,
    skip_missing: bool = False,
    overwrite: bool = False,
    progress: Progress = NO_PROGRESS,
) -> ExportResult:
    """Write rows of a corpus and their vectors, float32, to ``path``, which appears when it is complete.

    Args:
        cache: the cache or its folder.
        path: Parquet file (``NAME.parquet``), or folder of ``vectors.npy`` and ``rows.parquet``.
        corpus: name of the corpus; default: the only one.
        view: write this view of it, with the vectors of its texts; default: the corpus's own texts.
        teacher: name or contract id of the teacher; default: the only one.
        where: condition on rows of the corpus, as for ``embedcache.querying.select_rows``.
        skip_missing: leave out rows without a vector instead of raising.
        overwrite: replace an earlier export.
        progress: receiver of progress.

    Raises:
        InputError: if an argument is wrong, ``path`` exists, or no row is left.
        MissingVectorsError: if rows have no vector and ``skip_missing`` is off.
        StorageError: if ``path`` cannot be written; it is then as it was before.
        CorruptCacheError: if a file of the cache is damaged.
    """
    target, opened = Path(path).expanduser(), open_cache(cache)
    _check_target(target, overwrite=overwrite)
    chosen, known = opened.corpus(corpus), opened.teacher(teacher)
    texts, store = chosen.view(view) if view else chosen, opened.store(known.contract)
    rows = np.arange(len(chosen))
    if where is not None:
        rows = select_rows(opened, chosen.name, where, teacher=known.contract.id)
    positions = store.locate(texts.keys_of(rows))
    missing = int(np.count_nonzero(positions < 0))
    if missing and not skip_missing:
        build = f"embedcache build{f' --embed-views {view}' if view else ''}"
        raise MissingVectorsError(
            f"{missing} of {len(rows)} rows of {texts.title} have no vector of teacher {known.name!r}: "
            f"encode them with '{build}', or leave them out with skip_missing"
        )
    if len(rows) == missing:
        raise InputError(f"no rows to export: {len(rows)} of {texts.title}, {missing} without a vector")
    progress.phase("export", len(rows) - missing)
    with _files_that_appear(target, overwrite=overwrite) as files:
        _write(texts, store, rows[positions >= 0], positions[positions >= 0], files, progress)
    size = sum(file.stat().st_size for file in ([target] if target.is_file() else target.iterdir()))
    return ExportResult(target, chosen.name, known.name, len(rows) - missing, missing, size)


def _write(
    texts: Corpus,
    store: ShardStore,
    rows: NDArray[np.int64],
    positions: Positions,
    files: tuple[BinaryIO, BinaryIO | None],
    progress: Progress,
) -> None:
    """Write the columns of rows into the first file; their vectors into the second, or as a column."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    (table, matrix), width = files, store.contract.dimension
    values = {"row": lambda block: block, "text": texts.texts, "id": texts.ids, "label": texts.labels}
    types = {"row": "int64", "text": "string", **texts.info.types}
    fields = [pa.field(name, pa.type_for_alias(types[name])) for name in values if name in types]
    vector = pa.field("vector", pa.list_(pa.float32(), width))
    schema = pa.schema(fields if matrix else [*fields, vector])
    if matrix:
        header = {"descr": "<f4", "fortran_order": False, "shape": (len(rows), width)}
        np.lib.format.write_array_header_1_0(matrix, header)
    # Components hardly repeat; their bytes of one significance side by side compress by a third more.
    split = {} if matrix else {"column_encoding": {"vector.list.element": "BYTE_STREAM_SPLIT"}}
    with pq.ParquetWriter(table, schema, compression="zstd", use_dictionary=False, **split) as writer:
        for start in range(0, len(rows), _BATCH_ROWS):
            block = rows[start : start + _BATCH_ROWS]
            columns = [pa.array(values[field.name](block), field.type) for field in fields]
            vectors = store.vectors(positions[start : start + _BATCH_ROWS])
            if matrix:
                matrix.write(vectors.data)
            else:
                columns.append(pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), width))
            writer.write_batch(pa.record_batch(columns, schema=schema))
            progress.advance(len(block))


@contextmanager
def _files_that_appear(target: Path, *, overwrite: bool) -> Iterator[tuple[BinaryIO, BinaryIO | None]]:
    """Yield the files to write rows and vectors into; one for both if ``target`` is a Parquet file."""
    if _is_parquet(target):
        with temporary_sibling(target) as temporary:
            with temporary.open("wb") as table:
                yield table, None
            place(temporary, target, overwrite=overwrite)
    else:
        with (
            folder_that_appears(target, overwrite=overwrite) as folder,
            (folder / ROWS_FILE).open("wb") as table,
            (folder / VECTORS_FILE).open("wb") as vectors,
        ):
            yield table, vectors


def place(temporary: Path, target: Path, *, overwrite: bool) -> None:
    """Make a finished file appear as ``target``.

    Raises:
        InputError: if ``target`` exists and ``overwrite`` is off.
    """
    if overwrite:
        commit(temporary, target)
    elif not commit_new(temporary, target):
        raise _exists(target)


def _is_parquet(path: Path) -> bool:
    return path.suffix.lower() == ".parquet"


def _check_target(target: Path, *, overwrite: bool) -> None:
    if target.suffix and not _is_parquet(target):
        raise InputError(f"{target.name!r}: expected NAME.parquet, or a folder's name without an ending")
    if not target.exists():
        return
    if not overwrite:
        raise _exists(target)
    names = {file.name for file in target.iterdir()} if target.is_dir() else set()
    if target.is_dir() == _is_parquet(target) or not names <= {VECTORS_FILE, ROWS_FILE}:
        raise InputError(f"{target} is not an earlier export and is not replaced: give another path")


def _exists(target: Path) -> InputError:
    return InputError(f"{target} exists: give another path, or set overwrite to replace it")
