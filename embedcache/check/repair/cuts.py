"""How many rows each of several lost shards had, told by their sizes before anything is encoded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from embedcache.codecs import Codec
from embedcache.keys import KeyArray

# Another library, device or pooling makes another header, which is all that is guessed of a shard's size.
_HEADER_BYTES = 512
# Headers of the same build differ by some digits, and columns are padded.
_SPREAD_BYTES = 128


@dataclass(frozen=True)
class Layout:
    """How large the shards of a codec are.

    Attributes:
        codec: the codec.
        overhead: bytes beside the rows, more or less.
        row: bytes of a row.
    """

    codec: Codec
    overhead: float
    row: float

    def rows(self, size: float) -> int:
        """Return about how many rows a shard of ``size`` bytes has."""
        return round((size - self.overhead) / self.row)


def rows_by_size(sizes: Sequence[int], total: int, layouts: Sequence[Layout]) -> list[int] | None:
    """Return how many rows shards have, which together have ``total``.

    Args:
        sizes: how many bytes each has.
        total: rows of all.
        layouts: the layout of each.

    Returns:
        None where a size is not known (0), or these layouts do not explain them.
    """
    if not sizes or min(sizes) <= 0:
        return None
    pairs = list(zip(sizes, layouts, strict=True))
    # All headers are off alike, by so much that the rows add up.
    too_many = sum((size - one.overhead) / one.row for size, one in pairs) - total
    off = too_many / sum(1 / one.row for one in layouts)
    rows = [one.rows(size - off) for size, one in pairs]
    return rows if sum(rows) == total and min(rows) > 0 and abs(off) <= _HEADER_BYTES else None


def full_shard(
    corpora: Sequence[int], sizes: Sequence[int], layouts: Iterable[Layout]
) -> tuple[int, Codec] | None:
    """Return the rows of a full shard, and the codec, with which a build cuts shards of ``sizes`` bytes.

    Args:
        corpora: how many rows there are of each corpus.
        sizes: how many bytes the shards of all of them have.
        layouts: how large shards may be, the likeliest first.

    Returns:
        None where a size is not known (0), or no number of rows explains them.
    """
    if not sizes or min(sizes) <= 0:
        return None
    found: list[tuple[float, int, Codec]] = []
    for layout in layouts:
        slack = round(_HEADER_BYTES / layout.row) + 1
        about = min(layout.rows(max(sizes)), max(corpora))
        for rows in range(max(1, about - slack), about + slack + 1):
            if sum(-(-count // rows) for count in corpora) == len(sizes):
                lengths = [min(rows, count - start) for count in corpora for start in range(0, count, rows)]
                headers = [
                    size - length * layout.row
                    for size, length in zip(sorted(sizes), sorted(lengths), strict=True)
                ]
                spread = max(headers) - min(headers)
                off = abs(sum(headers) / len(headers) - layout.overhead)
                if spread <= _SPREAD_BYTES and off <= _HEADER_BYTES:
                    found.append((spread + off, rows, layout.codec))
    return min(found, key=lambda one: one[0])[1:] if found else None


def cut(corpora: Iterable[KeyArray], rows: int) -> Iterator[KeyArray]:
    """Yield the keys of each corpus, ``rows`` at a time, as a build cuts its shards."""
    for keys in corpora:
        for start, end in pairwise([*range(0, len(keys), rows), len(keys)]):
            yield keys[start:end]
