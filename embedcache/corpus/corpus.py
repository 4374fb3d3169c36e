"""A stored corpus: an ordered, named list of rows, kept inside the cache so that targets always match.

``corpora/<name>/corpus.json`` describes it, is sealed and written last; the parts it names hold the rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from embedcache.corpus.description import (
    CORPUS_VERSION,
    DESCRIPTION,
    Column,
    CorpusInfo,
    check_name,
    read_info,
)
from embedcache.corpus.part import (
    ORIGINAL,
    Part,
    checked_column,
    key_view,
    open_part,
    parts_of_rows,
    way_out,
)
from embedcache.corpus.view_record import VIEWS, ViewRecord, is_recorded, read_record
from embedcache.errors import CorruptCacheError, InputError
from embedcache.keys import KEY_DTYPE, KeyArray
from embedcache.views.recipe import Recipe, is_view_name

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "CORPUS_VERSION",
    "DESCRIPTION",
    "Column",
    "Corpus",
    "CorpusInfo",
    "View",
    "check_name",
    "read_info",
]


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
    def title(self) -> str:
        """What messages call it."""
        return f"corpus {self.name!r}"

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

    def view_names(self) -> list[str]:
        """Return the names of the views, sorted; that they can be read is not checked."""
        folders = (self.folder / VIEWS).glob("*")
        return sorted(folder.name for folder in folders if is_view_name(folder.name) and is_recorded(folder))

    def view(self, name: str) -> View:
        """Return the view called ``name``: another text for every row.

        Raises:
            InputError: if there is no such view, or it was made of another state of the corpus.
            CorruptCacheError: if its description or its recipe is damaged.
            CacheFormatError: if a newer version of embedcache wrote it.
        """
        names = self.view_names()
        if name not in names:
            raise InputError(
                f"corpus {self.name!r} has no view {name!r}: it has {', '.join(names) or 'none'}; add one by "
                "building the corpus again with --view ('embedcache views' lists what there is)"
            )
        return View(self, name)

    def views(self) -> list[View]:
        """Return the views that were made of the rows the corpus has now, by name.

        Raises:
            CorruptCacheError: if the description or the recipe of a view is damaged.
            CacheFormatError: if a newer version of embedcache wrote it.
        """
        folder = self.folder / VIEWS
        names = self.view_names()
        return [View(self, name) for name in names if read_record(folder / name).of == self.info.digest]

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


class View(Corpus):
    """A view of a corpus: a text for every row of it, in its order, read as a corpus is.

    Args:
        of: the corpus.
        name: the view's name.

    Raises:
        InputError: if it was made of another state of the corpus.
        CorruptCacheError: if its description or its recipe is damaged.
        CacheFormatError: if a newer version of embedcache wrote it.
    """

    def __init__(self, of: Corpus, name: str) -> None:
        folder = of.folder / VIEWS / name
        self.of = of
        self.record: ViewRecord = read_record(folder)
        if self.record.of != of.info.digest:
            raise InputError(
                f"view {name!r} was made of other rows than corpus {of.name!r} has now (digest "
                f"{self.record.of[:12]}, not {of.info.digest[:12]}): build the corpus again with its --view"
            )
        super().__init__(folder)
        if self.info.digest != self.record.digest or len(self) != len(of):
            raise CorruptCacheError(
                f"view {folder} has other rows than its recipe was written for: {way_out(folder)}"
            )

    @property
    def title(self) -> str:
        """What messages call it."""
        return f"view {self.name!r} of {self.of.title}"

    @property
    def recipe(self) -> Recipe:
        """How the texts were made."""
        return self.record.recipe
