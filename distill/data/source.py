"""Sources of batches: rows with the texts a student encodes, and the targets of a teacher."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from distill.data.collate import Batch, pad_texts
from distill.data.dataset import DistillDataset
from distill.data.sampler import BUCKET_BATCHES, EpochBatches, Lengths, epoch_batches
from distill.data.tokens import RowLengths, TokenArrays
from distill.data.windows import windowed_batches


@dataclass(frozen=True)
class Share:
    """Part of every step that this process encodes.

    Attributes:
        process: the number of this process.
        processes: number of processes.
    """

    process: int = 0
    processes: int = 1

    def of(self, rows: int) -> tuple[slice, int]:
        """Return this process's part of a step of ``rows`` rows, and the number of its rows that count.

        Parts differ by one row at most. A process without a row repeats the first one, which does not count:
        every process has to take part in a step.
        """
        start, end = (number * rows // self.processes for number in (self.process, self.process + 1))
        return (slice(start, end), end - start) if start < end else (slice(0, 1), 0)


class Source(Protocol):
    """Rows to train on."""

    @property
    def lengths(self) -> Lengths:
        """The tokens of each row, by which rows of like length are put together."""
        ...

    def batches(self, batch_size: int, *, seed: int, epoch: int) -> EpochBatches:
        """Return the batches of an epoch, in the order they are trained on; every row stands in one.

        Args:
            batch_size: rows a batch; the last one may be smaller.
            seed, epoch: these determine the order.
        """
        ...

    def fetch(self, batches: Sequence[NDArray[np.integer]], epoch: int) -> None:
        """Have all that ``prepare`` needs for the batches of a window; called by the training thread.

        Raises:
            RemoteError: if a remote does not give it, or gives another teacher's vectors.
        """
        ...

    def prepare(self, batches: Sequence[NDArray[np.integer]], epoch: int, share: Share) -> list[Batch]:
        """Return this process's part of each of several steps.

        Args:
            batches: the rows of each step, counted from 0 to the number of ``lengths``.
            epoch: the epoch they are of.
            share: the part of a step that this process encodes.
        """
        ...


@dataclass(frozen=True)
class DistillSource:
    """Rows of a corpus, the views of them that a student encodes, and their targets.

    Attributes:
        dataset: rows and targets.
        views: the token ids of each view, the first of them the view that the teacher encoded.
        texts: V, the views of a row that are encoded in one step. With more views than V, the last view
            alternates by row and epoch.
        ahead: fetches the vectors of rows, indices of training rows, of an epoch; None where all are here.
        bucket_batches: batches a bucket of rows of like length; 1: batches are random rows.
    """

    dataset: DistillDataset
    views: tuple[TokenArrays, ...]
    texts: int = 1
    ahead: Callable[[NDArray[np.integer], int], None] | None = None
    bucket_batches: int = BUCKET_BATCHES

    @property
    def lengths(self) -> RowLengths:
        """The tokens of each row in its first view."""
        return RowLengths(self.views[0], self.dataset.rows)

    def batches(self, batch_size: int, *, seed: int, epoch: int) -> EpochBatches:
        """Return the batches of an epoch in the dataset's order; see ``Source``."""
        order, lengths = self.dataset.order, self.lengths
        stream = {"seed": seed, "epoch": epoch, "bucket_batches": self.bucket_batches}
        if order is None:
            return epoch_batches(lengths, batch_size, **stream)
        return windowed_batches(order.windows(epoch), lengths, batch_size, **stream)

    def fetch(self, batches: Sequence[NDArray[np.integer]], epoch: int) -> None:
        """Fetch and check the vectors of a window; see ``Source``."""
        if self.ahead is not None:
            self.ahead(np.concatenate(batches), epoch)

    def prepare(self, batches: Sequence[NDArray[np.integer]], epoch: int, share: Share) -> list[Batch]:
        """Return this process's part of each of several steps; see ``Source``.

        Vectors are gathered for all of them at once, which spreads the cost of finding each row's shard.
        """
        together = np.concatenate(batches)
        targets = torch.from_numpy(self.dataset.targets.gather(together))
        parts = torch.split(targets, [len(batch) for batch in batches])
        made = []
        for batch, part in zip(batches, parts, strict=True):
            rows = self.dataset.rows[batch]
            own, counted = share.of(len(rows))
            ids, mask, types = pad_texts(self.views, self._which(rows[own], epoch), rows[own])
            numbers = torch.from_numpy(rows.astype(np.int64))
            tokens = int(self.views[0].lengths(rows).sum())
            made.append(Batch(ids, mask, self.texts, numbers, part, own.start, counted, tokens, types))
        return made

    def _which(self, rows: NDArray[np.integer], epoch: int) -> NDArray[np.int64]:
        which = np.tile(np.arange(self.texts)[:, None], len(rows))
        others = len(self.views) - self.texts + 1
        if self.texts > 1 and others > 1:
            which[-1] += (rows.astype(np.int64) + epoch) % others
        return which
