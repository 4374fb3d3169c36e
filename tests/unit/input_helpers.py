"""Files of every format, and reading them."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from embedcache.corpus.readers import ReadOptions, ReadReport, read_batches
from embedcache.corpus.sources import expand_sources

ENDINGS = {
    "text": ".txt",
    "jsonl": ".jsonl",
    "csv": ".csv",
    "tsv": ".tsv",
    "parquet": ".parquet",
    "arrow": ".arrow",
}
WITH_COLUMNS = [kind for kind in ENDINGS if kind != "text"]
LINES = ["text", "jsonl", "csv", "tsv"]
PAIR_ROWS: list[dict[str, Any]] = [
    {"one": "a cat", "two": "a dog", "split": "train", "label": 1},
    {"one": "a bird", "two": "", "split": "train", "label": 0},
    {"one": "a stone", "two": "the road", "split": "dev", "label": 1},
    {"one": " ", "two": "the road", "split": "train", "label": 1},
    {"one": "a\x1fb", "two": "the road", "split": "train", "label": 1},
    {"one": "a b", "two": "the\x1froad", "split": "train", "label": 1},
    {"one": "a river", "two": "the house", "split": "train", "label": 0},
]
"""Rows of two texts, of which three can be kept."""


def packed(data: bytes, codec: str) -> bytes:
    """Return ``data`` compressed with ``gz`` or ``zst``, or as it is."""
    if codec == "gz":
        return gzip.compress(data, mtime=0)
    return pa.compress(data, codec="zstd", asbytes=True) if codec == "zst" else data


def ipc_bytes(table: pa.Table, *, stream: bool = False) -> bytes:
    """Return a table as an Arrow IPC file or stream."""
    sink = io.BytesIO()
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
    return sink.getvalue()


def parquet_bytes(table: pa.Table) -> bytes:
    """Return a table as a Parquet file."""
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=3)
    return sink.getvalue()


def encoded(kind: str, rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return rows as a file of the format; as plain text their column ``text`` alone."""
    names = list(rows[0])
    if kind == "text":
        return "".join(f"{row['text']}\n" for row in rows).encode()
    if kind == "jsonl":
        return "".join(json.dumps(row) + "\n" for row in rows).encode()
    if kind == "csv":
        sink = io.StringIO(newline="")
        csv.writer(sink).writerows([names, *(row.values() for row in rows)])
        return sink.getvalue().encode()
    if kind == "tsv":
        lines = ["\t".join(map(str, cells)) for cells in [names, *(row.values() for row in rows)]]
        return ("\n".join(lines) + "\n").encode()
    table = pa.Table.from_pylist([dict(row) for row in rows])
    return parquet_bytes(table) if kind == "parquet" else ipc_bytes(table)


def rows_of(texts: Sequence[str]) -> list[dict[str, Any]]:
    """Return rows with a number and a label beside each text."""
    return [{"number": str(i), "text": text, "label": i % 2} for i, text in enumerate(texts)]


def put(folder: Path, name: str, data: bytes | str) -> Path:
    """Write a file and return its path."""
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def read(*sources: Any, **options: Any) -> tuple[list[str], ReadReport]:
    """Return the texts of files or other sources, and the report."""
    report = ReadReport()
    found = expand_sources(sources) if isinstance(sources[0], (str, Path)) else list(sources)
    batches = list(read_batches(found, ReadOptions(**options), report))
    texts = [text for batch in batches for text in batch.texts]
    assert report.rows == len(texts)
    return texts, report


def read_data(folder: Path, name: str, data: bytes | str, **options: Any) -> tuple[list[str], ReadReport]:
    """Return the texts of a file with this content, and the report."""
    return read(put(folder, name, data), **options)
