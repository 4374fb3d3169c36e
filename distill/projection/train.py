"""The training of a linear map with the supervised contrastive loss, from vectors and labels alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from distill.data.sampler import permutation
from distill.errors import TrainingError
from distill.losses.supervised_contrastive import supervised_contrastive
from embedcache.codecs import Vectors


@dataclass(frozen=True)
class ProjectionSettings:
    """How a map is trained; the defaults are those of ReAugKD, appendix A.2.

    Attributes:
        tau: temperature of the loss.
        batch_size: rows a step.
        lr: learning rate of AdamW, the same at every step.
        epochs: times that all rows are seen.
        seed: of the first values and of the order of rows.
    """

    tau: float = 0.07
    batch_size: int = 512
    lr: float = 2e-5
    epochs: int = 3
    seed: int = 0


@dataclass(frozen=True)
class TrainedMap:
    """A map, and how its training went.

    Attributes:
        matrix: float32, shape (d, base's d).
        losses: the mean loss of each epoch, over the rows that have one.
        alone: how often a row was left out, as no other row of its batch had its label.
        steps: how often the map was changed.
        moved: norm of the difference to the map it began with, as a share of that one's norm.
    """

    matrix: NDArray[np.float32]
    losses: tuple[float, ...]
    alone: int
    steps: int
    moved: float


def train_map(
    gather: Callable[[NDArray[np.integer]], Vectors],
    labels: NDArray[np.int64],
    shape: tuple[int, int],
    settings: ProjectionSettings,
    on_step: Callable[[int, int], None],
) -> TrainedMap:
    """Train a map of vectors; the same rows, settings and threads give the same map.

    It begins with orthonormal rows drawn by the seed. At full width that keeps all cosines as they are, so
    that what is there of neighbourhoods is not lost to a learning rate as small as the paper's.

    Args:
        gather: returns the vectors of rows by their numbers from 0, float32, shape (rows, base's d).
        labels: int64, shape (n,); the label of each row.
        shape: (d, base's d).
        settings: how.
        on_step: called with rows seen and rows to see.

    Raises:
        TrainingError: if a loss is not finite.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        first_values = torch.nn.init.orthogonal_(torch.empty(shape))
    matrix = first_values.clone().requires_grad_()
    optimizer = torch.optim.AdamW([matrix], lr=settings.lr)
    rows, losses, alone, steps = len(labels), list[float](), 0, 0
    for epoch in range(settings.epochs):
        order, total, counted = permutation(rows, settings.seed, epoch), 0.0, 0
        for first in range(0, rows, settings.batch_size):
            batch = order[first : first + settings.batch_size]
            vectors = torch.from_numpy(gather(batch)) @ matrix.T
            found = supervised_contrastive(vectors, torch.from_numpy(labels[batch]), settings.tau)
            alone += len(batch) - len(found)
            if len(found):
                loss = found.mean()
                if not torch.isfinite(loss):
                    raise TrainingError(
                        f"the loss of rows {first} and on of epoch {epoch} is {float(loss.detach())}: look "
                        "at the vectors with 'embedcache doctor', or lower --lr"
                    )
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                steps += 1
                total += float(found.detach().sum())
                counted += len(found)
            on_step(epoch * rows + first + len(batch), settings.epochs * rows)
        losses.append(total / max(counted, 1))
    trained = matrix.detach()
    moved = float(torch.linalg.norm(trained - first_values) / torch.linalg.norm(first_values))
    if not math.isfinite(moved):
        raise TrainingError(f"the map grew beyond all bounds at --lr {settings.lr:g}: give a lower one")
    return TrainedMap(trained.numpy(), tuple(losses), alone, steps, moved)


def mean_loss(vectors: Vectors, labels: NDArray[np.int64], tau: float) -> float | None:
    """Return the mean loss of rows among each other, without training; None where no row has a partner.

    Args:
        vectors: float32, shape (n, d), of any length.
        labels: int64, shape (n,).
        tau: the temperature.
    """
    found = supervised_contrastive(torch.from_numpy(vectors), torch.from_numpy(labels), tau)
    return float(found.mean()) if len(found) else None
