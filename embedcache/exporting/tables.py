"""Exports with a row for every row of the corpus: Parquet, npy and Lance."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from embedcache.exporting.rows import Rows
from embedcache.lazy import load_extra
from embedcache.progress import Progress

if TYPE_CHECKING:
    import pyarrow as pa

VECTORS_FILE, ROWS_FILE = "vectors.npy", "rows.parquet"
LANCE_NAMES = frozenset({"data", "_deletions", "_indices", "_transactions", "_versions"})
"""Names inside the folder of a Lance dataset."""


def write_parquet(rows: Rows, path: Path, progress: Progress) -> None:
    """Write a Parquet file of rows and vectors."""
    import pyarrow.parquet as pq

    # Components hardly repeat; their bytes of one significance side by side compress by a third more.
    split = {"vector.list.element": "BYTE_STREAM_SPLIT"}
    settings = {"compression": "zstd", "use_dictionary": False, "column_encoding": split}
    with pq.ParquetWriter(path, rows.schema, **settings) as writer:
        for batch in rows.tables(progress):
            writer.write_batch(batch)


def write_npy(rows: Rows, folder: Path, progress: Progress) -> None:
    """Write vectors to ``vectors.npy``, the other columns to ``rows.parquet``."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema(rows.fields)
    with (
        (folder / VECTORS_FILE).open("wb") as matrix,
        pq.ParquetWriter(folder / ROWS_FILE, schema, compression="zstd", use_dictionary=False) as table,
    ):
        write_npy_header(matrix, rows, np.dtype(np.float32))
        for numbers, vectors in rows.batches(progress):
            matrix.write(vectors.data)
            table.write_batch(pa.record_batch(rows.columns(numbers), schema=schema))


def write_lance(rows: Rows, folder: Path, progress: Progress) -> None:
    """Write a Lance dataset of rows and vectors.

    Raises:
        MissingExtraError: if the package ``pylance`` is not installed.
    """
    import pyarrow as pa

    lance = load_extra("lance", "formats")
    failures: list[Exception] = []

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            yield from rows.tables(progress)
        except Exception as error:
            failures.append(error)
            raise

    try:
        lance.write_dataset(pa.RecordBatchReader.from_batches(rows.schema, batches()), str(folder))
    except OSError as error:
        # Lance wraps every error of a batch in an OSError.
        raise (failures or [error])[0] from error


def write_npy_header(file: BinaryIO, rows: Rows, dtype: np.dtype[np.floating]) -> None:
    """Write the header of an npy file of the vectors of ``rows``, little-endian and in C order."""
    header = {
        "descr": dtype.newbyteorder("<").str,
        "fortran_order": False,
        "shape": (len(rows), rows.dimension),
    }
    np.lib.format.write_array_header_1_0(file, header)
