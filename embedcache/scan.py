"""Rows of a corpus with their vectors, as a stream of Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from embedcache.corpus.corpus import Corpus
from embedcache.corpus.part import ORIGINAL, key_view
from embedcache.errors import MissingVectorsError
from embedcache.store import ShardStore

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 8192


def scan_rows(texts: Corpus, store: ShardStore) -> pa.RecordBatchReader:
    """Return the rows of a corpus or view with their vectors, in order, a few thousand at a time.

    Columns are ``text``, ``id`` and ``label`` where the corpus has them, and ``vector``, float32 of fixed
    size. polars, pandas, DuckDB and datasets read what is returned.

    Raises:
        MissingVectorsError: while it is read, at a row without a vector.
    """
    import pyarrow as pa

    vectors = pa.list_(pa.float32(), store.contract.dimension)
    columns = {name: column.type for name, column in texts.info.columns.items()}
    names = {ORIGINAL: "text", "id": "id", "label": "label"}
    fields = [(names[name], pa.type_for_alias(columns[name])) for name in names if name in columns]
    schema = pa.schema([*fields, ("vector", vectors)])
    return pa.RecordBatchReader.from_batches(schema, _batches(texts, store, schema))


def _batches(texts: Corpus, store: ShardStore, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

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
                row = start + int(np.argmin(positions))
                raise MissingVectorsError(
                    f"{texts.title}: {missing} of {len(positions)} texts from row {row} of part {number + 1} "
                    "have no vector; build it with this teacher first"
                )
            flat = pa.array(store.vectors(positions).reshape(-1))
            vectors = pa.FixedSizeListArray.from_arrays(flat, type=schema.field("vector").type)
            rows = [column.slice(start, len(positions)) for column in columns]
            yield pa.record_batch([*rows, vectors], schema=schema)
