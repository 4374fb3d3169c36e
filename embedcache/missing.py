"""Rows of a corpus that a store lacks, one byte per row, and their division into parts and shards."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from embedcache.corpus.corpus import Corpus, View
from embedcache.errors import InputError
from embedcache.keys import KEY_BYTES, KeyArray, KeyIndex, first_occurrences, take_keys
from embedcache.store.base import Positions

_COVERAGE_ROWS = 65536


class Locator(Protocol):
    """A store, or the index of one."""

    def locate(self, keys: KeyArray) -> Positions:
        """Return the position of each key, -1 where it is missing."""


@dataclass(frozen=True)
class KeyPart:
    """One of several parts that all keys fall into, about as many into each.

    Attributes:
        number: number of the part, from 1.
        of: number of parts.
    """

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> KeyPart:
        """Read ``I/N``; raise ``InputError`` unless I is from 1 to N."""
        match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise InputError(f"part {text!r}: expected I/N with I from 1 to N, such as 1/3")
        return cls(int(match[1]), int(match[2]))

    def holds(self, keys: KeyArray) -> NDArray[np.bool_]:
        """Return the mask of keys in the part, bool of shape (n,); it depends on nothing but the keys."""
        first = np.ascontiguousarray(keys).view("<u8").reshape(-1, KEY_BYTES // 8)[:, 0]
        is_inside: NDArray[np.bool_] = first % np.uint64(self.of) == self.number - 1
        return is_inside

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


@dataclass
class MissingRows:
    """Rows of a corpus that bring a text whose vector a store lacks.

    Attributes:
        distinct: distinct texts of the corpus.
        wanted: those of them that are asked for: all, or those of a part.
        mask: bool, shape (rows,); the first row of each text without a vector.
    """

    distinct: int
    wanted: int
    mask: NDArray[np.bool_]
    _parts: list[KeyArray]

    @classmethod
    def of(cls, corpus: Corpus, store: Locator, part: KeyPart | None = None) -> MissingRows:
        """Look up every distinct text of ``corpus``, or of a part of it, in ``store``."""
        parts = list(corpus.iter_keys())
        mask = first_occurrences(parts)
        distinct, start = int(mask.sum()), 0
        if part is not None:
            for keys in parts:
                mask[start : start + len(keys)] &= part.holds(keys)
                start += len(keys)
        found = cls(distinct, int(mask.sum()), mask, parts)
        found.refresh(store)
        return found

    def __len__(self) -> int:
        """Return the number of missing rows."""
        return int(self.mask.sum())

    def refresh(self, store: Locator) -> None:
        """Drop the rows whose vectors ``store`` has by now."""
        start = 0
        for part in self._parts:
            mask = self.mask[start : start + len(part)]
            rows = np.flatnonzero(mask)
            mask[rows[store.locate(part[rows]) >= 0]] = False
            start += len(part)

    def holds(self, keys: KeyArray) -> NDArray[np.bool_]:
        """Return the mask of ``keys`` that missing rows have, shape (n,)."""
        index, found, start = KeyIndex(keys), np.zeros(len(keys), np.bool_), 0
        for part in self._parts:
            places = index.locate(part[self.mask[start : start + len(part)]])
            found[places[places >= 0]] = True
            start += len(part)
        return found[index.locate(keys)]

    def keys(self, rows: NDArray[np.int64] | None = None) -> KeyArray:
        """Return the keys of ascending corpus ``rows``; default: of all missing ones, 16 bytes each."""
        starts = np.cumsum([0, *map(len, self._parts)])
        return take_keys(self._parts, starts, np.flatnonzero(self.mask) if rows is None else rows)

    def windows(self, rows_each: int, *, spread_first: bool = False) -> Iterator[NDArray[np.int64]]:
        """Yield the missing rows in corpus order, ``rows_each`` at a time: the rows of one shard each.

        Args:
            rows_each: rows of a shard.
            spread_first: begin with a shard of rows spread evenly over all that are missing.
        """
        rows = np.flatnonzero(self.mask)
        if spread_first and len(rows) > rows_each:
            places = np.arange(rows_each) * len(rows) // rows_each
            yield rows[places]
            rows = np.delete(rows, places)
        for start in range(0, len(rows), rows_each):
            yield rows[start : start + rows_each]


def is_embedded(view: View, store: Locator) -> bool:
    """Return whether the teacher encoded a view: most of the texts that only the view has have a vector.

    Raises:
        CorruptCacheError: if a part of the view or of its corpus is missing or damaged.
    """
    own = embedded = 0
    for start in range(0, len(view), _COVERAGE_ROWS):
        rows = np.arange(start, min(start + _COVERAGE_ROWS, len(view)))
        keys = view.keys_of(rows)
        changed = keys[keys != view.of.keys_of(rows)]
        own += len(changed)
        embedded += int(np.count_nonzero(store.locate(changed) >= 0))
    return 2 * embedded > own
