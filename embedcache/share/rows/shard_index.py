"""Row indexes: a shard without its vectors, to find its rows by and to read single ones of them.

An index has everything of a shard's file but the bytes of the vectors, and digests of blocks of those bytes.
With it the shard's keys are known, and rows can be read by range and checked. It depends on the shard alone:
the same shard has the same index everywhere.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from embedcache.check.verify.shards import open_without_codebook
from embedcache.errors import CacheFormatError, CorruptCacheError
from embedcache.fsio import canonical_json, parsed_json
from embedcache.keys import KEY_BYTES, KEY_DTYPE, KeyArray
from embedcache.share.remote.manifest import MOST_INDEX_BYTES
from embedcache.share.retry import shortened
from embedcache.store.shard import Shard, ShardHeader

if TYPE_CHECKING:
    import pyarrow as pa

INDEX_VERSION = 1
BLOCK_BYTES = 16 << 10
"""Bytes of the vectors that have one digest: what is read at least, and 0.2 % more to store."""
HEADER_BYTES = 512
"""Bytes before the shard's, a multiple of what arrays are aligned to."""
MOST_INDEXED_BYTES = (1 << 32) - 1
"""Bytes of a shard that has an index; for a moment as much address space is taken."""

_DIGEST_BYTES = 32
_FIELDS = {"version", "shard", "bytes", "start", "end", "block"}


@dataclass(frozen=True)
class ShardIndex:
    """An opened row index.

    Attributes:
        shard: sha256 of the shard.
        size: of the shard, in bytes.
        start: where in the shard's file its vectors begin.
        end: where they end.
        header: what the shard says about itself.
        keys: its keys, dtype ``V16``, shape (n,); a view of the index's bytes.
        scale: float32, shape (n,), where its codec has one.
        tokens: int32, shape (n,).
        truncated: bool, shape (n,).
        digests: sha256 of each block of the vectors, one after the other.
    """

    shard: str
    size: int
    start: int
    end: int
    header: ShardHeader
    keys: KeyArray
    scale: NDArray[np.float32] | None
    tokens: NDArray[np.int32]
    truncated: NDArray[np.bool_]
    digests: bytes

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.keys)

    @property
    def row_bytes(self) -> int:
        """Bytes that the vector of a row takes in the shard."""
        return (self.end - self.start) // len(self.keys)

    @property
    def blocks(self) -> int:
        """How many blocks the vectors have."""
        return _blocks(self.start, self.end)

    def is_block(self, number: int, data: bytes | memoryview) -> bool:
        """Return whether ``data`` are the bytes of a block: the last one of a shard is shorter."""
        right = self.digests[number * _DIGEST_BYTES : (number + 1) * _DIGEST_BYTES]
        return hashlib.sha256(data).digest() == right

    @classmethod
    def from_bytes(cls, data: pa.Buffer, shard: str, size: int, rows: int) -> ShardIndex:
        """Open somebody's index, whose digest was taken, trusting nothing in it.

        Args:
            data: the index.
            shard: sha256 of the shard that it is said to be of.
            size: bytes of that shard.
            rows: rows of that shard.

        Raises:
            ValueError: if it is none, or of another shard.
        """
        start, end = _span_in(data, shard, size)
        body = data[HEADER_BYTES:]
        length = start + size - end
        # The bytes of the vectors stay zero: memory that is never touched takes no room.
        whole = np.zeros(size, dtype=np.uint8)
        whole[:start] = np.frombuffer(body, dtype=np.uint8, count=start)
        whole[end:] = np.frombuffer(body, dtype=np.uint8, count=size - end, offset=start)
        opened = _opened(whole, shard)
        base = whole.ctypes.data
        vectors = opened.stored.vector
        if (vectors.ctypes.data - base, vectors.nbytes) != (start, end - start):
            raise ValueError("its vectors do not lie where it says")
        keys_at = opened.keys.ctypes.data - base
        if len(opened) != rows or not 0 <= keys_at <= start - rows * KEY_BYTES:
            raise ValueError(f"it has {len(opened):,} rows, expected {rows:,}, or its keys are not in it")
        return cls(
            shard=shard,
            size=size,
            start=start,
            end=end,
            header=opened.header,
            keys=np.frombuffer(body, dtype=KEY_DTYPE, count=rows, offset=keys_at),
            scale=None if opened.stored.scale is None else opened.stored.scale.copy(),
            tokens=opened.tokens.copy(),
            truncated=opened.truncated.copy(),
            digests=body[length:].to_pybytes(),
        )


def can_be_indexed(size: int, rows: int) -> bool:
    """Return whether a shard of ``size`` bytes has an index."""
    return size <= MOST_INDEXED_BYTES and rows * 2 * KEY_BYTES <= MOST_INDEX_BYTES


def index_bytes(data: pa.Buffer, name: str) -> bytes:
    """Return the index of the shard called ``name``, whose bytes are ``data``.

    Raises:
        CorruptCacheError, CacheFormatError: if they are no shard.
    """
    import pyarrow as pa

    start, end = _vectors_in(data, open_without_codebook(data, name, name))
    if start < 0 or end > data.size:
        # Arrow has copied what did not lie at even addresses.
        aligned = pa.py_buffer(np.frombuffer(data, dtype=np.uint8).copy())
        start, end = _vectors_in(aligned, open_without_codebook(aligned, name, name))
    header = _header(name, data.size, start, end)
    view = memoryview(data)
    vectors = view[start:end]
    digests = [
        hashlib.sha256(vectors[at : at + BLOCK_BYTES]).digest() for at in range(0, end - start, BLOCK_BYTES)
    ]
    return b"".join([header, view[:start], view[end:], *digests])


def _vectors_in(data: pa.Buffer, shard: Shard) -> tuple[int, int]:
    vectors = shard.stored.vector
    start = vectors.ctypes.data - data.address
    return start, start + vectors.nbytes


def _opened(whole: NDArray[np.uint8], name: str) -> Shard:
    import pyarrow as pa

    try:
        return open_without_codebook(pa.py_buffer(whole), name, "in a row index")
    except (CorruptCacheError, CacheFormatError) as error:
        raise ValueError(shortened(next(iter(str(error).splitlines()), ""))) from error


def _header(shard: str, size: int, start: int, end: int) -> bytes:
    said = {
        "version": INDEX_VERSION,
        "shard": shard,
        "bytes": size,
        "start": start,
        "end": end,
        "block": BLOCK_BYTES,
    }
    return canonical_json(said).ljust(HEADER_BYTES - 1) + b"\n"


def _span_in(data: pa.Buffer, shard: str, size: int) -> tuple[int, int]:
    """Return where the vectors lie, as the header of an index says, once its length is found right."""
    if not HEADER_BYTES < data.size <= MOST_INDEX_BYTES or size > MOST_INDEXED_BYTES:
        raise ValueError(f"it has {data.size:,} bytes, for a shard of {size:,}")
    header = data[:HEADER_BYTES].to_pybytes()
    value = parsed_json(header)
    version = value.get("version") if isinstance(value, dict) else None
    if type(version) is int and version > INDEX_VERSION:
        raise ValueError(f"it has version {version}: upgrade embedcache")
    if not isinstance(value, dict) or value.keys() != _FIELDS:
        raise ValueError("its header is not that of a row index")
    start, end = value["start"], value["end"]
    if type(start) is not int or type(end) is not int or not 0 < start < end <= size:
        raise ValueError("its vectors lie nowhere")
    if header != _header(shard, size, start, end):
        raise ValueError(f"it is of another shard than {shard[:12]}…, or not spelled as indexes are")
    if data.size != HEADER_BYTES + start + size - end + _blocks(start, end) * _DIGEST_BYTES:
        raise ValueError(f"it has {data.size:,} bytes, not those that its header promises")
    return start, end


def _blocks(start: int, end: int) -> int:
    return -(-(end - start) // BLOCK_BYTES)
