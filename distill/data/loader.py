"""Loader of training batches, prepared ahead on a thread."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from distill.data.collate import Batch
from distill.data.source import Share, Source
from embedcache.errors import RemoteError

_ROWS_AT_ONCE = 8192
_AHEAD = 2

CheckRows = Callable[[NDArray[np.integer]], None]
"""Called with indices of training rows before they are yielded."""


_Item = tuple[NDArray[np.integer] | None, list[Batch]] | BaseException | None
"""Rows to check first, and batches; or an error; None at the end."""
_Queue = queue.Queue[_Item]


class Loader:
    """Iterates over given batches of rows, prepared ahead on a thread.

    Args:
        source: source of the rows.
        batches: index arrays of rows, in training order.
        epoch: their epoch.
        start: skip this many batches at the beginning.
        share: part of every batch that this process encodes.
        pin: put batches into page-locked memory, for a GPU.
        breaks: numbers of batches that are not prepared together with those before them, as they may have to
            wait for their data.
        check: called in the iterating thread with the rows of all batches up to the next break, before the
            first of these is yielded.
        agree: called with the error of a remote, or None, each time that batches were waited for; it raises
            the error, or that of another process that reads the same batches.
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
        check: CheckRows | None = None,
        agree: Callable[[RemoteError | None], None] | None = None,
    ) -> None:
        self._check, self._agree = check, agree
        self._source, self._batches, self._epoch, self._start = source, batches, epoch, start
        self._share, self._pin, self._breaks = share or Share(), pin, breaks
        self._stop, self._checked = threading.Event(), threading.Event()
        self.waited = 0.0
        """Seconds the consumer has waited for batches."""

    def __len__(self) -> int:
        """Return the number of batches that are yielded."""
        return max(0, len(self._batches) - self._start)

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches in order. Errors while preparing them are raised here."""
        ready: _Queue = queue.Queue(maxsize=_AHEAD)
        self._stop.clear()
        thread = threading.Thread(target=self._prepare, args=(ready,), name="loader", daemon=True)
        thread.start()
        exhausted = False
        try:
            while (batches := self._take(ready)) is not None:
                yield from batches
            exhausted = True
        finally:
            self._stop.set()
            if not exhausted:
                # The thread may wait for data that is no longer needed.
                self._source.interrupt()
            thread.join()

    def _take(self, ready: _Queue) -> list[Batch] | None:
        """Return the next batches after their check; None at the end."""
        began = time.perf_counter()
        item = ready.get()
        error = item if isinstance(item, BaseException) else None
        if isinstance(item, tuple) and item[0] is not None and self._check is not None:
            try:
                self._check(item[0])
            except RemoteError as failed:
                error = failed
            self._checked.set()
        self.waited += time.perf_counter() - began
        if self._agree is not None:
            self._agree(error if isinstance(error, RemoteError) else None)
        if error is not None:
            raise error
        return item[1] if isinstance(item, tuple) else None

    def _prepare(self, ready: _Queue) -> None:
        """Prepare batches until all are done, or the iteration stops; runs in a thread."""

        def put(item: _Item) -> None:
            while not self._stop.is_set():
                with suppress(queue.Full):
                    ready.put(item, timeout=0.1)
                    return

        try:
            for part in self._parts():
                rows = np.concatenate([self._batches[number] for number in part]) if self._check else None
                for group in self._groups(part):
                    self._checked.clear()
                    batches = self._source.prepare(group, self._epoch, self._share)
                    put((rows, [batch.pinned() for batch in batches] if self._pin else batches))
                    # Preparing the next window would drop the vectors that the check reads.
                    while (
                        rows is not None and not self._checked.wait(timeout=0.1) and not self._stop.is_set()
                    ):
                        pass
                    rows = None
                    if self._stop.is_set():
                        return
            put(None)
        except BaseException as error:  # noqa: BLE001 - raised again where the batches are consumed
            put(error)

    def _parts(self) -> Iterator[range]:
        """Yield the numbers of the batches between two breaks."""
        end = len(self._batches)
        breaks = sorted(number for number in self._breaks if self._start < number < end)
        for first, last in pairwise([self._start, *breaks, end]):
            if first < last:
                yield range(first, last)

    def _groups(self, part: range) -> Iterator[list[NDArray[np.integer]]]:
        """Yield the batches of a part, grouped for preparation."""
        group: list[NDArray[np.integer]] = []
        for number in part:
            group.append(self._batches[number])
            if number == part[-1] or sum(map(len, group)) >= _ROWS_AT_ONCE:
                yield group
                group = []
