"""Loader of training batches, prepared ahead on a thread."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from distill.data.collate import Batch
from distill.data.source import Share, Source

_ROWS_AT_ONCE = 8192
_AHEAD = 2

_Queue = queue.Queue[list[Batch] | BaseException | None]


class Loader:
    """Iterates over given batches of rows, prepared ahead on a thread.

    Args:
        source: source of the rows.
        batches: index arrays of rows, in training order.
        epoch: their epoch.
        share: part of every batch that this process encodes.
        pin: put batches into page-locked memory, for a GPU.
    """

    def __init__(
        self,
        source: Source,
        batches: Sequence[NDArray[np.integer]],
        *,
        epoch: int = 0,
        share: Share | None = None,
        pin: bool = False,
    ) -> None:
        self._source, self._batches, self._epoch = source, batches, epoch
        self._share, self._pin = share or Share(), pin
        self._stop = threading.Event()
        self.waited = 0.0
        """Seconds the consumer has waited for batches."""

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches in order. Errors while preparing them are raised here."""
        ready: _Queue = queue.Queue(maxsize=_AHEAD)
        self._stop.clear()
        thread = threading.Thread(target=self._prepare, args=(ready,), name="loader", daemon=True)
        thread.start()
        try:
            while True:
                began = time.perf_counter()
                batches = ready.get()
                self.waited += time.perf_counter() - began
                if batches is None:
                    return
                if isinstance(batches, BaseException):
                    raise batches
                yield from batches
        finally:
            self._stop.set()
            thread.join()

    def _prepare(self, ready: _Queue) -> None:
        """Prepare batches until all are done, or the iteration stops; runs in a thread."""
        try:
            for group in self._groups():
                batches = self._source.prepare(group, self._epoch, self._share)
                self._put(ready, [batch.pinned() for batch in batches] if self._pin else batches)
                if self._stop.is_set():
                    return
            self._put(ready, None)
        except BaseException as error:  # noqa: BLE001 - raised again where the batches are consumed
            self._put(ready, error)

    def _put(self, ready: _Queue, item: list[Batch] | BaseException | None) -> None:
        while not self._stop.is_set():
            with suppress(queue.Full):
                ready.put(item, timeout=0.1)
                return

    def _groups(self) -> Iterator[list[NDArray[np.integer]]]:
        """Yield the batches, grouped for preparation."""
        group: list[NDArray[np.integer]] = []
        for batch in self._batches:
            group.append(batch)
            if sum(map(len, group)) >= _ROWS_AT_ONCE:
                yield group
                group = []
        if group:
            yield group
