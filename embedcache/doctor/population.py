"""Which vectors are judged: all of a store, or those of one corpus, every key once, block by block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from embedcache.corpus.corpus import Corpus
from embedcache.key_index import KeyIndex, first_occurrences
from embedcache.keys import KeyArray
from embedcache.store import Positions, ShardStore

BLOCK_ROWS = 8192
"""Rows looked at together: vectors of 4096 float32 then take 128 MiB."""


class DistinctRows:
    """The rows of a corpus whose text stands there for the first time; what training reads.

    Memory is one byte a row.
    """

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus
        self._first = first_occurrences(list(corpus.iter_keys()))

    def __len__(self) -> int:
        """Return the number of distinct texts."""
        return int(np.count_nonzero(self._first))

    def blocks(self) -> Iterator[tuple[NDArray[np.int64], KeyArray]]:
        """Yield (row numbers int64, keys), both of shape (n,), in corpus order."""
        start = 0
        for part in self.corpus.iter_keys():
            for offset in range(0, len(part), BLOCK_ROWS):
                keys = part[offset : offset + BLOCK_ROWS]
                begin = start + offset
                fresh = np.flatnonzero(self._first[begin : begin + len(keys)])
                if len(fresh):
                    yield begin + fresh, keys[fresh]
            start += len(part)


class Population:
    """The vectors that are judged.

    Args:
        store: where they lie.
        rows: the corpus whose vectors alone count; None for all vectors of the store.
    """

    def __init__(self, store: ShardStore, rows: DistinctRows | None = None) -> None:
        self.store = store
        self._rows = rows

    def __len__(self) -> int:
        """Return the most vectors there can be: texts of the corpus without a vector are counted."""
        return len(self.store) if self._rows is None else len(self._rows)

    def blocks(self) -> Iterator[tuple[KeyArray, Positions]]:
        """Yield (keys, positions in the store), both of shape (n,), always in the same order."""
        if self._rows is None:
            yield from self._of_store()
            return
        for _, keys in self._rows.blocks():
            positions = self.store.locate(keys)
            here = positions >= 0
            yield keys[here], positions[here]

    def _of_store(self) -> Iterator[tuple[KeyArray, Positions]]:
        start = 0
        # Of a key in several shards, only the row that is ever read counts.
        for shard, own in self.store.own_rows():
            for offset in range(0, len(shard), BLOCK_ROWS):
                rows = offset + np.flatnonzero(own[offset : offset + BLOCK_ROWS])
                yield shard.keys[rows], start + rows
            start += len(shard)

    def keys_at(self, numbers: NDArray[np.int64]) -> KeyArray:
        """Return the keys of the ``numbers``-th vectors in the order of :meth:`blocks`; rising numbers."""
        found, start = [], 0
        for keys, _ in self.blocks():
            inside = numbers[(numbers >= start) & (numbers < start + len(keys))]
            found.append(keys[inside - start])
            start += len(keys)
            if start > numbers[-1]:
                break
        return np.concatenate(found)


def find_texts(corpora: Sequence[Corpus], keys: KeyArray) -> list[str]:
    """Return the texts of ``keys`` in order; a text of no corpus is shown as its key."""
    texts: dict[int, str] = {}
    wanted = KeyIndex(keys)
    for corpus in corpora:
        start = 0
        for part in corpus.iter_keys():
            if len(texts) == wanted.distinct:
                break
            places = wanted.locate(part)
            for row in np.flatnonzero(places >= 0).tolist():
                if int(places[row]) not in texts:
                    texts[int(places[row])] = corpus.texts(np.array([start + row]))[0]
            start += len(part)
    unknown = [f"(key {key.tobytes().hex()}, of no corpus here)" for key in keys]
    return [texts.get(place, unknown[place]) for place in wanted.locate(keys).tolist()]
