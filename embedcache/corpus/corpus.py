"""A stored corpus: an ordered, named list of rows, kept inside the cache so that targets always match.

``corpora/<name>/corpus.json`` describes it, is sealed and written last; the parts it names hold the rows.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from embedcache.corpus.part import (
    COLUMN_TYPES,
    ORIGINAL,
    PART_ROWS,
    Part,
    checked_column,
    key_view,
    open_part,
    parts_of_rows,
    way_out,
)
from embedcache.errors import CacheFormatError, CorruptCacheError, InputError
from embedcache.fsio import canonical_json, read_sealed_json
from embedcache.keys import KEY_DTYPE, KeyArray

if TYPE_CHECKING:
    import pyarrow as pa

CORPUS_VERSION = 2
DESCRIPTION = "corpus.json"


def check_name(name: str) -> str:
    """Return ``name`` if it can name a corpus, else raise :class:`InputError`."""
    if not re.fullmatch(r"\w[\w.-]{0,99}", name):
        raise InputError(
            f"{name!r} cannot name a corpus: use up to 100 letters, digits, '.', '_' and '-'; "
            "choose one with --name"
        )
    return name


@dataclass(frozen=True)
class Column:
    """A column of a corpus: the Arrow type it is stored as, and the sha256 over its values in order."""

    type: str
    digest: str


@dataclass(frozen=True)
class CorpusInfo:
    """What ``corpus.json`` says.

    Attributes:
        name: the corpus's name.
        parts: the files that hold the rows, in order.
        columns: ``original``, and where rows carry them ``id`` and ``label``.
        skipped: reason -> number of source rows that were left out.
    """

    name: str
    parts: tuple[Part, ...]
    columns: Mapping[str, Column]
    skipped: Mapping[str, int]

    @property
    def rows(self) -> int:
        """Number of rows."""
        return sum(part.rows for part in self.parts)

    @property
    def digest(self) -> str:
        """Sha256 over every row's text, id and label, in order: the corpus's identity."""
        digests = {name: column.digest for name, column in self.columns.items()}
        return hashlib.sha256(canonical_json(digests)).hexdigest()

    @property
    def types(self) -> dict[str, str]:
        """The Arrow type of each column."""
        return {name: column.type for name, column in self.columns.items()}

    @property
    def has_ids(self) -> bool:
        """Whether rows carry ids."""
        return "id" in self.columns

    @property
    def has_labels(self) -> bool:
        """Whether rows carry labels."""
        return "label" in self.columns

    def to_json(self) -> dict[str, object]:
        """Return the content of ``corpus.json``."""
        return {
            "version": CORPUS_VERSION,
            "name": self.name,
            "rows": self.rows,
            "digest": self.digest,
            "parts": [{"sha256": part.sha256, "rows": part.rows} for part in self.parts],
            "columns": {
                name: {"type": column.type, "digest": column.digest} for name, column in self.columns.items()
            },
            "skipped": dict(self.skipped),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> CorpusInfo:
        """Return the description that ``value`` holds, trusting nothing in it.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: if it is none.
        """
        info = cls(
            name=str(value["name"]),
            parts=tuple(
                Part(_digest(part["sha256"]), _count(part["rows"], least=1, most=PART_ROWS))
                for part in value["parts"]
            ),
            columns={
                name: Column(_type(name, column["type"]), _digest(column["digest"]))
                for name, column in value["columns"].items()
            },
            skipped={str(reason): _count(count) for reason, count in value["skipped"].items()},
        )
        if ORIGINAL not in info.columns or not info.parts:
            raise ValueError("it names no texts")
        # Parts carry the numbers of their rows. A small file named many times would stand for billions.
        if len({part.sha256 for part in info.parts}) < len(info.parts):
            raise ValueError("it names a part twice")
        if value["rows"] != info.rows or value["digest"] != info.digest:
            raise ValueError("its rows and digest are not those of its parts and columns")
        return info


def _digest(value: object) -> str:
    # These become file names: anything else could lead out of the folder.
    if not isinstance(value, str) or not re.fullmatch(r"[0-9a-f]{64}", value):
        raise ValueError(f"{str(value)[:80]!r} is no sha256")
    return value


def _count(value: object, *, least: int = 0, most: int | None = None) -> int:
    if type(value) is not int or value < least or (most is not None and value > most):
        raise ValueError(f"{str(value)[:80]!r} is no count of rows")
    return value


def _type(name: str, value: object) -> str:
    if value not in COLUMN_TYPES[name]:
        raise ValueError(f"column {name!r} of type {str(value)[:80]!r}")
    return str(value)


def read_info(folder: Path, file_name: str = DESCRIPTION) -> CorpusInfo:
    """Read the description of the corpus in ``folder``.

    Raises:
        CorruptCacheError: if it is missing, damaged, a link, or of another name than the folder.
        CacheFormatError: if a newer version of embedcache wrote it.
    """
    path = folder / file_name
    try:
        if folder.is_symlink():
            raise ValueError("its folder is a symbolic link; a cache holds its files itself")
        value = read_sealed_json(path)
        version = value["version"]
        if version == CORPUS_VERSION:
            info = CorpusInfo.from_json(value)
            if info.name != folder.name:
                raise ValueError(f"it describes a corpus called {info.name!r}")
            return info
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise CorruptCacheError(
            f"corpus description {path} is damaged ({reason}): {way_out(folder)}"
        ) from error
    raise CacheFormatError(
        f"{path} has format version {str(version)[:20]}, this embedcache reads version {CORPUS_VERSION}: "
        "upgrade embedcache"
    )


class Corpus:
    """A corpus inside a cache; its parts are mapped into memory when their rows are asked for.

    Args:
        folder: ``corpora/<name>`` of a cache.
        info: its description, where it is known; by default it is read.

    Raises:
        CorruptCacheError: if its description is damaged.
        CacheFormatError: if a newer version of embedcache wrote it.
    """

    def __init__(self, folder: Path, info: CorpusInfo | None = None) -> None:
        self.folder = folder
        self.info = read_info(folder) if info is None else info
        edges = np.cumsum([0, *(part.rows for part in self.info.parts)], dtype=np.int64)
        self._starts: NDArray[np.int64] = edges[:-1]
        self._rows = int(edges[-1])
        self._opened: dict[int, pa.RecordBatch] = {}
        self._columns: dict[tuple[int, str], pa.Array] = {}

    @property
    def name(self) -> str:
        """The corpus's name."""
        return self.info.name

    @property
    def parts(self) -> tuple[Part, ...]:
        """The (sha256, rows) of the files that hold the rows, in order."""
        return self.info.parts

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._rows

    def missing_parts(self) -> list[Path]:
        """Return the files of parts that are not there."""
        paths = [self.folder / part.file_name for part in self.parts]
        return [path for path in paths if not path.is_file()]

    def part(self, number: int) -> pa.RecordBatch:
        """Return a part as it lies in its file, mapped; the content of its columns is not yet checked.

        Raises:
            CorruptCacheError: if the part is missing or damaged.
        """
        if number not in self._opened:
            self._opened[number] = open_part(self.folder, self.parts[number], self.info.types)
        return self._opened[number]

    def column(self, number: int, name: str) -> pa.Array:
        """Return a column (``row``, ``key``, ``original``, ``id``, ``label``) of a part, checked and mapped.

        Raises:
            CorruptCacheError: if the part is missing or damaged.
        """
        if (number, name) not in self._columns:
            self._columns[number, name] = checked_column(
                self.folder, self.parts[number], self.part(number), name
            )
        return self._columns[number, name]

    def iter_keys(self) -> Iterator[KeyArray]:
        """Yield the keys of the original texts, one mapped array of dtype ``V16`` a part."""
        for number in range(len(self.parts)):
            yield key_view(self.column(number, "key"))

    def keys(self) -> KeyArray:
        """Return the key of every row's original text, dtype ``V16``, shape (rows,): 16 bytes a row."""
        return np.concatenate([np.empty(0, dtype=KEY_DTYPE), *self.iter_keys()])

    def keys_of(self, rows: NDArray[np.integer]) -> KeyArray:
        """Return the keys of the original texts of ``rows``, dtype ``V16``, in the order asked.

        Raises:
            IndexError: if a row is not one of the corpus.
            CorruptCacheError: if a part is missing or damaged.
        """
        wanted = self._checked(rows)
        keys = np.empty(len(wanted), dtype=KEY_DTYPE)
        for number, places in parts_of_rows(wanted, self._starts):
            keys[places] = key_view(self.column(number, "key"))[wanted[places] - self._starts[number]]
        return keys

    def iter_texts(self) -> Iterator[list[str]]:
        """Yield all original texts in order, a part at a time."""
        for number in range(len(self.parts)):
            yield self.column(number, ORIGINAL).to_pylist()

    def texts(self, rows: NDArray[np.integer] | None = None) -> list[str]:
        """Return the original texts of ``rows`` (default: all), in the order asked.

        Raises:
            IndexError: if a row is not one of the corpus.
            CorruptCacheError: if a part is missing or damaged.
        """
        return self._values(ORIGINAL, rows)

    def ids(self, rows: NDArray[np.integer] | None = None) -> list[str]:
        """Return the ids of ``rows`` (default: all), in the order asked.

        Raises:
            InputError: if the corpus was built without ids.
            IndexError, CorruptCacheError: as :meth:`texts`.
        """
        if not self.info.has_ids:
            raise InputError(f"corpus {self.name!r} has no ids: build it with --id-column")
        return self._values("id", rows)

    def labels(self, rows: NDArray[np.integer] | None = None) -> list[Any]:
        """Return the labels of ``rows`` (default: all), in the order asked: all str, all int or all float.

        Raises:
            InputError: if the corpus was built without labels.
            IndexError, CorruptCacheError: as :meth:`texts`.
        """
        if not self.info.has_labels:
            raise InputError(f"corpus {self.name!r} has no labels: build it with --label-column")
        return self._values("label", rows)

    def _values(self, name: str, rows: NDArray[np.integer] | None) -> list[Any]:
        if rows is None:
            return [
                value for number in range(len(self.parts)) for value in self.column(number, name).to_pylist()
            ]
        wanted = self._checked(rows)
        values: list[Any] = [None] * len(wanted)
        # Part by part: taking from all parts at once would first copy the whole column into one piece.
        for number, places in parts_of_rows(wanted, self._starts):
            found = self.column(number, name).take(_row_array(wanted[places] - self._starts[number]))
            for place, value in zip(places.tolist(), found.to_pylist(), strict=True):
                values[place] = value
        return values

    def _checked(self, rows: NDArray[np.integer]) -> NDArray[np.int64]:
        wanted = np.asarray(rows, dtype=np.int64)
        if len(wanted) and (wanted.min() < 0 or wanted.max() >= len(self)):
            raise IndexError(f"rows {wanted.min()} to {wanted.max()} asked for, of {len(self)}")
        return wanted


def _row_array(rows: NDArray[np.int64]) -> pa.Array:
    import pyarrow as pa

    return pa.array(rows)
