"""Single rows of a shard, read by range: a few blocks of its vectors, each checked against the row index."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedcache.share.remote.download import missing, unlike
from embedcache.share.remote.manifest import SharedFile
from embedcache.share.remote.remote import Remote, object_path
from embedcache.share.retry import retrying
from embedcache.share.rows.shard_index import BLOCK_BYTES, ShardIndex

GAP_BLOCKS = 4
"""Blocks in a row that are read without need, because a second request would take longer."""
_MOST_BLOCKS = 512


@dataclass(frozen=True)
class RowRange:
    """Rows of a shard that are read at once.

    Attributes:
        rows: which of the rows that were asked for.
        first: number of the first block.
        blocks: how many blocks.
        size: bytes of those.
    """

    rows: slice
    first: int
    blocks: int
    size: int


def ranges_of(index: ShardIndex, rows: NDArray[np.int64]) -> Iterator[RowRange]:
    """Yield what has to be read for ``rows``, which ascend and are not empty.

    A row lies in one range as a whole. The block that two ranges meet in may be read for both.
    """
    width = index.row_bytes
    first = rows * width // BLOCK_BYTES
    last = (rows * width + width - 1) // BLOCK_BYTES
    starts = np.flatnonzero(first[1:] > last[:-1] + GAP_BLOCKS) + 1
    for low, high in zip([0, *starts.tolist()], [*starts.tolist(), len(rows)], strict=True):
        at = low
        while at < high:
            # A range that breaks off is read again, so it must not be long.
            end = max(at + 1, int(np.searchsorted(last[at:high], first[at] + _MOST_BLOCKS)) + at)
            yield _range(index, slice(at, end), int(first[at]), int(last[end - 1]))
            at = end


def scattered_bytes(size: int, rows: int, wanted: float) -> int:
    """Return about how many bytes are read for rows that lie anywhere in a shard: blocks, and gaps between.

    Args:
        size: of the shard, nearly all of it vectors.
        rows: how many it has.
        wanted: how many of them are wanted.
    """
    blocks = -(-size // BLOCK_BYTES)
    # A row lies in one block or more, and a block is read if one of the rows that reach into it is wanted.
    in_block = rows / blocks + 1
    hit = 1.0 - math.pow(1.0 - wanted / rows, in_block)
    gaps = sum(gap * hit * hit * math.pow(1.0 - hit, gap) for gap in range(1, GAP_BLOCKS + 1))
    return min(round((hit + gaps) * blocks * BLOCK_BYTES), size)


def read_rows(remote: Remote, file: SharedFile, index: ShardIndex, span: RowRange) -> bytes:
    """Return the bytes of a range, after every block was checked.

    Raises:
        RemoteError: if they cannot be read, or are wrong every time.
        RangesNotServedError: if the remote gives no parts of files.
    """
    path = object_path(file.sha256)
    start = index.start + span.first * BLOCK_BYTES

    def act() -> bytes:
        data = remote.place.read_range(path, start, span.size)
        if len(data) != span.size:
            raise unlike(path, len(data), span.size)
        view = memoryview(data)
        for number in range(span.blocks):
            block = view[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES]
            if not index.is_block(span.first + number, block):
                raise unlike(path, span.size, span.size, "other bytes arrived than its row index says")
        return data

    try:
        return retrying(f"read a part of {path}", remote.where, act, remote.stop)
    except FileNotFoundError:
        raise missing(remote, file, file.path) from None


def put_rows(
    index: ShardIndex, span: RowRange, data: bytes, rows: NDArray[np.int64], out: NDArray[Any]
) -> None:
    """Put the vectors that lie in a range into ``out``, as the shard's codec keeps them.

    Args:
        index: of the shard.
        span: the range.
        data: its bytes.
        rows: all rows that were asked for.
        out: shape (rows, w), contiguous, of the codec's dtype.
    """
    width = index.row_bytes
    begin = span.first * BLOCK_BYTES
    # The first row may have begun in the block before.
    whole = -(-begin // width)
    inside = np.frombuffer(data, dtype=np.uint8)[whole * width - begin :]
    inside = inside[: len(inside) // width * width].reshape(-1, width)
    out.view(np.uint8).reshape(len(out), width)[span.rows] = inside[rows[span.rows] - whole]


def _range(index: ShardIndex, rows: slice, first: int, last: int) -> RowRange:
    end = min((last + 1) * BLOCK_BYTES, index.end - index.start)
    return RowRange(rows, first, last + 1 - first, end - first * BLOCK_BYTES)
