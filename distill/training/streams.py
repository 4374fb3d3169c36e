"""Vectors of a remote that are fetched during the training, window by window."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, chain, pairwise, repeat

import numpy as np
import torch
from numpy.typing import NDArray

from distill.config.models import RunConfig
from distill.data.dataset import DistillDataset
from distill.device import resolve_device, seeded
from distill.training.distributed import is_first_process
from embedcache.live import Computing
from embedcache.share.mirror import StreamedStore


class Streams:
    """Vectors of a remote: fetched window by window, and compared with the live teachers before their use.

    Args:
        dataset: rows and targets.
        config: the resolved configuration.
    """

    def __init__(self, dataset: DistillDataset, config: RunConfig) -> None:
        targets, training = dataset.targets, config.training
        self._order, self._epochs, self._config = dataset.order, training.epochs or 1, config
        self._streams = [
            (store, positions, Computing(model, device=training.device, threads=training.threads))
            for store, positions, model in zip(
                targets.stores, targets.positions, chain([config.teacher_model], repeat(None)), strict=False
            )
            if isinstance(store, StreamedStore)
        ]
        self._starts = [0, *accumulate(len(store.shard_sizes) for store, _, _ in self._streams)]

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self._streams)

    def fetch(self, rows: NDArray[np.integer], epoch: int) -> None:
        """Fetch and check the vectors of a window, and begin to fetch those of the next.

        Only the first of several processes compares, in the thread that trains: loading a model changes
        settings of torch that all threads share.

        Args:
            rows: indices of the training rows of the window.
            epoch: the epoch.

        Raises:
            RemoteError: if the vectors are not the teacher's, or cannot be fetched.
        """
        now, *coming = self._wanted(rows, epoch)
        for number, (store, _, _) in enumerate(self._streams):
            store.want(now[number], *(shards[number] for shards in coming))
        for number, (store, positions, computing) in enumerate(self._streams):
            store.load(now[number])
            if is_first_process():
                self._admit(store, positions[rows].astype(np.int64), computing)

    def _wanted(self, rows: NDArray[np.integer], epoch: int) -> list[list[list[int]]]:
        """Return the numbers of the shards of a window and of the next, for each store."""
        order = self._order
        if order is None:
            return [
                [
                    np.unique(store.shards_at(positions.astype(np.int64))).tolist()
                    for store, positions, _ in self._streams
                ]
            ]
        window = int(order.window_of(rows, epoch).max())
        windows = order.shards(epoch)[window : window + 2]
        if len(windows) == 1 and epoch + 1 < self._epochs:
            windows.append(order.shards(epoch + 1)[0])
        return [
            [
                [shard - first for shard in shards if first <= shard < end]
                for first, end in pairwise(self._starts)
            ]
            for shards in windows
        ]

    def _admit(self, store: StreamedStore, positions: NDArray[np.int64], computing: Computing) -> None:
        # Loading a model may draw random numbers, and the student must not depend on it.
        with seeded(self._config.seed, resolve_device(self._config.training.device)):
            try:
                store.admit(positions, computing)
            except torch.OutOfMemoryError:
                # The teacher does not fit beside the student.
                store.admit(positions, replace(computing, device="cpu"))
