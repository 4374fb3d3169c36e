"""Derived index of a store: its keys, sorted, in files that are mapped and never change.

An index file covers a set of shards; a store uses those that fit its shards, and adds one for shards that
none covers. Small files are merged as they are added, so there are few. The shards remain the truth: the key
of every row found through a file is compared with the shard's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from embedcache.codecs import CODEC_NAMES
from embedcache.errors import StorageError
from embedcache.fsio import commit, open_regular, sha256_file, temporary_sibling
from embedcache.keys import BLOCK_KEYS, KeyArray, SortedKeys, halves, sorted_words
from embedcache.store.base import Positions
from embedcache.store.checked import CheckedFiles

ShardRow = tuple[str, str, int]
"""Name, codec and rows of a shard."""

_TABLE_DTYPE = np.dtype([("name", "S64"), ("codec", "S8"), ("rows", "<i8")])
_MOST_PASSES = 64
# Index files of this process; it deletes no others.
_written_here: set[Path] = set()


def reading_rank(shard: ShardRow) -> tuple[int, str]:
    """Return the sort key of shards: a key is read in the finest codec, and there in the first name."""
    name, codec, _ = shard
    return CODEC_NAMES.index(codec), name


@dataclass(frozen=True, eq=False)
class IndexedShards:
    """An index over a set of shards.

    Attributes:
        shards: name, codec and rows of each, in the order of places.
        keys: their keys, sorted.
        path: its file; None for an unnamed temporary file.
    """

    shards: list[ShardRow]
    keys: SortedKeys
    path: Path | None = None

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        """Place after the last row of each shard; shape (shards,)."""
        return np.cumsum([rows for _, _, rows in self.shards], dtype=np.int64)

    def parts(self) -> list[KeyArray]:
        """Return the keys of each shard, in its order; this takes 16 bytes a row.

        Raises:
            IndexError: if a place is none of the shards'.
        """
        return np.split(self.keys.in_order(), self.ends[:-1])


Parts = Callable[[], Iterable[KeyArray]]
"""Yields the keys of each shard, dtype ``V16``; each call yields the same arrays."""


def sort_keys(parts: Parts, rows: int) -> SortedKeys:
    """Sort keys into an unnamed temporary file, which takes no memory.

    Args:
        parts: gives the keys; places count through them.
        rows: number of keys.

    Raises:
        OSError: if it cannot be written.
    """
    with TemporaryFile(prefix="embedcache-keys-") as handle:
        return _write_words(handle, parts, rows)


def _write_words(handle: BinaryIO, parts: Parts, count: int) -> SortedKeys:
    """Append an array of sorted words to a file and return it, mapped.

    Keys are sorted in blocks by their leading bits, so memory is a million rows, or a 64th of all. One part
    is open at a time.
    """
    shape = (3, count)
    npy.write_array_header_1_0(handle, {"descr": "<u8", "fortran_order": False, "shape": shape})
    begin, done = handle.tell(), 0
    bits = min(count // BLOCK_KEYS, _MOST_PASSES - 1).bit_length()
    for block in range(1 << bits):
        pieces, start = [], 0
        for part in parts():
            first, second = halves(part)
            rows = np.flatnonzero(first >> np.uint64(64 - bits) == block) if bits else np.arange(len(part))
            pieces.append(np.stack([first[rows], second[rows], (rows + start).astype(np.uint64)]))
            start += len(part)
        first, second, places = np.concatenate([np.empty((3, 0), np.uint64), *pieces], axis=1)
        for row, words in enumerate(sorted_words(first, second, places)):
            handle.seek(begin + 8 * (row * shape[1] + done))
            handle.write(words.tobytes())
        done += len(places)
    handle.flush()
    return _map_words(handle, begin, shape)


def _map_words(handle: BinaryIO, begin: int, shape: tuple[int, ...]) -> SortedKeys:
    if 0 in shape:  # an empty array cannot be mapped
        return SortedKeys(np.empty((3, 0), np.uint64))
    return SortedKeys(np.asarray(np.memmap(handle, np.dtype("<u8"), "r", begin, shape)))


def read_index(path: Path) -> IndexedShards | None:
    """Map an index file; return None if the file is not an index. Its digest is not checked."""
    try:
        with open_regular(path) as handle:
            table = npy.read_array(handle, allow_pickle=False)
            npy.read_magic(handle)
            shape, _, _ = npy.read_array_header_1_0(handle)
            keys = _map_words(handle, handle.tell(), shape)
        if table.dtype != _TABLE_DTYPE or table["rows"].sum() != len(keys):
            return None
        shards = [(name.decode(), codec.decode(), rows) for name, codec, rows in table.tolist()]
    except (OSError, TypeError, ValueError, EOFError):
        return None
    is_sound = all(codec in CODEC_NAMES and rows > 0 for _, codec, rows in shards)
    return IndexedShards(shards, keys, path) if is_sound else None


def _rows(shards: Iterable[ShardRow]) -> int:
    return sum(rows for _, _, rows in shards)


class StoreIndex:
    """Indexes that together cover the shards of a store.

    Args:
        folder: ``derived/index/<contract id>``, keeps their files; default: unnamed temporary files.
        checked: notes the files written on this machine. No others are used.
    """

    def __init__(self, folder: Path | None = None, checked: CheckedFiles | None = None) -> None:
        self.folder = folder
        self._checked = checked or CheckedFiles()
        self._indexes: list[IndexedShards] = []
        self._shifts: dict[IndexedShards, NDArray[np.int64]] = {}

    @classmethod
    def of(cls, shards: Sequence[ShardRow], parts: Parts) -> StoreIndex:
        """Return an index over shards whose keys are known, so that none needs to be opened for it.

        Args:
            shards: name, codec and rows of each, by ``reading_rank``.
            parts: gives the keys of each, in the same order.
        """
        index = cls()
        index._indexes = [IndexedShards(list(shards), sort_keys(parts, _rows(shards)))]
        return index

    @property
    def files(self) -> list[Path]:
        """The files in use."""
        return [index.path for index in self._indexes if index.path is not None]

    def open(self, names: Sequence[str]) -> dict[str, ShardRow]:
        """Use indexes of disjoint subsets of the shards ``names``; return the shards covered, by name."""
        paths = self.folder.glob("[!.]*.npy") if self.folder else ()
        found = [*self._indexes, *(read_index(path) for path in paths if self._checked.knows(path))]
        left, known, self._indexes = set(names), dict[str, ShardRow](), []
        for index in sorted(filter(None, found), key=lambda index: (-len(index.keys), str(index.path))):
            covered = {shard[0]: shard for shard in index.shards}
            if covered.keys() <= left:
                left -= covered.keys()
                known |= covered
                self._indexes.append(index)
        return known

    def discard(self) -> None:
        """Drop all indexes and delete their files: one has given a wrong answer."""
        for path in self.files:
            with suppress(OSError):
                path.unlink(missing_ok=True)
        self._indexes = []

    def cover(
        self, shards: Mapping[str, ShardRow], keys_of: Callable[[Sequence[str]], Iterable[KeyArray]]
    ) -> None:
        """Index the shards that are not covered yet, together with indexes that are hardly larger.

        Args:
            shards: all shards of the store, by name.
            keys_of: gives the keys of shards by name.
        """
        if sum(len(index.shards) for index in self._indexes) == len(shards):
            return
        left = shards.keys() - {name for index in self._indexes for name, _, _ in index.shards}
        rows, merged = sum(shards[name][2] for name in left), list[IndexedShards]()
        while self._indexes and len(self._indexes[-1].keys) <= 2 * rows:
            merged.append(self._indexes.pop())
            left |= {name for name, _, _ in merged[-1].shards}
            rows += len(merged[-1].keys)
        chosen = sorted((shards[name] for name in left), key=reading_rank)
        names = [name for name, _, _ in chosen]
        self._indexes.append(self._write(chosen, lambda: keys_of(names)))
        self._shifts = {}
        for index in merged:
            # Others are left to gc: on a network file system, deleting a file that another machine has mapped
            # ends the process there.
            if index.path in _written_here and index.path not in self.files:
                index.path.unlink(missing_ok=True)
                _written_here.discard(index.path)

    def _write(self, shards: list[ShardRow], parts: Parts) -> IndexedShards:
        """Return an index over shards with the keys ``parts``, in a file if there can be one."""
        rows = _rows(shards)
        if self.folder is None:
            return IndexedShards(shards, sort_keys(parts, rows))
        table = np.array(
            [(name.encode(), codec.encode(), rows) for name, codec, rows in shards], _TABLE_DTYPE
        )
        try:
            with temporary_sibling(self.folder / "index.npy") as temporary:
                with temporary.open("w+b") as handle:
                    npy.write_array(handle, table, allow_pickle=False)
                    keys = _write_words(handle, parts, rows)
                path = self.folder / f"{sha256_file(temporary)}.npy"
                commit(temporary, path)
        except StorageError:  # in a read-only cache, or on a full disk
            return IndexedShards(shards, sort_keys(parts, rows))
        self._checked.add(path)
        self._checked.save()
        _written_here.add(path)
        return IndexedShards(shards, keys, path)

    def locate(self, keys: KeyArray, starts: Mapping[str, int]) -> Positions:
        """Return the first position of each key, -1 where it is missing.

        Args:
            keys: dtype ``V16``, shape (n,).
            starts: first position of each shard of the store, by name; it never changes.
        """
        found = np.full(len(keys), -1, np.int64)
        for index in self._indexes:
            places = index.keys.locate(keys)
            hits = np.flatnonzero((places >= 0) & (places < len(index.keys)))
            if index not in self._shifts:
                first_places = np.append(0, index.ends[:-1])
                self._shifts[index] = np.array([starts[name] for name, _, _ in index.shards]) - first_places
            at = np.searchsorted(index.ends, places[hits], side="right")
            positions = places[hits] + self._shifts[index][at]
            is_first = (found[hits] < 0) | (positions < found[hits])
            found[hits[is_first]] = positions[is_first]
        return found

    def count_distinct(self) -> int:
        """Return the number of distinct keys."""
        count = 0
        for number, index in enumerate(self._indexes):
            for keys in index.keys.distinct():
                fresh = np.ones(len(keys), np.bool_)
                for earlier in self._indexes[:number]:
                    fresh &= earlier.keys.locate(keys) < 0
                count += int(fresh.sum())
        return count
