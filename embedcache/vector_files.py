"""Files of vectors that others computed, read in batches beside the texts they belong to.

Nothing is unpickled. Of ``index.json`` all is held in memory, of everything else a batch; ``.npy`` files are
mapped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from embedcache.codecs import Vectors
from embedcache.corpus.columns import Problem
from embedcache.corpus.formats import raw_rows
from embedcache.corpus.readers import ReadOptions
from embedcache.corpus.sources import format_of
from embedcache.corpus.tables import open_table
from embedcache.errors import EmbedCacheError, InputError, MissingInputError, first_line
from embedcache.exporting.automodel import DOCS_FILE, INDEX_FILE, QUERIES_FILE
from embedcache.exporting.tables import ROWS_FILE, VECTORS_FILE

if TYPE_CHECKING:
    import pyarrow as pa

VECTOR_COLUMNS = ("vector", "embedding")
"""Names of the column of vectors, where none is given."""

_BATCH_ROWS = 8192

KINDS = ("parquet", "npy", "automodel", "tokenlearn")
"""Formats of vectors."""
TABLE_FORMATS = {"parquet": "parquet"}
"""Format of the tables of a kind; others go by the ending."""
TAKEN_BY = {
    "texts": ("npy", "automodel"),
    "vector_column": ("parquet", "tokenlearn"),
    "queries": ("automodel",),
}
"""Option -> the formats that take it."""


Texts: TypeAlias = Callable[[], Iterator["str | None"]]
"""Gives the texts from the first on; None for a row that no corpus keeps."""


def texts_of(files: Sequence[Path], read: ReadOptions) -> Iterator[str | None]:
    """Yield a text for every row of files, None for one that a corpus skips; errors as ``raw_rows``."""
    text_of = read.text_of
    for file in files:
        with raw_rows(file, format_of(file, read.format), read.columns()) as rows:
            for row in rows:
                text = text_of(row)
                yield None if isinstance(text, Problem) else text


@dataclass(frozen=True)
class VectorRows:
    """Texts with their vectors.

    Attributes:
        texts: n texts.
        vectors: float32, shape (n, d).
        rows: int64, shape (n,); row of each text among those that a corpus keeps.
        file: file of the vectors.
        places: int64, shape (n,); row of each vector in the file, from 0.
    """

    texts: Sequence[str]
    vectors: Vectors
    rows: NDArray[np.int64]
    file: Path
    places: NDArray[np.int64]


@dataclass
class OrderedVectors:
    """Vectors in the order of their texts.

    Attributes:
        texts: the texts.
        path: file or folder of the vectors.
        blocks: gives file, first row in the file, and vectors, float32 of shape (n, d).
        without_text: vectors whose row no corpus keeps, once all are read.
    """

    texts: Texts
    path: Path
    blocks: Callable[[], Iterator[tuple[Path, int, Vectors]]]
    without_text: int = 0

    def read(self) -> Iterator[VectorRows]:
        """Yield texts with their vectors.

        Raises:
            InputError: if there are more of one than of the other, or a file cannot be read.
        """
        texts, kept, count = self.texts(), 0, 0
        for file, start, vectors in self.blocks():
            some = list(islice(texts, len(vectors)))
            if len(some) < len(vectors):
                raise self._other_count(count + len(some), sum(len(more) for _, _, more in self.blocks()))
            places = np.array([place for place, text in enumerate(some) if text is not None], np.int64)
            own = [text for text in some if text is not None]
            yield VectorRows(own, vectors[places], np.arange(kept, kept + len(own)), file, start + places)
            count, kept = count + len(vectors), kept + len(own)
        if rest := sum(1 for _ in texts):
            raise self._other_count(count + rest, count)
        self.without_text = count - kept

    def _other_count(self, texts: int, vectors: int) -> InputError:
        return InputError(
            f"{self.path} has {vectors:,} vectors, the file of texts {texts:,} rows, expected one a row: "
            "give the texts that were encoded, all of them and in order"
        )


@dataclass
class HashedVectors:
    """Vectors by the sha256 of their texts.

    Attributes:
        texts: texts that may have one.
        file: the ``.npy`` file.
        vectors: its mapped array.
        hashes: sha256 of a text, in hexadecimal -> row of its vector.
        without_text: vectors that no text belongs to, once all are read.
    """

    texts: Texts
    file: Path
    vectors: NDArray[np.floating]
    hashes: Mapping[str, int] = field(repr=False)
    without_text: int = 0

    def read(self) -> Iterator[VectorRows]:
        """Yield the texts that have a vector, and their vectors."""
        left, start = set(self.hashes), 0
        texts = (text for text in self.texts() if text is not None)
        while some := list(islice(texts, _BATCH_ROWS)):
            names = [hashlib.sha256(text.encode()).hexdigest() for text in some]
            places = np.array([self.hashes.get(name, -1) for name in names], np.int64)
            left.difference_update(names)
            found = np.flatnonzero(places >= 0)
            own, places = [some[row] for row in found.tolist()], places[found]
            yield VectorRows(own, _as_float32(self.vectors[places]), start + found, self.file, places)
            start += len(some)
        self.without_text = len(left)


VectorSource: TypeAlias = "OrderedVectors | HashedVectors"


def find_texts(path: Path, kind: str, texts: Path | None) -> list[Path]:
    """Return the files that hold the texts of vectors; none where the texts are to be in the cache.

    Args:
        path: file or folder of the vectors.
        kind: one of ``KINDS``.
        texts: file of the texts that was given.

    Raises:
        InputError: if the format is unknown, or texts are missing or given twice.
    """
    if kind not in KINDS:
        raise InputError(f"unknown format {kind!r}: expected one of {', '.join(KINDS)}")
    has_texts = kind not in TAKEN_BY["texts"] or (kind == "npy" and path.is_dir())
    if has_texts and texts is not None:
        raise InputError(f"{path} has texts, and so has {texts}: leave texts out")
    if kind == "npy" and not has_texts and texts is None:
        raise InputError(f"{path} has no texts: give a file of texts, or the folder of an export")
    if texts is None and has_texts:
        return [path / ROWS_FILE] if kind == "npy" else find_tables(path, kind)
    return [] if texts is None else [texts]


def open_vectors(
    path: Path, kind: str, texts: Texts, dimension: int, column: str | None = None, *, queries: bool = False
) -> VectorSource:
    """Open the vectors of ``texts``.

    Args:
        path: file or folder of the vectors.
        kind: one of ``KINDS``.
        texts: their texts.
        dimension: expected width.
        column: column of the vectors in a table.
        queries: read the queries of an export for NeMo Automodel, not the documents.

    Raises:
        MissingInputError: if a file is missing.
        InputError: if a file is damaged, of another width, or does not fit the others.
    """
    if kind == "automodel":
        return _open_automodel(path, texts, dimension, queries=queries)
    if kind == "npy":
        file = path / VECTORS_FILE if path.is_dir() else path
        return OrderedVectors(texts, path, partial(_npy_blocks, file, _map_npy(file, dimension)))
    files = find_tables(path, kind)
    return OrderedVectors(
        texts, path, partial(_table_blocks, files, TABLE_FORMATS.get(kind), column, dimension)
    )


def find_tables(path: Path, kind: str) -> list[Path]:
    """Return the Parquet or Arrow files that ``path`` names, sorted.

    Args:
        path: a file, or a folder of Parquet parts, or of the datasets that tokenlearn saves.
        kind: ``parquet`` or ``tokenlearn``.

    Raises:
        MissingInputError: if there are none.
    """
    patterns = ["*.parquet"] if kind == "parquet" else ["data-*.arrow", "*.parquet"]
    found = [path] if path.is_file() else []
    for pattern in patterns:
        found = found or sorted(path.rglob(pattern))
    if not found:
        raise MissingInputError(f"{path}: expected a file, or a folder of {' or '.join(patterns)}")
    return found


def _table_blocks(
    files: Sequence[Path], kind: str | None, column: str | None, dimension: int
) -> Iterator[tuple[Path, int, Vectors]]:
    """Yield the vectors in a column of Parquet or Arrow files."""
    for file in files:
        start = 0
        with _naming(file), ExitStack() as stack:
            schema, read = open_table(file, kind or format_of(file), stack)
            name = _vector_column(schema, column, file)
            for batch in read([name]):
                values = batch.column(name)
                # One batch may be the whole file.
                for begin in range(0, len(values), _BATCH_ROWS):
                    vectors = _matrix(values[begin : begin + _BATCH_ROWS], dimension, file, start)
                    yield file, start, vectors
                    start += len(vectors)


def _vector_column(schema: pa.Schema, asked: str | None, file: Path) -> str:
    import pyarrow.types as types

    is_list = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    lists = [
        one.name
        for one in schema
        if any(check(one.type) for check in is_list) and types.is_floating(one.type.value_type)
    ]
    usual = [name for name in VECTOR_COLUMNS if name in lists] or lists
    found = usual if asked is None else [name for name in lists if name == asked]
    if len(found) != 1:
        wrong = f"{len(usual)} columns of vectors" if asked is None else f"no column {asked!r} of float lists"
        raise InputError(
            f"{file}: {wrong} ({', '.join(lists) or 'none'} of {', '.join(schema.names)[:200]}); name "
            "one with --vector-column"
        )
    return found[0]


def _matrix(values: pa.Array, dimension: int, file: Path, start: int) -> Vectors:
    import pyarrow.compute as pc

    values.validate(full=True)  # offsets of a foreign file may lead outside
    widths = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
    other = np.flatnonzero(widths != dimension)
    if len(other):
        raise _other_width(f"row {start + other[0]} of {file}", int(widths[other[0]]), dimension)
    return _as_float32(values.flatten().to_numpy(zero_copy_only=False).reshape(-1, dimension))


def _other_width(where: str, found: int, expected: int) -> InputError:
    return InputError(
        f"{where}: {found:,} dimensions, and the contract has {expected:,}: give the contract of the model "
        "that computed these vectors"
    )


def _as_float32(vectors: NDArray[np.floating]) -> Vectors:
    with np.errstate(over="ignore"):  # infinity is found where vectors are checked
        return np.ascontiguousarray(vectors, np.float32)


def _npy_blocks(file: Path, vectors: NDArray[np.floating]) -> Iterator[tuple[Path, int, Vectors]]:
    for start in range(0, len(vectors), _BATCH_ROWS):
        yield file, start, _as_float32(vectors[start : start + _BATCH_ROWS])


def _map_npy(file: Path, dimension: int) -> NDArray[np.floating]:
    """Return the array of shape (n, dimension) in a ``.npy`` file, mapped; pickled objects are refused."""
    with _naming(file):
        array = np.load(file, mmap_mode="r", allow_pickle=False)
    if not isinstance(array, np.ndarray) or array.dtype.kind != "f" or array.ndim != 2:
        found = f"{array.dtype} of shape {array.shape}" if isinstance(array, np.ndarray) else "an archive"
        raise InputError(f"{file}: {found}, expected floats of shape (n, {dimension}): save that array alone")
    if array.shape[1] != dimension:
        raise _other_width(str(file), array.shape[1], dimension)
    return array


def _open_automodel(folder: Path, texts: Texts, dimension: int, *, queries: bool) -> HashedVectors:
    name, side = (QUERIES_FILE, "query_hashes") if queries else (DOCS_FILE, "doc_hashes")
    vectors = _map_npy(folder / name, dimension)
    hashes: Any = read_json(folder / INDEX_FILE).get(side)
    rows = hashes.values() if isinstance(hashes, dict) else [None]
    if not all(type(row) is int and 0 <= row < len(vectors) for row in rows):
        raise InputError(
            f"{folder / INDEX_FILE}: expected {side!r}, an object of rows below {len(vectors):,}, those of "
            f"{name}, by the sha256 of their texts: export the folder again"
        )
    return HashedVectors(texts, folder / name, vectors, hashes)


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
        MissingInputError: if it does not exist.
        InputError: if it holds no JSON object.
    """
    with _naming(path):
        value = json.loads(path.read_bytes())
        if not isinstance(value, dict):
            raise ValueError(f"found a {type(value).__name__}, expected a JSON object")
        return value


@contextmanager
def _naming(file: Path) -> Iterator[None]:
    """Turn what is wrong with a file into an error that names it."""
    try:
        yield
    except EmbedCacheError:
        raise
    except FileNotFoundError as error:
        raise MissingInputError(f"{file} does not exist; check the path") from error
    # Errors of pyarrow are among them.
    except (OSError, EOFError, ValueError, NotImplementedError, RecursionError) as error:
        reason = first_line(error)[:200]
        raise InputError(
            f"{file} cannot be read ({reason}); copy it again, or give another format"
        ) from error
