"""Rows to encode in place of lost shards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embedcache.corpus.corpus import Corpus
from embedcache.keys import KEY_DTYPE, KeyArray, KeyIndex
from embedcache.store import Positions, Shard, ShardStore
from embedcache.teacher.options import DEFAULT_SHARD_ROWS
from embedcache.verify.rows import find_rows, rows_without_vector


@dataclass(frozen=True)
class Window:
    """Rows that are encoded together and stored as one shard.

    Attributes:
        keys: dtype ``V16``, shape (n,).
        numbers: number of the corpus that holds each text, shape (n,).
        rows: its row there, shape (n,).
    """

    keys: KeyArray
    numbers: NDArray[np.int64]
    rows: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.keys)

    def texts(self, corpora: Sequence[Corpus]) -> list[str]:
        """Return the texts, in order."""
        found = [""] * len(self)
        for number in np.unique(self.numbers).tolist():
            places = np.flatnonzero(self.numbers == number)
            for place, text in zip(places.tolist(), corpora[number].texts(self.rows[places]), strict=True):
                found[place] = text
        return found


@dataclass
class _Planned:
    """Keys that a store has, or will have."""

    store: ShardStore
    keys: KeyArray

    def locate(self, keys: KeyArray) -> Positions:
        """Return a number for each key, -1 where it is missing."""
        return np.maximum(self.store.locate(keys), KeyIndex(self.keys).locate(keys))


def plan_windows(
    lost: Sequence[Shard], corpora: Sequence[Corpus], store: ShardStore, *, fill: bool = False
) -> tuple[list[Window], int]:
    """Plan what to encode in place of lost shards.

    A shard whose texts are all known comes back with its rows, in their order. For the others it is what
    corpora and embedded views lack.

    Args:
        lost: header and keys of the lost shards.
        corpora: sound corpora and views.
        store: the teacher's sound shards.
        fill: True if shards were lost whose keys are not known.

    Returns:
        Shards to be, in the order of the corpora; number of lost rows whose text no corpus has.
    """
    numbers, rows = find_rows([shard.keys for shard in lost], corpora)
    windows, start, without_text = list[Window](), 0, 0
    for shard in lost:
        part = slice(start, start + len(shard))
        start += len(shard)
        is_missing = store.locate(shard.keys) < 0
        unknown = int((is_missing & (numbers[part] < 0)).sum())
        without_text += unknown
        if is_missing.any() and not unknown:
            known = numbers[part] >= 0
            windows.append(Window(shard.keys[known], numbers[part][known], rows[part][known]))
    windows.sort(key=lambda one: (one.numbers[0], one.rows[0]))
    if fill or without_text:
        rows_each = max(map(len, (*store.shards, *lost)), default=DEFAULT_SHARD_ROWS)
        filled = list(_fill(windows, corpora, store, rows_each))
        # A key may be damaged itself: then its text is among those that lack a vector.
        without_text = max(0, without_text - sum(map(len, filled)))
        windows += filled
    return windows, without_text


def _fill(
    windows: Sequence[Window], corpora: Sequence[Corpus], store: ShardStore, rows_each: int
) -> Iterator[Window]:
    """Yield windows of what corpora and views lack, but for what is planned."""
    planned = _Planned(store, np.concatenate([np.empty(0, KEY_DTYPE), *(one.keys for one in windows)]))
    for corpus, missing in rows_without_vector(corpora, planned):
        missing.refresh(planned)
        planned.keys = np.concatenate([planned.keys, missing.keys()])
        number = next(number for number, one in enumerate(corpora) if one is corpus)
        for rows in missing.windows(rows_each):
            yield Window(missing.keys(rows), np.full(len(rows), number), rows)
