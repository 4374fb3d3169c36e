"""Derived index of a store: its keys, sorted, in files that are mapped and never change.

An index file covers a set of shards; a store uses those that fit its shards, and adds one for shards that
none covers. Small files are merged as they are added, so there are few. The shards remain the truth: the key
of every row found is compared with the shard's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from embedcache.codecs import CODEC_NAMES
from embedcache.errors import StorageError
from embedcache.fsio import commit, open_regular, sha256_file, temporary_sibling
from embedcache.keys import KEY_DTYPE, KeyArray, halves, search_sorted
from embedcache.store.base import Positions
from embedcache.store.checked import CheckedFiles

ShardRow = tuple[str, str, int]
"""Name, codec and rows of a shard."""

TABLE_DTYPE = np.dtype([("name", "S64"), ("codec", "S8"), ("rows", "<i8")])
_ROWS_A_BLOCK = 1 << 20
_MOST_PASSES = 64
# Index files of this process; it deletes no others.
_written_here: set[Path] = set()


def reading_rank(codec: str, name: str) -> tuple[int, str]:
    """Return the sort key of shards: a key is read in the finest codec, and there in the first name."""
    return CODEC_NAMES.index(codec), name


class SortedKeys:
    """Keys in ascending order with the place of each; a key may stand in several places.

    Args:
        words: uint64, shape (3, n): the two halves of each key, and its place, sorted by all three.
    """

    def __init__(self, words: NDArray[np.uint64]) -> None:
        self._words = words

    @classmethod
    def of(cls, parts: Sequence[KeyArray]) -> SortedKeys:
        """Sort keys into an unnamed temporary file, which takes no memory; places count through ``parts``.

        Raises:
            OSError: if it cannot be written.
        """
        with TemporaryFile(prefix="embedcache-keys-") as handle:
            return cls(_write_words(handle, parts))

    def __len__(self) -> int:
        return int(self._words.shape[1])

    def locate(self, keys: KeyArray) -> Positions:
        """Return the first place of each key, -1 where it is missing."""
        first, second = halves(keys)
        # Sorted, keys that are near each other are looked for one after the other.
        order = np.argsort(first, kind="stable")
        found = np.empty(len(keys), np.int64)
        places = self._words[2].view(np.int64)
        found[order] = search_sorted(self._words[0], self._words[1], places, first[order], second[order])
        return found

    def in_order(self) -> KeyArray:
        """Return the keys in the order of their places."""
        pairs = np.zeros((len(self), 2), np.uint64)
        pairs[self._words[2]] = self._words[:2].T
        return pairs.reshape(-1).view(KEY_DTYPE)

    def distinct(self) -> Iterator[KeyArray]:
        """Yield the distinct keys in ascending order, in blocks."""
        last = None
        for start in range(0, len(self), _ROWS_A_BLOCK):
            pairs = np.ascontiguousarray(self._words[:2, start : start + _ROWS_A_BLOCK].T)
            fresh = np.ones(len(pairs), np.bool_)
            fresh[1:] = (pairs[1:] != pairs[:-1]).any(axis=1)
            fresh[0] = last is None or bool((pairs[0] != last).any())
            last = pairs[-1]
            yield pairs[fresh].reshape(-1).view(KEY_DTYPE)


def sorted_blocks(parts: Sequence[KeyArray]) -> Iterator[NDArray[np.uint64]]:
    """Yield the words of :class:`SortedKeys` block by block, in order; each is of shape (3, m).

    Keys are spread over blocks by their leading bits, so memory is a million rows, or a 64th of all.
    """
    starts = np.cumsum([0, *map(len, parts)])
    bits = min(int(starts[-1]) // _ROWS_A_BLOCK, _MOST_PASSES - 1).bit_length()
    for block in range(1 << bits):
        pieces = []
        for part, start in zip(parts, starts.tolist(), strict=False):
            first, second = halves(part)
            rows = np.arange(len(part))
            if bits:
                rows = np.flatnonzero(first >> np.uint64(64 - bits) == block)
            pieces.append(np.stack([first[rows], second[rows], (rows + start).astype(np.uint64)]))
        words = np.concatenate([np.empty((3, 0), np.uint64), *pieces], axis=1)
        # Stable: of equal keys the first place comes first.
        yield words[:, np.lexsort((words[1], words[0]))]


def _write_words(handle: BinaryIO, parts: Sequence[KeyArray]) -> NDArray[np.uint64]:
    """Append an array of sorted words to a file and return it, mapped."""
    shape = (3, sum(map(len, parts)))
    npy.write_array_header_1_0(handle, {"descr": "<u8", "fortran_order": False, "shape": shape})
    begin, done = handle.tell(), 0
    for block in sorted_blocks(parts):
        for row in range(3):
            handle.seek(begin + 8 * (row * shape[1] + done))
            handle.write(block[row].tobytes())
        done += block.shape[1]
    handle.flush()
    return _map_words(handle, begin, shape)


def _map_words(handle: BinaryIO, begin: int, shape: tuple[int, ...]) -> NDArray[np.uint64]:
    if 0 in shape:
        return np.empty((3, 0), np.uint64)
    return np.asarray(np.memmap(handle, np.dtype("<u8"), "r", begin, shape))


@dataclass(frozen=True, eq=False)
class IndexedShards:
    """An index over a set of shards.

    Attributes:
        shards: name, codec and rows of each, in the order of places.
        keys: their keys, sorted.
        path: its file; None if it has none.
    """

    shards: list[ShardRow]
    keys: SortedKeys
    path: Path | None = None

    def parts(self) -> list[KeyArray]:
        """Return the keys of each shard, in its order; this takes 16 bytes a row.

        Raises:
            IndexError: if a place is none of the shards'.
        """
        return np.split(self.keys.in_order(), np.cumsum([rows for _, _, rows in self.shards])[:-1])


def read_index(path: Path) -> IndexedShards | None:
    """Return an index file, mapped; None if it is none. Its digest, which is its name, is not compared."""
    try:
        with open_regular(path) as handle:
            table = npy.read_array(handle, allow_pickle=False)
            npy.read_magic(handle)
            shape, _, _ = npy.read_array_header_1_0(handle)
            keys = SortedKeys(_map_words(handle, handle.tell(), shape))
    except (OSError, TypeError, ValueError, EOFError):
        return None
    if table.dtype != TABLE_DTYPE or table["rows"].sum() != len(keys):
        return None
    decode = partial(bytes.decode, encoding="ascii", errors="replace")
    shards = [(decode(name), decode(codec), rows) for name, codec, rows in table.tolist()]
    return IndexedShards(shards, keys, path)


class IndexFolder:
    """Index files of a store, ``<sha256>.npy``: a table of shards and an array of words after each other.

    Args:
        folder: ``derived/index/<contract id>``.
        checked: notes the files written on this machine. No others are used.
    """

    def __init__(self, folder: Path, checked: CheckedFiles) -> None:
        self.folder = folder
        self._checked = checked

    def fitting(self, names: Iterable[str]) -> list[IndexedShards]:
        """Return indexes over disjoint subsets of the shards ``names``, the largest first."""
        left, found = set(names), []
        opened = [index for path in self.folder.glob("[!.]*.npy") if (index := self._open(path)) is not None]
        for index in sorted(opened, key=lambda index: (-len(index.keys), index.path)):
            covered = {name for name, _, _ in index.shards}
            if covered <= left:
                left -= covered
                found.append(index)
        return found

    def _open(self, path: Path) -> IndexedShards | None:
        with suppress(OSError):
            return read_index(path) if self._checked.knows(path) else None
        return None

    def write(
        self, shards: list[ShardRow], parts: Sequence[KeyArray], merged: Iterable[IndexedShards]
    ) -> IndexedShards:
        """Write an index over shards with the keys ``parts``; delete this process's own that it has merged.

        Indexes of other processes are left to ``gc``: on a network file system, deleting a file that another
        machine has mapped ends the process there.

        Raises:
            StorageError: if it cannot be written.
        """
        table = np.array([(name.encode(), codec.encode(), rows) for name, codec, rows in shards], TABLE_DTYPE)
        with temporary_sibling(self.folder / "index.npy") as temporary:
            with temporary.open("w+b") as handle:
                npy.write_array(handle, table, allow_pickle=False)
                words = _write_words(handle, parts)
            path = self.folder / f"{sha256_file(temporary)}.npy"
            commit(temporary, path)
        self._checked.add(path)
        self._checked.save()
        _written_here.add(path)
        for index in merged:
            if index.path in _written_here and index.path != path:
                index.path.unlink(missing_ok=True)
                _written_here.discard(index.path)
        return IndexedShards(shards, SortedKeys(words), path)


class StoreIndex:
    """Indexes that together cover the shards of a store.

    Args:
        folder: keeps their files; None: in temporary files.
    """

    def __init__(self, folder: IndexFolder | None) -> None:
        self.folder = folder
        self._indexes: list[IndexedShards] = []
        self._numbers: dict[str, int] = {}
        self._ranks = np.empty(0, np.int64)

    @property
    def files(self) -> list[Path]:
        """The files in use."""
        return [index.path for index in self._indexes if index.path is not None]

    def open(self, names: Sequence[str]) -> dict[str, ShardRow]:
        """Use the files that fit the shards ``names``; return what they say of those they cover."""
        self._indexes = self.folder.fitting(names) if self.folder else []
        return {shard[0]: shard for index in self._indexes for shard in index.shards}

    def discard(self) -> None:
        """Drop all indexes and delete their files: one has given a wrong answer."""
        for path in self.files:
            with suppress(OSError):
                path.unlink(missing_ok=True)
        self._indexes, self._numbers = [], {}

    def cover(
        self, shards: Sequence[ShardRow], keys_of: Callable[[Sequence[int]], Sequence[KeyArray]]
    ) -> None:
        """Index the shards that are not covered yet, together with indexes that are hardly larger.

        Args:
            shards: all shards of the store, in the order that positions count in.
            keys_of: gives the keys of shards by number.
        """
        if len(self._numbers) == len(shards):
            return
        self._numbers = {name: number for number, (name, _, _) in enumerate(shards)}
        ranked = [reading_rank(codec, name) for name, codec, _ in shards]
        order = sorted(range(len(shards)), key=ranked.__getitem__)
        self._ranks = np.argsort(np.array(order, np.int64))
        left = self._numbers.keys() - {name for index in self._indexes for name, _, _ in index.shards}
        if not left:
            return
        rows, merged = sum(shards[self._numbers[name]][2] for name in left), list[IndexedShards]()
        while self._indexes and len(self._indexes[-1].keys) <= 2 * rows:
            merged.append(self._indexes.pop())
            left.update(name for name, _, _ in merged[-1].shards)
            rows += len(merged[-1].keys)
        numbers = [number for number in order if shards[number][0] in left]
        chosen, parts = [shards[number] for number in numbers], keys_of(numbers)
        self._indexes.append(
            self._write(chosen, parts, merged) or IndexedShards(chosen, SortedKeys.of(parts))
        )

    def _write(
        self, shards: list[ShardRow], parts: Sequence[KeyArray], merged: Sequence[IndexedShards]
    ) -> IndexedShards | None:
        with suppress(StorageError):  # in a read-only cache, or on a full disk
            return self.folder.write(shards, parts, merged) if self.folder else None
        return None

    def locate(self, keys: KeyArray, starts: Positions) -> Positions:
        """Return the position of each key, -1 where it is missing; of several the first in reading order.

        Args:
            keys: dtype ``V16``, shape (n,).
            starts: first position of each shard of the store.
        """
        best, ranks = np.full((2, len(keys)), -1, np.int64)
        for index in self._indexes:
            places, rows = index.keys.locate(keys), np.array([rows for _, _, rows in index.shards])
            ends = np.cumsum(rows)
            hits = np.flatnonzero((places >= 0) & (places < ends[-1]))
            at = np.searchsorted(ends, places[hits], side="right")
            numbers = np.array([self._numbers[name] for name, _, _ in index.shards])[at]
            better = (ranks[hits] < 0) | (self._ranks[numbers] < ranks[hits])
            best[hits[better]] = (places[hits] - (ends - rows)[at] + starts[numbers])[better]
            ranks[hits[better]] = self._ranks[numbers][better]
        return best

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
