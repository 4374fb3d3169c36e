"""The derived index of a store: key -> position, in one immutable LMDB file that is made anew when none fits.

Keys are spread over buckets by their leading bits; a bucket is one value: its keys, sorted, and their
positions, found by binary search in the mapped file. So it takes no memory, and 24 bytes of disk a row.
A file is named by the shards it was made of and by its own digest. Another set of shards, a damaged file or
none at all: the index is made from the shards again.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from embedcache.errors import CorruptCacheError, StorageError
from embedcache.fsio import commit, sha256_file, temporary_sibling
from embedcache.key_index import halves, search_sorted
from embedcache.keys import KEY_DTYPE, KeyArray
from embedcache.store.base import Positions
from embedcache.store.digests import FileNotes
from embedcache.store.mapped_lmdb import MappedLmdb, explained, open_shared

if TYPE_CHECKING:
    import pyarrow as pa

_HEADER = b"header"
_HEADER_BYTES = 24
_BYTES_A_ROW = 24
_ROWS_A_BUCKET = 16384
_ROWS_A_PASS = 1 << 20
_ATTEMPTS = 3

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

    def discard(self) -> None:
        """Delete the index's file; it stays readable here."""
        self._mapped.path.unlink(missing_ok=True)

    def entries(self) -> Iterator[tuple[KeyArray, Positions]]:
        """Yield all distinct keys with their positions, a bucket at a time."""
        for bucket in range(1 << self._bits):
            data = self._mapped.get(_bucket_key(bucket))
            if data is not None:
                first, second, places = _unpack(data)
                yield np.stack([first, second], axis=1).reshape(-1).view(KEY_DTYPE), places

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


def open_index(folder: Path, names: Sequence[str], keys: Sequence[KeyArray], notes: FileNotes) -> StoreIndex:
    """Open the index over shards, making it where none is there that was made here.

    One that came along with somebody else's cache may be whole and still lie, and to find out costs as much
    as to make it.

    Args:
        folder: ``derived/index/<contract id>``.
        names: the shards' names, in the order that positions count in.
        keys: their keys.
        notes: remembers the index files that were made here.

    Raises:
        StorageError: if it has to be made and cannot be written.
    """
    rows = sum(map(len, keys))
    shards = made_of(names)
    for path in sorted(folder.glob(f"{shards}-*.mdb")):
        # Damaged, unreadable or gone meanwhile: as good as none.
        with suppress(CorruptCacheError, OSError):
            if notes.knows(path):
                return StoreIndex(open_shared(path, writable=False), rows)
    others = {path.name for path in _files(folder)}
    for _ in range(_ATTEMPTS):
        path = _write(folder, shards, keys)
        notes.forget(others)
        notes.remember([path])
        # Another builder, whose set of shards is another, may have deleted it again.
        if path.exists():
            return StoreIndex(open_shared(path, writable=False), rows)
    raise StorageError(f"{folder} is changed by other builds all the time: the index cannot be kept there")


def made_of(names: Sequence[str]) -> str:
    """Return what the file of an index over the shards ``names`` begins with."""
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:32]


def _write(folder: Path, shards: str, keys: Sequence[KeyArray]) -> Path:
    """Write the index over ``keys`` and return its file; indexes over other shards are deleted."""
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
    for other in _files(folder):
        if other != target:
            with suppress(OSError):
                other.unlink(missing_ok=True)
    return target


def _files(folder: Path) -> list[Path]:
    # Without those that somebody is writing just now, whose names begin with a dot.
    return list(folder.glob("[!.]*.mdb"))


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
        first, second, places = (np.concatenate(column) for column in zip(*parts, strict=True))
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
