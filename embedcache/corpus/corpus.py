"""Stored corpora and their views: ordered, named lists of rows inside a cache.

``corpora/<name>/corpus.json`` describes a corpus, is sealed and written last; its parts hold the rows.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from embedcache.corpus.description import (
    DESCRIPTION,
    VIEWS,
    CorpusInfo,
    ViewRecord,
    is_recorded,
    read_info,
    read_record,
)
from embedcache.corpus.part import ORIGINAL, Part, damaged, key_view, open_part, spelled_values
from embedcache.errors import InputError
from embedcache.fsio import inside, json_digest, list_folder
from embedcache.keys import KEY_DTYPE, KeyArray, KeyIndex
from embedcache.views.recipe import Recipe, is_view_name

if TYPE_CHECKING:
    import pyarrow as pa


def check_name(name: str, option: str = "name") -> str:
    """Return ``name`` if it can name a corpus, else raise ``InputError`` about ``option``."""
    if not re.fullmatch(r"\w[\w.-]{0,99}", name):
        raise InputError(
            f"{name!r} cannot name a corpus: use up to 100 letters, digits, '.', '_' and '-'; "
            f"choose another {option}"
        )
    return name


@dataclass(frozen=True)
class CorpusRef:
    """Corpus as a user names it: ``NAME`` or ``NAME@DIGEST``.

    Attributes:
        name: name of the corpus.
        digest: first six digits or more of its digest, or of a manifest's; empty: the only one.
    """

    name: str
    digest: str = ""

    @classmethod
    def parse(cls, text: str) -> CorpusRef:
        """Read ``NAME`` or ``NAME@DIGEST``; raise ``InputError`` where it is none."""
        name, at, digest = text.partition("@")
        if at and not re.fullmatch(r"[0-9a-f]{6,64}", digest):
            raise InputError(f"corpus {text[:80]!r}: expected NAME or NAME@DIGEST, six digits or more")
        return cls(check_name(name), digest)


class Corpus:
    """Corpus inside a cache; its parts are mapped into memory when their rows are asked for.

    Args:
        folder: ``corpora/<name>`` of a cache.
        info: its description; default: read from the folder.

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

    @property
    def name(self) -> str:
        """The corpus's name."""
        return self.info.name

    @property
    def title(self) -> str:
        """Name in messages."""
        return f"corpus {self.name!r}"

    def place(self, row: int) -> str:
        """Return the name of a row in messages."""
        return f"row {row} of {self.title}"

    @property
    def parts(self) -> tuple[Part, ...]:
        """Files that hold the rows, in order."""
        return self.info.parts

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._rows

    def missing_parts(self) -> list[Path]:
        """Return the files of parts that are missing."""
        paths = [self.folder / part.file_name for part in self.parts]
        return [path for path in paths if not path.is_file()]

    def part(self, number: int) -> pa.RecordBatch:
        """Return a part of the corpus, checked and mapped.

        Raises:
            CorruptCacheError: if the part is missing or damaged.
        """
        if number not in self._opened:
            self._opened[number] = open_part(self.folder, self.parts[number], self.info.types)
        return self._opened[number]

    def column(self, number: int, name: str) -> pa.Array:
        """Return a column (``row``, ``key``, ``original``, ``id``, ``label``) of ``part``."""
        return self.part(number).column(name)

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
        keys = np.empty(len(rows), dtype=KEY_DTYPE)
        for places, number, inside_part in self._located(rows):
            keys[places] = key_view(self.column(number, "key"))[inside_part]
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
            IndexError, CorruptCacheError: as ``texts``.
        """
        return self._values("id", rows)

    def labels(self, rows: NDArray[np.integer] | None = None) -> list[Any]:
        """Return the labels of ``rows`` (default: all), in the order asked: all str, all int or all float.

        Raises:
            InputError: if the corpus was built without labels.
            IndexError, CorruptCacheError: as ``texts``.
        """
        return self._values("label", rows)

    def digest_of(self, first: int, last: int) -> str:
        """Return the digest that a corpus of the rows ``first`` to ``last`` (not included) would have.

        Raises:
            CorruptCacheError: if a part is missing or damaged.
        """
        digests = {name: hashlib.sha256() for name in self.info.columns}
        for number, start in enumerate(self._starts.tolist()):
            rows = slice(max(first - start, 0), max(last - start, 0))
            if rows.start >= self.parts[number].rows or rows.start >= rows.stop:
                continue
            for name, digest in digests.items():
                if name == ORIGINAL:
                    digest.update(key_view(self.column(number, "key"))[rows].tobytes())
                else:
                    digest.update(spelled_values(self.column(number, name)[rows].to_pylist()))
        return json_digest({name: digest.hexdigest() for name, digest in digests.items()})

    def view_names(self) -> list[str]:
        """Return the names of the views, sorted, without reading them."""
        folder = inside(self.folder, VIEWS)
        return [name for name in list_folder(folder) if is_view_name(name) and is_recorded(folder / name)]

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
                f"corpus {self.name!r} has no view {name!r} (views: {', '.join(names) or 'none'}). Build the "
                "corpus again with it"
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
        if name not in self.info.columns:
            raise InputError(f"corpus {self.name!r} has no {name}s: build it with --{name}-column")
        if rows is None:
            return [value for part in range(len(self.parts)) for value in self.column(part, name).to_pylist()]
        values: list[Any] = [None] * len(rows)
        # Part by part: taking from all parts at once would first copy the whole column into one piece.
        for places, number, inside_part in self._located(rows):
            found = self.column(number, name).take(inside_part)
            for place, value in zip(places.tolist(), found.to_pylist(), strict=True):
                values[place] = value
        return values

    def _located(
        self, rows: NDArray[np.integer]
    ) -> Iterator[tuple[NDArray[np.int64], int, NDArray[np.int64]]]:
        """Yield for each part with any of ``rows``: places among them, number of the part, rows inside it."""
        wanted = np.asarray(rows, dtype=np.int64)
        if len(wanted) and (wanted.min() < 0 or wanted.max() >= len(self)):
            raise IndexError(f"rows {wanted.min()} to {wanted.max()} asked for, of {len(self)}")
        numbers = np.searchsorted(self._starts, wanted, side="right") - 1
        order = np.argsort(numbers, kind="stable")
        found, edges = np.unique(numbers[order], return_index=True)
        # Of no rows at all, splitting gives one empty piece.
        for number, places in zip(found.tolist(), np.split(order, edges[1:]), strict=False):
            yield places, number, wanted[places] - self._starts[number]

    def __repr__(self) -> str:
        """Return the name and the number of rows."""
        return f"<{self.title}: {len(self):,} rows>"


class View(Corpus):
    """View of a corpus: a text for every row of it, in its order, read as a corpus is.

    Args:
        of: the corpus.
        name: the view's name.

    Raises:
        InputError: if it was made of another state of the corpus.
        CorruptCacheError: if its description or its recipe is damaged.
        CacheFormatError: if a newer version of embedcache wrote it.
    """

    def __init__(self, of: Corpus, name: str) -> None:
        folder = inside(of.folder, VIEWS, name)
        self.of = of
        self.record: ViewRecord = read_record(folder)
        if self.record.of != of.info.digest:
            raise InputError(
                f"view {name!r} was made of other rows than corpus {of.name!r} has now (digest "
                f"{self.record.of[:12]}, not {of.info.digest[:12]}): build the corpus again with its view"
            )
        super().__init__(folder)
        if self.info.digest != self.record.digest or len(self) != len(of):
            raise damaged(
                folder / DESCRIPTION, ValueError("it has other rows than its recipe was written for")
            )

    @property
    def title(self) -> str:
        """Name in messages."""
        return f"view {self.name!r} of {self.of.title}"

    @property
    def recipe(self) -> Recipe:
        """Recipe of the texts."""
        return self.record.recipe


def find_texts(keys: KeyArray, corpora: Iterable[Corpus]) -> list[str | None]:
    """Return the text of each key, None where no corpus has it.

    Args:
        keys: dtype ``V16``, shape (n,).
        corpora: corpora and views to search.

    Raises:
        CorruptCacheError: if a corpus is damaged.
    """
    index = KeyIndex(keys)
    found: dict[int, str] = {}
    for corpus in corpora:
        start = 0
        for part in corpus.iter_keys():
            places = index.locate(part)
            rows = np.flatnonzero(places >= 0)
            for place, text in zip(places[rows].tolist(), corpus.texts(start + rows), strict=True):
                found.setdefault(place, text)
            start += len(part)
    # A key that comes twice is found at its first place.
    return [found.get(place) for place in index.locate(keys).tolist()]


def find_rows(keys: KeyArray, corpora: Iterable[Corpus]) -> NDArray[np.int64]:
    """Return the first row that holds each key, counted through all corpora; -1 where none does.

    Arguments and errors are those of ``find_texts``.
    """
    index, rows, start = KeyIndex(keys), np.full(len(keys), -1), 0
    for part in (part for corpus in corpora for part in corpus.iter_keys()):
        places = index.locate(part)
        # Of a text in several rows the first is taken: written last.
        fresh = np.flatnonzero(places >= 0)[::-1]
        fresh = fresh[rows[places[fresh]] < 0]
        rows[places[fresh]] = start + fresh
        start += len(part)
    # A key that comes twice was found at its first place.
    return rows[index.locate(keys)]
