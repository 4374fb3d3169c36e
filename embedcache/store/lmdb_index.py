"""The derived index of a store: key -> position, in one immutable LMDB file that is made anew when none fits.

Keys are spread over buckets by their leading bits; a bucket is one value: its keys, sorted, and their
positions, found by binary search in the mapped file. So it takes no memory, and 24 bytes of disk a row.
A file is named by the set of shards it was made of and by its own digest. Another set of shards, a damaged
file or none at all: the index is made from the shards again. One that somebody else made is compared with the
shards, which takes a fraction of the time.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from embedcache.errors import CorruptCacheError, StorageError
from embedcache.fsio import commit, sha256_file, temporary_sibling
from embedcache.key_index import KeyIndex, halves, search_sorted, take_keys
from embedcache.keys import KEY_DTYPE, KeyArray
from embedcache.store.base import Positions
from embedcache.store.digests import FileNotes
from embedcache.store.mapped_lmdb import MappedLmdb, check_structure, explained, open_shared

if TYPE_CHECKING:
    import pyarrow as pa

_HEADER = b"header"
_HEADER_BYTES = 24
_BYTES_A_ROW = 24
_ROWS_A_BUCKET = 16384
_ROWS_A_PASS = 1 << 20
_ATTEMPTS = 3

# Stands before the names of shards whose order is not that of their names: with several codecs it once was,
# and such an index gives other rows.
_FINER_FIRST = "finer codecs first"

# Indexes that this process has written; it deletes no others, which other machines may have mapped.
_written_here: set[Path] = set()

_Bucket = tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int64]]


class StoreIndex:
    """Finds keys among those of given shards.

    Args:
        mapped: the open index file.
        rows: rows of all shards together; None where that is not known.

    Raises:
        CorruptCacheError: if the file is no index, or not of so many rows.
    """

    def __init__(self, mapped: MappedLmdb, rows: int | None) -> None:
        self._mapped = mapped
        header = mapped.get(_HEADER)
        words = struct.unpack("=3q", header) if header is not None and header.size == _HEADER_BYTES else None
        if words is None or rows not in (None, words[0]) or words[1] != _bits_for(words[0]):
            raise CorruptCacheError(f"{mapped.path} is no index of {'any' if rows is None else rows} rows")
        if not 0 <= words[2] <= words[0]:
            raise CorruptCacheError(f"{mapped.path} tells of {words[2]} distinct keys in {words[0]} rows")
        self.rows: int = words[0]
        """Rows of all shards together."""
        self._bits = words[1]
        self.distinct: int = words[2]
        """Number of distinct keys."""

    @property
    def path(self) -> Path:
        """The index's file."""
        return self._mapped.path

    def entries(self) -> Iterator[tuple[KeyArray, Positions]]:
        """Yield all distinct keys with their positions, a bucket at a time."""
        for _, (first, second, places) in self._filled_buckets():
            yield np.stack([first, second], axis=1).reshape(-1).view(KEY_DTYPE), places

    def _filled_buckets(self) -> Iterator[tuple[int, _Bucket]]:
        for bucket in range(1 << self._bits):
            data = self._mapped.get(_bucket_key(bucket))
            if data is not None:
                yield bucket, _unpack(data)

    def fits(self, keys: Sequence[KeyArray]) -> bool:
        """Whether all its answers are right: every key of the shards at its first place, and no other key.

        Memory is a pass of about a million rows, and a byte a row where keys stand several times.

        Args:
            keys: the keys of the shards, in the order that positions count in.

        Raises:
            CorruptCacheError: if a bucket is none.
        """
        starts = np.cumsum([0, *map(len, keys)], dtype=np.int64)
        repeated = np.ones(self.rows if self.distinct < self.rows else 0, dtype=np.bool_)
        entries = 0
        for first, second, places in self._sorted_passes():
            order = np.argsort(places)
            places = places[order]
            if not len(places) or places[0] < 0 or places[-1] >= self.rows:
                return False
            stored = halves(take_keys(keys, starts, places))
            if not (np.array_equal(stored[0], first[order]) and np.array_equal(stored[1], second[order])):
                return False
            if len(repeated):
                repeated[places] = False
            entries += len(places)
        if entries != self.distinct:
            return False
        # Keys that are not repeated have one row each. Of the others every row but the first is left.
        for part, start in zip(keys, starts.tolist(), strict=False):
            rows = np.flatnonzero(repeated[start : start + len(part)])
            found = self.locate(part[rows])
            if ((found < 0) | (found >= rows + start)).any():
                return False
        return True

    def _sorted_passes(self) -> Iterator[_Bucket]:
        """Yield buckets together, about a million rows at a time.

        Raises:
            CorruptCacheError: if the keys of a bucket do not ascend, or belong into another one.
        """
        together: list[_Bucket] = []
        for bucket, (first, second, places) in self._filled_buckets():
            ascends = (first[1:] > first[:-1]) | ((first[1:] == first[:-1]) & (second[1:] > second[:-1]))
            if not ascends.all() or (_buckets(first, self._bits) != bucket).any():
                raise CorruptCacheError(f"bucket {bucket} of {self.path} holds keys in no order, or others'")
            together.append((first, second, places))
            if sum(len(rows) for _, _, rows in together) >= _ROWS_A_PASS:
                yield _concatenated(together)
                together = []
        if together:
            yield _concatenated(together)

    def locate(self, keys: KeyArray) -> Positions:
        """Return the position of each key, -1 where it is missing."""
        found = np.full(len(keys), -1, dtype=np.int64)
        first, second = halves(keys)
        # Sorted, the keys of one bucket come together, and near each other in it.
        order = np.argsort(first, kind="stable")
        first, second = first[order], second[order]
        for bucket, start, end in _runs(_buckets(first, self._bits)):
            data = self._mapped.get(_bucket_key(bucket))
            if data is not None:
                arrays = _unpack(data)
                found[order[start:end]] = search_sorted(*arrays, first[start:end], second[start:end])
        return found


@dataclass(frozen=True)
class ReadingIndex:
    """An index over the shards in the order in which they are read, for a store that holds them in another.

    Attributes:
        finder: gives positions in the order of reading.
        starts: int64, shape (shards,); the first position of each shard, in the order of reading.
        shift: int64, shape (shards,); how far from there its rows are in the store.
    """

    finder: StoreIndex | KeyIndex
    starts: NDArray[np.int64]
    shift: NDArray[np.int64]

    @classmethod
    def of(
        cls, finder: StoreIndex | KeyIndex, order: Sequence[int], edges: NDArray[np.int64]
    ) -> ReadingIndex:
        """Return the index of a store.

        Args:
            finder: the index over its shards in the order of reading.
            order: their numbers in the store, in the order of reading.
            edges: int64, shape (shards + 1,); the first position of each in the store, and the end.
        """
        numbers = np.array(order, dtype=np.int64)
        starts = np.cumsum(np.append(0, np.diff(edges)[numbers]))[:-1]
        return cls(finder, starts, edges[numbers] - starts)

    def locate(self, keys: KeyArray) -> Positions:
        """Return the position of each key in the store, -1 where it is missing."""
        positions = self.finder.locate(keys)
        if not self.shift.any():
            return positions
        shift = self.shift[np.searchsorted(self.starts, positions, side="right") - 1]
        return np.where(positions < 0, -1, positions + shift)


def open_index(folder: Path, names: Sequence[str], keys: Sequence[KeyArray], notes: FileNotes) -> StoreIndex:
    """Open the index over shards, making it where none is there that gives the right answers.

    One that was made here is known to. One that came along with somebody else's cache may be whole and still
    lie: it is compared with the shards, and deleted where it lies.

    Args:
        folder: ``derived/index/<contract id>``.
        names: the shards' names, in the order that positions count in; of a key in several the first counts.
        keys: their keys.
        notes: remembers the index files that were made or compared here.

    Raises:
        StorageError: if it has to be made and cannot be written.
    """
    rows = sum(map(len, keys))
    shards = made_of(names)
    for path in sorted(folder.glob(f"{shards}-*.mdb")):
        # Unreadable, or gone meanwhile: as good as none.
        with suppress(OSError):
            try:
                return _open_right(path, rows, keys, notes)
            except CorruptCacheError:
                path.unlink(missing_ok=True)
    for _ in range(_ATTEMPTS):
        path = _write(folder, shards, keys)
        _delete_superseded(path, notes)
        notes.remember([path])
        # It may have been deleted again, by hand or by a process that superseded its own.
        if path.exists():
            return StoreIndex(open_shared(path, writable=False), rows)
    raise StorageError(f"{folder} is changed by other builds all the time: the index cannot be kept there")


def _open_right(path: Path, rows: int, keys: Sequence[KeyArray], notes: FileNotes) -> StoreIndex:
    """Open the index at ``path``, which is compared with the shards unless it is known.

    Raises:
        CorruptCacheError: if it is damaged, or gives wrong answers.
    """
    if notes.knows(path):
        return StoreIndex(open_shared(path, writable=False), rows)
    if sha256_file(path) != path.stem.partition("-")[2]:
        raise CorruptCacheError(f"{path} is damaged: its bytes are not those its name is the sha256 of")
    check_structure(path)
    index = StoreIndex(open_shared(path, writable=False), rows)
    if not index.fits(keys):
        raise CorruptCacheError(f"{path} gives wrong answers")
    notes.remember([path])
    return index


def _delete_superseded(current: Path, notes: FileNotes) -> None:
    """Delete the indexes over other shards that this process has written.

    Those of other processes are left to ``gc``: on a network file system, deleting what another machine has
    mapped ends the process there.
    """
    # A copy: other threads may write indexes, too.
    superseded = {path for path in list(_written_here) if path.parent == current.parent and path != current}
    for path in superseded:
        with suppress(OSError):
            path.unlink(missing_ok=True)
    notes.forget(*(path.name for path in superseded))
    _written_here.difference_update(superseded)
    _written_here.add(current)


def made_of(names: Sequence[str]) -> str:
    """Return what the file of an index over shards begins with.

    It tells which shards they are, and whether they are in the order of their names. That is enough: a
    shard's name, its digest, fixes its codec, and so all names together fix the order of reading.

    Args:
        names: the shards' names, in the order that positions count in.
    """
    by_name, finer_first = may_be_made_of(names)
    return by_name if list(names) == sorted(names) else finer_first


def may_be_made_of(names: Collection[str]) -> tuple[str, str]:
    """Return what an index over shards may begin with, where nobody knows the codecs of some any more.

    Returns:
        as it is if they are read in the order of their names, and if they are not.
    """
    by_name = sorted(names)
    hashed = (hashlib.sha256("\n".join(lines).encode()) for lines in (by_name, [_FINER_FIRST, *by_name]))
    first, second = (one.hexdigest()[:32] for one in hashed)
    return first, second


def _write(folder: Path, shards: str, keys: Sequence[KeyArray]) -> Path:
    """Write the index over ``keys`` and return its file."""
    import lmdb

    rows = sum(map(len, keys))
    bits = _bits_for(rows)
    distinct = 0
    with temporary_sibling(folder / f"{shards}.mdb") as temporary:
        with (
            explained(folder),
            # Nobody else knows the file yet, and it is flushed as a whole before it gets its name.
            lmdb.open(
                str(temporary), subdir=False, map_size=_map_bytes(rows, bits), lock=False, sync=False
            ) as env,
        ):
            for buckets in _passes(keys, bits):
                # A transaction a pass: what is not committed yet is held in memory.
                with env.begin(write=True) as transaction:
                    for bucket, (first, second, places) in buckets:
                        data = first.tobytes() + second.tobytes() + places.tobytes()
                        transaction.put(_bucket_key(bucket), data, append=True)
                        distinct += len(places)
            with env.begin(write=True) as transaction:
                transaction.put(_HEADER, np.array([rows, bits, distinct], dtype=np.int64).tobytes())
        target = folder / f"{shards}-{sha256_file(temporary)}.mdb"
        commit(temporary, target)
    return target


def _bits_for(rows: int) -> int:
    """Return how many leading bits of a key choose its bucket."""
    return max(0, rows // _ROWS_A_BUCKET).bit_length()


def _passes(keys: Sequence[KeyArray], bits: int) -> Iterator[list[tuple[int, _Bucket]]]:
    """Yield the filled buckets in ascending order, about a million rows at a time."""
    starts = np.cumsum([0, *map(len, keys)])
    per_pass = max(1, (1 << bits) * _ROWS_A_PASS // max(1, int(starts[-1])))
    for low in range(0, 1 << bits, per_pass):
        parts: list[_Bucket] = []
        for shard_keys, start in zip(keys, starts, strict=False):
            first, second = halves(shard_keys)
            buckets = _buckets(first, bits)
            rows = np.flatnonzero((buckets >= low) & (buckets < low + per_pass))
            parts.append((first[rows], second[rows], rows + start))
        first, second, places = _concatenated(parts)
        order = np.lexsort((second, first))
        first, second, places = first[order], second[order], places[order]
        fresh = np.ones(len(first), dtype=np.bool_)
        # lexsort is stable: of equal keys the one in the first shard stays.
        fresh[1:] = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
        first, second, places = first[fresh], second[fresh], places[fresh]
        yield [
            (bucket, (first[start:end], second[start:end], places[start:end]))
            for bucket, start, end in _runs(_buckets(first, bits))
        ]


def _concatenated(parts: Sequence[_Bucket]) -> _Bucket:
    first, second, places = zip(*parts, strict=True)
    return np.concatenate(first), np.concatenate(second), np.concatenate(places)


def _buckets(first: NDArray[np.uint64], bits: int) -> NDArray[np.int64]:
    return (first >> np.uint64(64 - bits)).astype(np.int64) if bits else np.zeros(len(first), dtype=np.int64)


def _runs(values: NDArray[np.int64]) -> Iterator[tuple[int, int, int]]:
    """Yield (value, start, end) of the runs of equal values."""
    for start, end in pairwise(np.flatnonzero(np.diff(values, prepend=-1, append=-1))):
        yield int(values[start]), int(start), int(end)


def _bucket_key(bucket: int) -> bytes:
    return bucket.to_bytes(4, "big")


def _unpack(data: pa.Buffer) -> _Bucket:
    count, rest = divmod(data.size, _BYTES_A_ROW)
    if rest:
        raise CorruptCacheError(f"a bucket of an index has {data.size} bytes, expected {_BYTES_A_ROW} a row")
    words = np.frombuffer(data, dtype=np.uint64)
    return words[:count], words[count : 2 * count], words[2 * count :].view(np.int64)


def _map_bytes(rows: int, bits: int) -> int:
    return rows * _BYTES_A_ROW + (1 << bits) * 2 * 4096 + (1 << 20)
