"""Rows of a corpus with their vectors, as files that other programs read.

``NAME.parquet`` is one file: ``row``, ``text``, ``id`` and ``label`` where the corpus has them, and
``vector``. Any other path is a folder: ``vectors.npy`` of shape (n, d), and ``rows.parquet``, the other
columns of the same n rows. A text in several rows is written for each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from embedcache.cache import Cache
from embedcache.corpus.corpus import Corpus
from embedcache.errors import InputError, MissingVectorsError
from embedcache.folders import folder_that_appears
from embedcache.fsio import commit, commit_new, temporary_sibling
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.querying import open_cache, select_rows
from embedcache.store import ShardStore

if TYPE_CHECKING:
    import pyarrow as pa

DTYPES = ("float32", "float16")
VECTORS_FILE, ROWS_FILE = "vectors.npy", "rows.parquet"

_BATCH_ROWS = 16384
# Components of vectors hardly repeat: a dictionary of them takes longer than everything else.
_PARQUET: dict[str, Any] = {"compression": "zstd", "use_dictionary": False}


@dataclass(frozen=True)
class ExportResult:
    """Result of an export.

    Attributes:
        path: the file or folder.
        corpus, view, teacher: names; the view is None for the corpus's own texts.
        rows: rows written.
        missing: rows left out because they have no vector.
        bytes: size on disk.
    """

    path: Path
    corpus: str
    view: str | None
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
    limit: int | None = None,
    dtype: str = "float32",
    skip_missing: bool = False,
    overwrite: bool = False,
    progress: Progress = NO_PROGRESS,
) -> ExportResult:
    """Write rows of a corpus and their vectors to ``path``, which appears when it is complete.

    Args:
        cache: the cache or its folder.
        path: Parquet file (``NAME.parquet``), or folder of ``vectors.npy`` and ``rows.parquet``.
        corpus: name of the corpus; default: the only one.
        view: write this view of it, with the vectors of its texts; default: the corpus's own texts.
        teacher: name or contract id of the teacher; default: the only one.
        where: condition on rows of the corpus, as for :func:`embedcache.querying.select_rows`.
        limit: write at most this many rows.
        dtype: of the vectors, ``float32`` or ``float16``.
        skip_missing: leave out rows without a vector instead of raising.
        overwrite: replace an earlier export.
        progress: receiver of progress.

    Raises:
        InputError: if an argument is wrong, ``path`` exists, no row is left, or a vector is not finite.
        MissingVectorsError: if rows have no vector and ``skip_missing`` is off.
        StorageError: if ``path`` cannot be written; it is then as it was before.
        CorruptCacheError: if a file of the cache is damaged.
    """
    if dtype not in DTYPES:
        raise InputError(f"cannot export vectors as {dtype}: expected {' or '.join(DTYPES)}")
    target, opened = Path(path).expanduser(), open_cache(cache)
    _check_target(target, overwrite=overwrite)
    chosen, known = opened.corpus(corpus), opened.teacher(teacher)
    texts, store = chosen.view(view) if view else chosen, opened.store(known.contract)
    rows = np.arange(len(chosen))
    if where is not None:
        rows = select_rows(opened, chosen.name, where, teacher=known.contract.id)
    rows = rows[:limit]
    found = [store.locate(texts.keys_of(block)) >= 0 for block in _blocks(rows)]
    has_vector = np.concatenate([np.zeros(0, np.bool_), *found])
    missing = len(rows) - int(has_vector.sum())
    if missing and not skip_missing:
        build = f"embedcache build{f' --embed-views {view}' if view else ''}"
        raise MissingVectorsError(
            f"{missing} of {len(rows)} rows of {texts.title} have no vector of teacher {known.name!r}: "
            f"encode them with '{build}', or leave them out with --skip-missing"
        )
    if len(rows) == missing:
        raise InputError(f"no rows to export: {len(rows)} of {texts.title}, {missing} without a vector")
    rows = rows[has_vector]
    progress.phase("export", len(rows))
    source = _Source(texts, store, rows, np.dtype(dtype), progress)
    write = _write_parquet if _is_parquet(target) else _write_npy
    write(source, target, overwrite=overwrite)
    size = sum(file.stat().st_size for file in ([target] if target.is_file() else target.iterdir()))
    return ExportResult(target, chosen.name, view, known.name, len(rows), missing, size)


@dataclass(frozen=True)
class _Source:
    """Rows to write; all of them have a vector."""

    texts: Corpus
    store: ShardStore
    rows: NDArray[np.int64]
    dtype: np.dtype[np.floating]
    progress: Progress

    @property
    def width(self) -> int:
        return self.store.contract.dimension

    @property
    def schema(self) -> pa.Schema:
        """Columns beside the vector."""
        import pyarrow as pa

        types = {"row": "int64", "text": "string"}
        types |= {name: kind for name, kind in self.texts.info.types.items() if name in ("id", "label")}
        return pa.schema([(name, pa.type_for_alias(kind)) for name, kind in types.items()])

    def batches(self) -> Iterator[tuple[pa.RecordBatch, NDArray[np.floating]]]:
        """Yield columns of :attr:`schema`, and vectors of shape (n, d) and the dtype.

        Raises:
            InputError: if a vector is not finite, or too large for the dtype.
        """
        import pyarrow as pa

        values = {"row": lambda rows: rows, "text": self.texts.texts}
        values |= {"id": self.texts.ids, "label": self.texts.labels}
        schema = self.schema
        for rows in _blocks(self.rows):
            columns = [pa.array(values[field.name](rows), field.type) for field in schema]
            vectors = self.store.vectors(self.store.locate(self.texts.keys_of(rows)))
            with np.errstate(over="ignore"):
                cast = vectors.astype(self.dtype, copy=False)
            if not np.isfinite(cast).all():
                row = rows[~np.isfinite(cast).all(axis=1)][0]
                reason = f"too large for {self.dtype}" if np.isfinite(vectors).all() else "not finite"
                raise InputError(
                    f"the vector of row {row} is {reason}: leave it out with --where, or use --dtype float32"
                )
            yield pa.record_batch(columns, schema=schema), cast
            self.progress.advance(len(rows))


def _blocks(rows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    for start in range(0, len(rows), _BATCH_ROWS):
        yield rows[start : start + _BATCH_ROWS]


def _write_parquet(source: _Source, target: Path, *, overwrite: bool) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    vector = pa.field("vector", pa.list_(pa.from_numpy_dtype(source.dtype), source.width))
    schema = source.schema.append(vector)
    # Bytes of one significance side by side compress by a third more.
    split = {"vector.list.element": "BYTE_STREAM_SPLIT"} if source.dtype == np.float32 else None
    with temporary_sibling(target) as temporary:
        with (
            temporary.open("wb") as file,
            pq.ParquetWriter(file, schema, column_encoding=split, **_PARQUET) as writer,
        ):
            for columns, vectors in source.batches():
                column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), source.width)
                writer.write_batch(pa.record_batch([*columns.columns, column], schema=schema))
        place(temporary, target, overwrite=overwrite)


def _write_npy(source: _Source, target: Path, *, overwrite: bool) -> None:
    import pyarrow.parquet as pq

    shape = (len(source.rows), source.width)
    header = {"descr": source.dtype.str, "fortran_order": False, "shape": shape}
    with (
        folder_that_appears(target, overwrite=overwrite) as folder,
        # Written, not mapped: a full disk is an error, and touching a mapped page would end the process.
        (folder / VECTORS_FILE).open("wb") as vectors_file,
        (folder / ROWS_FILE).open("wb") as rows_file,
        pq.ParquetWriter(rows_file, source.schema, **_PARQUET) as writer,
    ):
        np.lib.format.write_array_header_1_0(vectors_file, header)
        for columns, vectors in source.batches():
            vectors_file.write(np.ascontiguousarray(vectors).data)
            writer.write_batch(columns)


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
    return path.suffix.lower() in (".parquet", ".pq")


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
    return InputError(f"{target} exists: give another path, or replace it with --overwrite")
