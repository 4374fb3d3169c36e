"""The loader: batches prepared ahead on a thread of its own."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from distill.data.collate import Batch
from distill.data.source import Share, Source
from embedcache.errors import RemoteError

_ROWS_AT_ONCE = 8192
_AHEAD = 2

CheckRows = Callable[[NDArray[np.integer]], None]
"""Called with places among the rows trained on, before they are yielded."""


@dataclass(frozen=True)
class _Question:
    """Asks the thread that trains to check rows before they are yielded.

    Attributes:
        rows: the rows.
        answered: set once they are checked.
    """

    rows: NDArray[np.integer]
    answered: threading.Event = field(default_factory=threading.Event)


_Item = list[Batch] | _Question | BaseException | None
_Queue = queue.Queue[_Item]


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
        check: called with the rows of all batches up to the next break before the first of these is yielded,
            in the thread that iterates; None: nothing is checked.
        agree: called with the error of a remote, or None, each time that batches were waited for; it raises
            the error, or that of another process which reads the same batches.
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
        self.waited = 0.0
        """Seconds the consumer has waited for batches."""

    def __len__(self) -> int:
        """Return the number of batches that are yielded."""
        return max(0, len(self._batches) - self._start)

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches in order. Errors met while preparing them are raised here."""
        ready: _Queue = queue.Queue(maxsize=_AHEAD)
        stop = threading.Event()
        thread = threading.Thread(target=self._prepare, args=(ready, stop), name="loader", daemon=True)
        thread.start()
        exhausted = False
        try:
            while True:
                began = time.perf_counter()
                item = self._next(ready)
                self.waited += time.perf_counter() - began
                if self._agree is not None:
                    self._agree(item if isinstance(item, RemoteError) else None)
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

    def _next(self, ready: _Queue) -> list[Batch] | BaseException | None:
        """Return the next batches, an error, or None at the end; answer questions that come before."""
        item = ready.get()
        while isinstance(item, _Question):
            if self._check is not None:
                try:
                    self._check(item.rows)
                except RemoteError as error:
                    return error
            item.answered.set()
            item = ready.get()
        return item

    def _prepare(self, ready: _Queue, stop: threading.Event) -> None:
        """Prepare batches until all are done, or until ``stop`` is set; called in a thread of its own."""

        def put(item: _Item) -> None:
            while not stop.is_set():
                with suppress(queue.Full):
                    ready.put(item, timeout=0.1)
                    return

        try:
            for part in self._parts():
                is_asked = self._check is None
                for group in self._groups(part):
                    batches = self._source.prepare(group, self._epoch, self._share)
                    if not is_asked:
                        # Not earlier: the source now knows which data are needed, and deletes others first.
                        question = _Question(np.concatenate([self._batches[number] for number in part]))
                        put(question)
                        while not question.answered.wait(timeout=0.1):
                            if stop.is_set():
                                return
                        is_asked = True
                    put([batch.pinned() for batch in batches] if self._pin else batches)
                    if stop.is_set():
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
        """Yield the batches of a part, as many together as are prepared at once."""
        group: list[NDArray[np.integer]] = []
        rows = 0
        for number in part:
            group.append(self._batches[number])
            rows += len(group[-1])
            if rows >= _ROWS_AT_ONCE:
                yield group
                group, rows = [], 0
        if group:
            yield group
