"""Windows: missing rows of a corpus with their texts, handed out to workers one at a time."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embedcache.corpus.corpus import Corpus
from embedcache.errors import WorkerError, first_line
from embedcache.missing import MissingRows

_SMALLEST = 8
"""Windows shrink to this fraction of a shard toward the end, so that workers end together."""
_MOST_SHARDS = 8
"""A window's texts are in memory several times over while it travels."""
_BLOCK_ROWS = 1 << 20
_MOST_ENDED = 3
"""Workers that one window may end."""


@dataclass(frozen=True)
class Window:
    """Texts of one or several shards that a worker encodes and stores.

    Attributes:
        of: title of the corpus or view.
        rows: their rows in it, ascending, shape (n,).
        lines: the texts.
    """

    of: str
    rows: NDArray[np.int64]
    lines: list[str]

    def texts(self, rows: NDArray[np.int64]) -> list[str]:
        """Return some of the texts, by their places in the window."""
        return [self.lines[row] for row in rows]

    def place(self, row: int) -> str:
        """Return the name of a row in messages."""
        return f"row {self.rows[row]} of {self.of}"

    def __str__(self) -> str:
        return f"rows {self.rows[0]} to {self.rows[-1]} of {self.of}"


class Windows:
    """Windows of missing rows, cut when they are asked for.

    While there is enough left, a window holds whole shards, and they are those of a build by one process.

    Args:
        texts: a corpus or view.
        missing: the rows without a vector.
        shard_rows: rows per shard.

    Attributes:
        left: rows not handed out to a worker.
    """

    def __init__(self, texts: Corpus, missing: MissingRows, shard_rows: int) -> None:
        self._texts, self._mask, self._shard_rows = texts, missing.mask, shard_rows
        self._returned: deque[Window] = deque()
        self._ended: Counter[int] = Counter()
        self._row, self.left = 0, int(self._mask.sum())

    def take(self, rows: float, workers: int) -> Window:
        """Return the next window; there has to be one.

        Args:
            rows: rows that it should have. It has at least a shard, but at most half of a worker's share of
                the remaining rows, because some rows take longer than others.
            workers: workers that share the remaining rows.
        """
        if self._returned:
            window = self._returned.popleft()
            self.left -= len(window.rows)
            return window
        most = -(-self.left // (2 * workers))
        if most < self._shard_rows:
            count = max(most, self._shard_rows // _SMALLEST, 1)
        else:
            shards = min(int(min(rows, most)) // self._shard_rows, _MOST_SHARDS)
            count = max(1, shards) * self._shard_rows
        taken = self._cut(min(count, self.left))
        self.left -= len(taken)
        return Window(self._texts.title, taken, self._texts.texts(taken))

    def _cut(self, count: int) -> NDArray[np.int64]:
        """Return the next rows; the numbers of all would take 8 bytes each."""
        found: list[NDArray[np.int64]] = []
        while count:
            rows = np.flatnonzero(self._mask[self._row : self._row + _BLOCK_ROWS])[:count] + self._row
            count -= len(rows)
            self._row = int(rows[-1]) + 1 if not count else self._row + _BLOCK_ROWS
            found.append(rows)
        return np.concatenate(found)

    def give_back(self, window: Window, error: BaseException) -> None:
        """Take back a window whose worker ended.

        Raises:
            WorkerError: if it has ended too many.
        """
        self._ended[window.rows[0]] += 1
        if self._ended[window.rows[0]] == _MOST_ENDED:
            raise WorkerError(
                f"{window} ended {_MOST_ENDED} workers, one after the other ({first_line(error)}): look for "
                "very long texts among them, or for too little memory"
            ) from error
        self._returned.append(window)
        self.left += len(window.rows)
