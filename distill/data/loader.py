"""The loader: batches prepared ahead on a thread of its own."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from distill.data.collate import Batch
from distill.data.source import Share, Source

_ROWS_AT_ONCE = 8192
_AHEAD = 2


class Loader:
    """Iterates over given batches of rows.

    Args:
        source: what the rows are.
        batches: index arrays of rows, in training order.
        epoch: the epoch they are of.
        start: how many of them to leave out at the beginning: they have been trained on.
        share: which part of every batch this process encodes.
        pin: put batches into page-locked memory, for a GPU.
        breaks: numbers of batches that are not prepared together with those before them, which would have to
            wait for their data.
    """

    def __init__(
        self,
        source: Source,
        batches: Sequence[NDArray[np.integer]],
        *,
        epoch: int = 0,
        start: int = 0,
        share: Share | None = None,
        pin: bool = False,
        breaks: Collection[int] = (),
    ) -> None:
        self._source, self._batches, self._epoch, self._start = source, batches, epoch, start
        self._share, self._pin, self._breaks = share or Share(), pin, breaks
        self.waited = 0.0
        """Seconds the consumer has waited for batches."""

    def __len__(self) -> int:
        """Return the number of batches that are yielded."""
        return max(0, len(self._batches) - self._start)

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches in order. Errors met while preparing them are raised here."""
        ready: queue.Queue[list[Batch] | BaseException | None] = queue.Queue(maxsize=_AHEAD)
        stop = threading.Event()

        def put(item: list[Batch] | BaseException | None) -> None:
            while not stop.is_set():
                with suppress(queue.Full):
                    ready.put(item, timeout=0.1)
                    return

        def prepare() -> None:
            try:
                for group in self._groups():
                    batches = self._source.prepare(group, self._epoch, self._share)
                    put([batch.pinned() for batch in batches] if self._pin else batches)
                    if stop.is_set():
                        return
                put(None)
            except BaseException as error:  # noqa: BLE001 - raised again where the batches are consumed
                put(error)

        thread = threading.Thread(target=prepare, name="loader", daemon=True)
        thread.start()
        exhausted = False
        try:
            while True:
                began = time.perf_counter()
                item = ready.get()
                self.waited += time.perf_counter() - began
                if item is None:
                    exhausted = True
                    return
                if isinstance(item, BaseException):
                    raise item
                yield from item
        finally:
            stop.set()
            if not exhausted:
                # It may wait for data that nobody needs any more.
                self._source.interrupt()
            thread.join()

    def _groups(self) -> Iterator[list[NDArray[np.integer]]]:
        group: list[NDArray[np.integer]] = []
        rows = 0
        for number in range(self._start, len(self._batches)):
            group.append(self._batches[number])
            rows += len(group[-1])
            if rows >= _ROWS_AT_ONCE or number + 1 in self._breaks:
                yield group
                group, rows = [], 0
        if group:
            yield group
