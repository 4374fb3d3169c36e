"""Export as the folder that the retrieval distillation of NVIDIA NeMo Automodel reads its teacher from.

``queries.npy`` and ``docs.npy`` hold a vector for each distinct text. ``index.json`` gives the row of a text
by the sha256 of its UTF-8 bytes, without any prompt. ``manifest.json`` names corpora, teachers and contracts.
"""

from __future__ import annotations

import json
import os
import shutil
from datetime import datetime, timezone
from hashlib import sha256
from pathlib import Path
from typing import TextIO

import numpy as np

from embedcache.errors import InputError
from embedcache.exporting.rows import Rows
from embedcache.exporting.tables import write_npy_header
from embedcache.fsio import spelled_json
from embedcache.lazy import load
from embedcache.progress import Progress

DOCS_FILE, QUERIES_FILE = "docs.npy", "queries.npy"
INDEX_FILE, MANIFEST_FILE = "index.json", "manifest.json"
NAMES = frozenset({DOCS_FILE, QUERIES_FILE, INDEX_FILE, MANIFEST_FILE})
"""Names of the files."""


def write_automodel(docs: Rows, queries: Rows, folder: Path, progress: Progress) -> None:
    """Write the folder of ``docs`` and ``queries``, which may be the same object; their texts are distinct.

    Vectors are float16 if all of them are stored so, else float32; neither loses a bit.

    Raises:
        InputError: if their vectors differ in dimension.
    """
    if docs.dimension != queries.dimension:
        raise InputError(
            f"vectors of teacher {queries.teacher.name!r} have {queries.dimension} components, those of "
            f"{docs.teacher.name!r} {docs.dimension}: choose teachers of one dimension"
        )
    dtype = np.result_type(docs.store.dtype, queries.store.dtype)
    _write_vectors(docs, folder / DOCS_FILE, dtype, progress)
    if queries is docs:
        _link(folder / DOCS_FILE, folder / QUERIES_FILE)
    else:
        _write_vectors(queries, folder / QUERIES_FILE, dtype, progress)
    with (folder / INDEX_FILE).open("w", encoding="ascii") as index:
        counts = {"num_queries": len(queries), "num_docs": len(docs)}
        index.write(json.dumps({"dim": docs.dimension, "dtype": dtype.name, **counts})[:-1])
        for name, rows in (("query_hashes", queries), ("doc_hashes", docs)):
            index.write(f', "{name}": {{')
            _write_hashes(rows, index)
            index.write("}")
        index.write("}\n")
    manifest = {
        "embedcache": load("embedcache:__version__"),
        "created": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "queries": _origin(queries),
        "docs": _origin(docs),
    }
    (folder / MANIFEST_FILE).write_bytes(spelled_json(manifest))


def _write_vectors(rows: Rows, path: Path, dtype: np.dtype[np.floating], progress: Progress) -> None:
    with path.open("wb") as matrix:
        write_npy_header(matrix, rows, dtype)
        for _, vectors in rows.batches(progress):
            matrix.write(vectors.astype(dtype, copy=False).data)


def _write_hashes(rows: Rows, index: TextIO) -> None:
    """Write the members of an object a row at a time: those of a large corpus would fill memory."""
    separator = ""
    for block in rows.blocks():
        for row, text in enumerate(rows.texts.texts(rows.numbers[block]), block.start):
            index.write(f'{separator}"{sha256(text.encode()).hexdigest()}": {row}')
            separator = ", "


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)


def _origin(rows: Rows) -> dict[str, object]:
    return {
        "corpus": rows.corpus.name,
        "view": None if rows.texts is rows.corpus else rows.texts.name,
        "teacher": rows.teacher.name,
        "contract": rows.teacher.contract.to_json(),
    }
