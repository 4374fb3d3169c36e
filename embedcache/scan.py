"""Rows of a corpus with their vectors, as a stream of Arrow batches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from embedcache.corpus.corpus import Corpus
from embedcache.corpus.part import ORIGINAL, key_view
from embedcache.errors import MissingVectorsError, StorageError
from embedcache.folders import folder_that_appears
from embedcache.lazy import load_extra
from embedcache.store import ShardStore

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 8192
_EXTRA = "formats"


class Scan:
    """Rows of a corpus or view with their vectors, in order, as a stream of Arrow batches.

    Columns are ``text``, ``id`` and ``label`` where the corpus has them, and ``vector``, float32 of fixed
    size in every codec, because DuckDB cannot scan float16. Libraries that take an Arrow stream read a scan
    as it is. Each reading starts at the first row and holds a few thousand rows in memory. It raises
    ``MissingVectorsError`` at a row without a vector.

    Args:
        texts: the corpus or view.
        store: the vectors.

    Attributes:
        schema: Arrow schema of the batches.
    """

    def __init__(self, texts: Corpus, store: ShardStore) -> None:
        import pyarrow as pa

        columns = {name: column.type for name, column in texts.info.columns.items()}
        names = {ORIGINAL: "text", "id": "id", "label": "label"}
        fields = [(names[name], pa.type_for_alias(columns[name])) for name in names if name in columns]
        vectors = pa.list_(pa.float32(), store.contract.dimension)
        self.schema: pa.Schema = pa.schema([*fields, ("vector", vectors)])
        self._texts, self._store = texts, store

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches."""
        return _batches(self._texts, self._store, self.schema)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the stream as Arrow's PyCapsule interface has it."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def to_reader(self) -> pa.RecordBatchReader:
        """Return a reader of the batches."""
        import pyarrow as pa

        return pa.RecordBatchReader.from_batches(self.schema, iter(self))

    def read_all(self) -> pa.Table:
        """Return all rows as a table in memory."""
        return self.to_reader().read_all()

    def to_polars(self) -> Any:
        """Return all rows as a ``polars.DataFrame``; ``vector`` is an ``Array`` of ``Float32``.

        Raises:
            MissingExtraError: if polars is not installed.
        """
        return load_extra("polars", _EXTRA).from_arrow(self.read_all())

    def to_pandas(self) -> Any:
        """Return all rows as a ``pandas.DataFrame``; ``vector`` holds arrays, float32 of shape (d,).

        Raises:
            MissingExtraError: if pandas is not installed.
        """
        load_extra("pandas", _EXTRA)
        return self.read_all().to_pandas()

    def to_dataset(self, folder: str | Path) -> Any:
        """Return all rows as a ``datasets.Dataset`` that is mapped from a file, not held in memory.

        The file is Arrow IPC, four bytes a component. It is written once: the name of its folder has a digest
        of the rows and the shards. What the dataset caches goes beside it.

        Args:
            folder: folder of datasets, created where missing.

        Raises:
            MissingExtraError: if datasets is not installed.
            StorageError: if the file cannot be written.
        """
        import pyarrow as pa

        datasets = load_extra("datasets", _EXTRA)
        digest = hashlib.sha256(f"{self._texts.info.digest}-{self._store.state}".encode()).hexdigest()
        own = Path(folder).expanduser() / f"{self._texts.name}-{digest[:32]}"
        file = own / "rows.arrow"
        if not file.exists():
            try:
                with (
                    folder_that_appears(own, overwrite=False) as draft,
                    pa.ipc.new_stream(str(draft / file.name), self.schema) as writer,
                ):
                    for batch in self:
                        writer.write_batch(batch)
            except StorageError:
                # Another process may have been faster.
                if not file.exists():
                    raise
        return datasets.Dataset.from_file(str(file))


def _batches(texts: Corpus, store: ShardStore, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    first = 0
    for number, part in enumerate(texts.parts):
        keys = key_view(texts.part(number).column("key"))
        columns = [
            texts.column(number, ORIGINAL if name == "text" else name)
            for name in schema.names
            if name != "vector"
        ]
        for start in range(0, part.rows, BATCH_ROWS):
            positions = store.locate(keys[start : start + BATCH_ROWS])
            missing = int((positions < 0).sum())
            if missing:
                place = texts.place(first + start + int(np.argmin(positions)))
                raise MissingVectorsError(
                    f"{place} and {missing - 1} others of {len(positions)} read with it have no vector; "
                    "build the corpus with this teacher first"
                )
            flat = pa.array(store.vectors(positions).reshape(-1))
            vectors = pa.FixedSizeListArray.from_arrays(flat, type=schema.field("vector").type)
            rows = [column.slice(start, len(positions)) for column in columns]
            yield pa.record_batch([*rows, vectors], schema=schema)
        first += part.rows
