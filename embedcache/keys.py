"""Keys: the 16-byte name of a text inside a cache, and look-ups among keys.

A key is BLAKE2b over the text's UTF-8 bytes. Two texts share a vector exactly when their bytes are the same:
nothing is stripped, lower-cased or normalised on the way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

KEY_BYTES = 16

KeyArray = NDArray[np.void]
"""Keys as an array of dtype ``V16``, shape (n,)."""

KEY_DTYPE = np.dtype((np.void, KEY_BYTES))


def key(text: str) -> bytes:
    """Return the 16-byte key of ``text``.

    Raises:
        UnicodeEncodeError: if the text holds lone surrogates, which have no UTF-8 form.
    """
    return hashlib.blake2b(text.encode("utf-8"), digest_size=KEY_BYTES).digest()


def key_array(texts: Iterable[str]) -> KeyArray:
    """Return the keys of ``texts`` as an array of dtype ``V16``, shape (n,)."""
    return np.frombuffer(b"".join(map(key, texts)), dtype=KEY_DTYPE)


PARTITION_KEYS = 1 << 18
"""Keys that :func:`first_occurrences` aims to sort at a time."""

# A row's byte first holds the number of its partition, which leaves the high bit to mark what is done.
_MOST_PARTITIONS = 128
_FIRST, _REPEATED = 0x80, 0xC0


def halves(keys: KeyArray) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return keys as two arrays of machine words, uint64 of shape (n,): they compare faster than bytes."""
    words = np.ascontiguousarray(keys).view(np.uint64).reshape(-1, KEY_BYTES // 8)
    return words[:, 0], words[:, 1]


def search_sorted(
    first: NDArray[np.uint64],
    second: NDArray[np.uint64],
    places: NDArray[np.int64],
    asked_first: NDArray[np.uint64],
    asked_second: NDArray[np.uint64],
) -> NDArray[np.int64]:
    """Return the places of the keys asked for, -1 where one is missing.

    Args:
        first, second: halves of distinct keys, sorted by (first, second), shape (n,).
        places: the place of each of them, shape (n,).
        asked_first, asked_second: halves of the keys to find, shape (m,), in any order.
    """
    found = np.full(len(asked_first), -1, dtype=np.int64)
    at = np.searchsorted(first, asked_first, side="left")
    open_rows = np.arange(len(asked_first))
    # Keys that share their first half lie side by side; nearly always there is one.
    while len(open_rows):
        open_rows = open_rows[at[open_rows] < len(places)]
        candidate = at[open_rows]
        same_first = first[candidate] == asked_first[open_rows]
        hit = same_first & (second[candidate] == asked_second[open_rows])
        found[open_rows[hit]] = places[candidate[hit]]
        open_rows = open_rows[same_first & ~hit]
        at[open_rows] += 1
    return found


class KeyIndex:
    """Finds keys among n keys.

    Args:
        keys: dtype ``V16``, shape (n,). Where a key stands several times, its first place counts.
    """

    def __init__(self, keys: KeyArray) -> None:
        first, second = halves(keys)
        order = np.lexsort((second, first))
        first, second = first[order], second[order]
        fresh = np.ones(len(order), dtype=np.bool_)
        fresh[1:] = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
        # lexsort is stable, so the first of equal keys is the one that came first.
        self._first, self._second, self._places = first[fresh], second[fresh], order[fresh]

    @property
    def distinct(self) -> int:
        """Number of distinct keys."""
        return len(self._places)

    def locate(self, keys: KeyArray) -> NDArray[np.int64]:
        """Return the place of each key in the array given at first, -1 where it is missing."""
        return search_sorted(self._first, self._second, self._places, *halves(keys))

    def first_places(self) -> NDArray[np.int64]:
        """Return the places of the distinct keys in ascending order: each key's first occurrence."""
        return np.sort(self._places)


def first_occurrences(parts: Sequence[KeyArray]) -> NDArray[np.bool_]:
    """Mark the first row of each distinct key, over all ``parts`` together.

    Only a partition of the keys (those that begin with the same bits) is copied and sorted at a time, so
    memory is one byte a row plus a partition; mapped parts are not counted.

    Args:
        parts: arrays of dtype ``V16`` that stand one after the other; they may be mapped files.

    Returns:
        bool, shape (all rows,): True where no row before it has the same key.
    """
    starts = np.cumsum([0, *map(len, parts)])
    rows = int(starts[-1])
    bits = min(max(rows // PARTITION_KEYS, 1), _MOST_PARTITIONS).bit_length() - 1
    state = np.empty(rows, dtype=np.uint8)
    for start, part in zip(starts, parts, strict=False):
        first_bytes = np.ascontiguousarray(part).view(np.uint8).reshape(-1, KEY_BYTES)[:, 0]
        np.right_shift(
            first_bytes, 8 - bits, out=state[start : start + len(part)], dtype=np.uint16, casting="unsafe"
        )
    for partition in range(1 << bits):
        members = np.flatnonzero(state == partition)
        state[members] = np.where(_firsts(take_keys(parts, starts, members)), _FIRST, _REPEATED)
    firsts: NDArray[np.bool_] = np.equal(state, _FIRST, out=state.view(np.bool_))
    return firsts


def take_keys(parts: Sequence[KeyArray], starts: NDArray[np.int64], rows: NDArray[np.int64]) -> KeyArray:
    """Return the keys of ``rows``, which ascend."""
    keys = np.empty(len(rows), dtype=KEY_DTYPE)
    edges = np.searchsorted(rows, starts)
    for part, start, a, b in zip(parts, starts, edges, edges[1:], strict=False):
        keys[a:b] = part[rows[a:b] - start]
    return keys


def _firsts(keys: KeyArray) -> NDArray[np.bool_]:
    """Mark the first of each distinct key."""
    first, _ = halves(keys)
    ordered = np.sort(first)
    shared = ordered[1:][ordered[1:] == ordered[:-1]]
    marks = np.ones(len(keys), dtype=np.bool_)
    if not len(shared):
        return marks
    # Most keys share their first half with none: only the others need the slow, exact order.
    doubtful = np.flatnonzero(np.isin(first, shared))
    marks[doubtful] = False
    marks[doubtful[KeyIndex(keys[doubtful]).first_places()]] = True
    return marks
