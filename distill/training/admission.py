"""Comparison of a remote's vectors with the live teacher before a run trains on them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from distill.training.device import resolve_device, seeded
from distill.training.processes import is_first_process
from embedcache.live import Computing
from embedcache.share.mirror import StreamedStore

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from distill.config.models import RunConfig
    from distill.data.dataset import DistillDataset
    from distill.data.loader import CheckRows


def admit_first_window(dataset: DistillDataset, config: RunConfig) -> CheckRows | None:
    """Compare the vectors of the first window with the live teacher, and return the check of later windows.

    Only the first of several processes compares, in the thread that trains: loading a model changes settings
    of torch that all threads share.

    Args:
        dataset: rows and targets.
        config: the resolved configuration.

    Returns:
        A function of places among the rows trained on, which raises as this one; None if there are no later
        windows.

    Raises:
        RemoteError: if the vectors are not the teacher's, or cannot be fetched.
    """
    targets, training = dataset.targets, config.training
    models = [config.teacher_model, *(None for _ in targets.teachers[1:])]
    streams = [
        (store, positions, Computing(model, device=training.device, threads=training.threads))
        for store, positions, model in zip(targets.stores, targets.positions, models, strict=True)
        if isinstance(store, StreamedStore)
    ]
    if not streams or not is_first_process():
        return None

    def admit(rows: NDArray[np.integer]) -> None:
        # Loading a model may draw random numbers, and the student must not depend on it.
        with seeded(config.seed, resolve_device(training.device)):
            for store, positions, computing in streams:
                places = positions[rows].astype(np.int64)
                try:
                    store.admit(places, computing)
                except torch.OutOfMemoryError:
                    # The teacher does not fit beside the student.
                    store.admit(places, replace(computing, device="cpu"))

    windows = dataset.order.windows(0)
    admit(np.arange(len(dataset)) if windows is None else windows.window(0))
    return None if windows is None else admit
