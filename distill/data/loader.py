"""The loader: batches of token ids with their cached vectors, prepared ahead on a thread of its own."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np
import torch
from numpy.typing import NDArray

from distill.data.collate import Batch, pad_rows
from distill.data.dataset import DistillDataset
from distill.data.tokens import TokenArrays

_GATHER_ROWS = 8192
_AHEAD = 2


class Loader:
    """Iterates over given batches of dataset rows.

    Vectors are gathered for several batches at once, which spreads the cost of finding each row's shard.

    Args:
        dataset: rows and vectors.
        tokens: the corpus's token ids for the student's tokenizer.
        batches: index arrays into ``dataset.rows``, in training order.
    """

    def __init__(
        self, dataset: DistillDataset, tokens: TokenArrays, batches: Sequence[NDArray[np.integer]]
    ) -> None:
        self._dataset, self._tokens, self._batches = dataset, tokens, batches
        self.waited = 0.0
        """Seconds the consumer has waited for batches."""

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self._batches)

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
                    put(self._gather(group))
                    if stop.is_set():
                        return
                put(None)
            except BaseException as error:  # noqa: BLE001 - raised again where the batches are consumed
                put(error)

        thread = threading.Thread(target=prepare, name="loader", daemon=True)
        thread.start()
        try:
            while True:
                began = time.perf_counter()
                item = ready.get()
                self.waited += time.perf_counter() - began
                if item is None:
                    return
                if isinstance(item, BaseException):
                    raise item
                yield from item
        finally:
            stop.set()
            thread.join()

    def _groups(self) -> Iterator[list[NDArray[np.integer]]]:
        group: list[NDArray[np.integer]] = []
        rows = 0
        for batch in self._batches:
            group.append(batch)
            rows += len(batch)
            if rows >= _GATHER_ROWS:
                yield group
                group, rows = [], 0
        if group:
            yield group

    def _gather(self, group: list[NDArray[np.integer]]) -> list[Batch]:
        dataset = self._dataset
        targets = torch.from_numpy(dataset.targets.gather(np.concatenate(group)))
        parts = torch.split(targets, [len(batch) for batch in group])
        out = []
        for batch, part in zip(group, parts, strict=True):
            rows = dataset.rows[batch]
            out.append(Batch(*pad_rows(self._tokens, rows), targets=part, rows=rows))
        return out
