"""Keys: the 16-byte name of a text inside a cache, and look-ups among keys.

A key is BLAKE2b over the text's UTF-8 bytes. Two texts share a vector exactly when their bytes are the same:
nothing is stripped, lower-cased or normalised on the way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from embedcache.errors import InputError

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
    """Return the keys of ``texts`` as an array of dtype ``V16``, shape (n,).

    Raises:
        InputError: if a text holds half of a surrogate pair, which has no UTF-8 form.
    """
    try:
        return np.frombuffer(b"".join(map(key, texts)), dtype=KEY_DTYPE)
    except UnicodeEncodeError as error:
        shown = str(error.object)[:80].encode("ascii", "backslashreplace").decode()
        raise InputError(
            f"the text '{shown}' holds {error.object[error.start]!a}, which is no character and has no UTF-8 "
            "form: remove it, or read the text again in the right encoding"
        ) from error


def list_of_texts(texts: Iterable[str]) -> list[str]:
    """Return texts as a list; raise ``InputError`` for a single string, or for anything else among them."""
    if isinstance(texts, str):
        raise InputError("expected a list of texts, found one string: give [text]")
    texts = list(texts)
    others = [type(text).__name__ for text in texts if not isinstance(text, str)]
    if others:
        raise InputError(f"expected a list of texts, found a {others[0]} among them")
    return texts


BLOCK_KEYS = 1 << 20
"""Keys that are sorted or read at a time where all of them could be too many."""

PARTITION_KEYS = 1 << 18
"""Keys that ``first_occurrences`` aims to sort at a time."""

# A row's byte first holds the number of its partition, which leaves the high bit to mark finished rows.
_MOST_PARTITIONS = 128
_FIRST, _REPEATED = 0x80, 0xC0


def halves(keys: KeyArray) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return keys as two arrays of machine words, uint64 of shape (n,): they compare faster than bytes."""
    words = np.ascontiguousarray(keys).view(np.uint64).reshape(-1, KEY_BYTES // 8)
    return words[:, 0], words[:, 1]


class SortedKeys:
    """Keys in ascending order with the place of each; a key may stand in several places.

    Args:
        words: uint64, shape (3, n): the two halves of each key, and its place, sorted by all three.
    """

    def __init__(self, words: NDArray[np.uint64]) -> None:
        self._words = words

    def __len__(self) -> int:
        return int(self._words.shape[1])

    def locate(self, keys: KeyArray) -> NDArray[np.int64]:
        """Return the first place of each key, -1 where it is missing."""
        first, second = halves(keys)
        # Sorted, keys that are near each other are looked for one after the other.
        order = np.argsort(first, kind="stable")
        first, second = first[order], second[order]
        found = np.full(len(keys), -1, np.int64)
        at = np.searchsorted(self._words[0], first, side="left")
        open_rows = np.arange(len(keys))
        # Keys that share their first half lie side by side; nearly always there is one.
        while len(open_rows):
            open_rows = open_rows[at[open_rows] < len(self)]
            candidate = at[open_rows]
            same_first = self._words[0][candidate] == first[open_rows]
            hit = same_first & (self._words[1][candidate] == second[open_rows])
            found[order[open_rows[hit]]] = self._words[2][candidate[hit]]
            open_rows = open_rows[same_first & ~hit]
            at[open_rows] += 1
        return found

    def in_order(self) -> KeyArray:
        """Return the keys in the order of their places."""
        pairs = np.zeros((len(self), 2), np.uint64)
        pairs[self._words[2]] = self._words[:2].T
        return pairs.reshape(-1).view(KEY_DTYPE)

    def distinct(self) -> Iterator[KeyArray]:
        """Yield the distinct keys in ascending order, in blocks."""
        for start in range(0, len(self), BLOCK_KEYS):
            pairs = np.ascontiguousarray(self._words[:2, start : start + BLOCK_KEYS + 1].T)
            is_last = np.ones(len(pairs), np.bool_)
            is_last[:-1] = (pairs[1:] != pairs[:-1]).any(axis=1)
            yield pairs[:BLOCK_KEYS][is_last[:BLOCK_KEYS]].reshape(-1).view(KEY_DTYPE)


class KeyIndex(SortedKeys):
    """Finds keys among n keys, in memory.

    Args:
        keys: dtype ``V16``, shape (n,). Where a key stands several times, its first place counts.
    """

    def __init__(self, keys: KeyArray) -> None:
        super().__init__(sorted_words(*halves(keys), np.arange(len(keys))))


def sorted_words(
    first: NDArray[np.uint64], second: NDArray[np.uint64], places: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """Return the words of ``SortedKeys`` for the halves of keys and their ascending places."""
    # Stable: of equal keys the first place comes first.
    order = np.lexsort((second, first))
    return np.stack([first[order], second[order], places[order].astype(np.uint64)])


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
    marks[doubtful] = KeyIndex(keys[doubtful]).locate(keys[doubtful]) == np.arange(len(doubtful))
    return marks
