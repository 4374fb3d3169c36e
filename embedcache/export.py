"""Rows of a corpus with their vectors, as files that other programs read.

``parquet`` is one file: ``row``, ``text``, ``id`` and ``label`` where the corpus has them, and ``vector``, a
fixed-size list. ``npy`` is a folder: ``vectors.npy``, of shape (n, d), and ``rows.parquet``, the same columns
without the vector, its n rows in the same order. Rows come in the order of the corpus; a text that stands in
several rows is written for each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from embedcache.cache import Cache
from embedcache.catalog import select_rows
from embedcache.catalog.connection import open_cache
from embedcache.catalog.output import check_target, place
from embedcache.corpus.corpus import Corpus
from embedcache.corpus.part import ORIGINAL, key_view
from embedcache.errors import InputError, MissingVectorsError
from embedcache.folders import folder_that_appears
from embedcache.fsio import (
    temporary_sibling,
)
from embedcache.store.base import Positions
from embedcache.store.store import ShardStore

if TYPE_CHECKING:
    import pyarrow as pa

EXPORT_FORMATS = ("parquet", "npy")
EXPORT_DTYPES = ("float32", "float16")

VECTORS_FILE = "vectors.npy"
ROWS_FILE = "rows.parquet"

_CHUNK_ROWS = 16384

# Few components are repeated: looking for a dictionary of them takes longer than all the rest.
_PARQUET: dict[str, Any] = {"compression": "zstd", "use_dictionary": False}

OnStep = Callable[[str, int, int], None]
"""Called with what is being done, how many rows of it are done and how many there are."""


@dataclass(frozen=True)
class ExportSummary:
    """What an export wrote.

    Attributes:
        path: the file or folder.
        corpus: name of the corpus.
        view: name of the view; None for the original text.
        teacher: name of the teacher.
        rows: rows written.
        selected: rows of the corpus that were asked for.
        missing: rows of those left out because they have no vector.
        bytes: size on disk.
        seconds: how long it took.
    """

    path: Path
    corpus: str
    view: str | None
    teacher: str
    rows: int
    selected: int
    missing: int
    bytes: int
    seconds: float

    def to_json(self) -> dict[str, object]:
        """Return the summary as a JSON object."""
        return {**asdict(self), "path": str(self.path)}


def export_rows(
    cache: Cache | str | Path,
    out: str | Path,
    *,
    corpus: str | None = None,
    view: str | None = None,
    teacher: str | None = None,
    where: str | None = None,
    to: str = "parquet",
    dtype: str = "float32",
    skip_missing: bool = False,
    overwrite: bool = False,
    on_step: OnStep | None = None,
) -> ExportSummary:
    """Write rows of a corpus and their vectors to ``out``, which appears when it is whole.

    Args:
        cache: the cache or its folder.
        out: the file (``parquet``) or folder (``npy``) to write.
        corpus: the corpus; may be left out where the cache holds one.
        view: write this view of it, with the vectors of its own texts; default: the original text. A view has
            no ids and labels.
        teacher: the teacher; may be left out where the cache holds one.
        where: a condition on rows of the corpus, as for :func:`embedcache.catalog.select_rows`; default: all
            rows.
        to: ``parquet`` or ``npy``.
        dtype: of the vectors, ``float32`` or ``float16``.
        skip_missing: leave out rows without a vector, and count them, instead of refusing.
        overwrite: whether what is at ``out`` may be replaced.
        on_step: called as the work goes on.

    Raises:
        InputError: if an argument cannot be used, ``out`` is there already, no row is left, a vector is not
            finite, or a value does not fit ``dtype``.
        MissingVectorsError: if rows have no vector and ``skip_missing`` is off.
        StorageError: if ``out`` cannot be written; nothing is left of it then.
        CorruptCacheError: if a file of the cache is damaged.
    """
    started = time.perf_counter()
    if to not in EXPORT_FORMATS or dtype not in EXPORT_DTYPES:
        raise InputError(
            f"cannot export to {to} of {dtype}: choose {' or '.join(EXPORT_FORMATS)} of "
            f"{' or '.join(EXPORT_DTYPES)}"
        )
    target = Path(out).expanduser()
    _check_place(target, to, overwrite=overwrite)
    opened = open_cache(cache)
    chosen, known = opened.corpus(corpus), opened.teacher(teacher)
    asked = None if where is None else select_rows(opened, chosen.name, where, teacher=known.contract.id)
    texts = chosen if view is None else chosen.view(view)
    store = opened.store(known.contract)
    selection = _Selection(texts, store, asked, np.dtype(dtype))
    report = on_step or (lambda *_: None)
    present = selection.count_present(report)
    missing = selection.asked - present
    if missing and not skip_missing:
        raise MissingVectorsError(
            f"{missing} of {selection.asked} rows of {texts.title} have no vector of teacher {known.name!r}: "
            f"build them with 'embedcache build{'' if view is None else f' --embed-views {view}'}', or leave "
            "them out with --skip-missing"
        )
    if not present:
        condition = "" if where is None else f" for which {where!r} holds"
        raise InputError(
            f"nothing to export: {texts.title} has {selection.asked} rows{condition}, {missing} of "
            f"them without a vector of teacher {known.name!r}"
        )
    write = _write_parquet if to == "parquet" else _write_npy
    size = write(selection, present, target, report, overwrite)
    seconds = time.perf_counter() - started
    return ExportSummary(
        target, chosen.name, view, known.name, present, selection.asked, missing, size, seconds
    )


class _Selection:
    """The rows to be written; nothing but their numbers is held."""

    def __init__(
        self,
        corpus: Corpus,
        store: ShardStore,
        rows: NDArray[np.int64] | None,
        dtype: np.dtype[np.floating],
    ) -> None:
        import pyarrow as pa

        self._corpus, self._store, self._rows = corpus, store, rows
        self.asked = len(corpus) if rows is None else len(rows)
        self.dtype, self.dimension = dtype, store.contract.dimension
        self._names = {"row": "row", "text": ORIGINAL}
        self._names |= {name: name for name in ("id", "label") if name in corpus.info.columns}
        stored = corpus.part(0).schema
        self.schema = pa.schema([(name, stored.field(other).type) for name, other in self._names.items()])

    def count_present(self, report: OnStep) -> int:
        """Return how many of the rows have a vector."""
        present = done = 0
        report("look for vectors", 0, self.asked)
        for _, rows, positions in self._located():
            present += int(np.count_nonzero(positions >= 0))
            done += len(rows)
            report("look for vectors", done, self.asked)
        return present

    def chunks(self) -> Iterator[tuple[pa.RecordBatch, NDArray[np.floating]]]:
        """Yield the rows that have a vector, in order: their columns, and their vectors (n, d).

        Raises:
            InputError: if a vector is not finite, or a component does not fit the dtype.
        """
        import pyarrow as pa

        for number, rows, positions in self._located():
            there = np.flatnonzero(positions >= 0)
            for start in range(0, len(there), _CHUNK_ROWS):
                chosen = there[start : start + _CHUNK_ROWS]
                places = pa.array(rows[chosen])
                columns = [self._corpus.column(number, name).take(places) for name in self._names.values()]
                vectors = _cast(self._store.gather(positions[chosen]), self.dtype)
                yield pa.record_batch(columns, schema=self.schema), vectors

    def _located(self) -> Iterator[tuple[int, NDArray[np.int64], Positions]]:
        """Yield (number of a part, rows counted in it, their positions in the store)."""
        start = 0
        for number, part in enumerate(self._corpus.parts):
            end = start + part.rows
            rows = np.arange(part.rows)
            if self._rows is not None:
                low, high = np.searchsorted(self._rows, (start, end))
                rows = self._rows[low:high] - start
            keys = key_view(self._corpus.column(number, "key"))
            yield number, rows, self._store.locate(keys[rows])
            start = end


def _cast(vectors: NDArray[np.floating], dtype: np.dtype[np.floating]) -> NDArray[np.floating]:
    with np.errstate(over="ignore"):
        cast = vectors.astype(dtype, copy=False)
    if np.isfinite(cast).all():
        return cast
    if not np.isfinite(vectors).all():
        raise InputError(
            "the cache holds a vector with NaN or infinity: find its text with 'embedcache doctor', and mend "
            "it or leave its row out with --where"
        )
    raise InputError(
        f"a vector component of {float(np.abs(vectors).max()):.6g} does not fit {dtype}: "
        "export with --dtype float32"
    )


def _write_parquet(selection: _Selection, rows: int, target: Path, report: OnStep, overwrite: bool) -> int:
    """Write one Parquet file, a row group a chunk, and return its size."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    vector_type = pa.list_(pa.from_numpy_dtype(selection.dtype), selection.dimension)
    schema = selection.schema.append(pa.field("vector", vector_type))
    # Bytes of one significance side by side: a third smaller where the vectors were stored as float16.
    split = {"vector.list.element": "BYTE_STREAM_SPLIT"} if selection.dtype == np.float32 else None
    done = 0
    with temporary_sibling(target) as temporary:
        with (
            temporary.open("wb") as handle,
            pq.ParquetWriter(handle, schema, column_encoding=split, **_PARQUET) as writer,
        ):
            for columns, vectors in selection.chunks():
                flat = pa.array(vectors.reshape(-1))
                column = pa.FixedSizeListArray.from_arrays(flat, selection.dimension)
                writer.write_batch(pa.record_batch([*columns.columns, column], schema=schema))
                done += len(vectors)
                report("write", done, rows)
        place(temporary, target, overwrite=overwrite)
    return target.stat().st_size


def _write_npy(selection: _Selection, rows: int, target: Path, report: OnStep, overwrite: bool) -> int:
    """Write the folder of ``vectors.npy`` and ``rows.parquet``, and return their size."""
    import pyarrow.parquet as pq

    header = {
        "descr": np.lib.format.dtype_to_descr(selection.dtype),
        "fortran_order": False,
        "shape": (rows, selection.dimension),
    }
    done = 0
    with (
        folder_that_appears(target, overwrite=overwrite) as folder,
        # Not mapped: on a full disk a write is an error, touching a mapped page ends the process.
        (folder / VECTORS_FILE).open("wb") as vectors_file,
        (folder / ROWS_FILE).open("wb") as rows_file,
        pq.ParquetWriter(rows_file, selection.schema, **_PARQUET) as writer,
    ):
        np.lib.format.write_array_header_1_0(vectors_file, header)
        for columns, vectors in selection.chunks():
            vectors_file.write(np.ascontiguousarray(vectors).data)
            writer.write_batch(columns)
            done += len(vectors)
            report("write", done, rows)
    return sum(path.stat().st_size for path in target.iterdir())


def _check_place(target: Path, to: str, *, overwrite: bool) -> None:
    """Raise :class:`InputError` where ``target`` is there and may not, or should not, be replaced.

    Neither may its name end as that of the other format: a folder ``x.parquet`` would be taken for a file.
    """
    other = {".npy": "npy", ".parquet": "parquet", ".pq": "parquet"}.get(target.suffix.lower(), to)
    if other != to:
        kind = "one file" if to == "parquet" else "a folder"
        raise InputError(
            f"{target.name!r} ends like {other}, and --to {to} writes {kind}: choose --to {other} or another "
            "name"
        )
    check_target(target, overwrite=overwrite)
    if not target.exists():
        return
    replaceable = target.is_file()
    if to == "npy":
        names = {path.name for path in target.iterdir()} if target.is_dir() else {""}
        replaceable = names <= {VECTORS_FILE, ROWS_FILE}
    if not replaceable:
        raise InputError(f"{target} is no earlier export to {to} and is not replaced: choose another --out")
