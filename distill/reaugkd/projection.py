"""Linear map of a teacher's cached vectors that draws rows of one label together (ReAugKD, section 3.1).

The map is trained on cached vectors and labels, with the supervised contrastive loss; no model is loaded. Its
vectors are cached as those of another teacher, ``NAME.projected``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from distill.data.sampler import permutation
from distill.device import cpu_threads
from distill.errors import ConfigError, DataError, TrainingError
from distill.losses.contrastive import supervised_contrastive
from distill.reaugkd.soft_labels import locate_vectors
from embedcache.cache import Cache
from embedcache.codecs import Vectors
from embedcache.corpus.corpus import Corpus
from embedcache.errors import ContractMismatchError
from embedcache.keys import first_occurrences
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.projection import apply_projection, extend, write_derived

LEAST_MOVE = 0.01
"""Relative change of the map below which its training had hardly any effect.

The paper's learning rate and epochs on 2,500 to 4,000 rows give 0.001 to 0.005.
"""

CLEAR_FALL = 0.02
"""Fall of the neighbours' accuracy that is reported."""

_SAMPLE_ROWS = 2000
_SAMPLE_STREAM = 2**31 - 4
"""Epoch number of the permutation that draws the sample; no training reaches it."""


class ProjectionSettings(BaseModel):
    """Training of the map; the defaults are those of ReAugKD, appendix A.2.

    Attributes:
        tau: temperature of the loss.
        batch_size: rows per step.
        lr: learning rate of AdamW, constant.
        epochs: passes over the rows.
        seed: seed of the initial map and of the order of rows.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    tau: float = Field(default=0.07, gt=0)
    batch_size: int = Field(default=512, gt=1)
    lr: float = Field(default=2e-5, gt=0)
    epochs: int = Field(default=3, gt=0)
    seed: int = Field(default=0, ge=0, le=10**9)


@dataclass(frozen=True)
class MapTraining:
    """Figures of the training of a map.

    Attributes:
        losses: mean loss of each epoch, over the rows that have one.
        alone: times that no other row of the batch had a row's label, so the row had no loss.
        steps: optimizer steps.
        moved: norm of the change of the map, relative to the norm of the initial map.
    """

    losses: tuple[float, ...]
    alone: int
    steps: int
    moved: float


@dataclass(frozen=True)
class Projection:
    """Projected teacher.

    Attributes:
        teacher: its name in the cache.
        contract: id of its contract.
        base: teacher whose vectors are mapped.
        corpus: corpus whose labels it was trained with.
        dimension: width of its vectors.
        labels: label -> training rows, most rows first.
        training: figures of its training.
        sample: training rows that the two accuracies were measured on.
        base_accuracy, accuracy: leave-one-out accuracy of the nearest neighbours before and after, 0 to 1.
        notes: problems of the map, and ways to train a better one.
        written: vectors added to the cache.
    """

    teacher: str
    contract: str
    base: str
    corpus: str
    dimension: int
    labels: dict[str, int]
    training: MapTraining
    sample: int
    base_accuracy: float
    accuracy: float
    notes: tuple[str, ...]
    written: int


def project(
    cache: Cache | str | Path,
    *,
    teacher: str | None = None,
    corpus: str | None = None,
    dim: int | None = None,
    name: str | None = None,
    settings: ProjectionSettings | None = None,
    threads: int | None = None,
    progress: Progress = NO_PROGRESS,
) -> Projection:
    """Train a projection with the labels of a corpus and add its vectors to the cache.

    Args:
        cache: the cache, or its folder.
        teacher: name of the teacher; default: the only one of the cache.
        corpus: name of the corpus; default: the only one of the cache.
        dim: width of the projected vectors, at most the teacher's; default: the teacher's.
        name: name of the projected teacher; default: the teacher's with ``.projected``.
        settings: training settings.
        threads: CPU threads; default: all cores.
        progress: progress over the rows.

    Raises:
        ConfigError: if ``dim`` exceeds the teacher's width, or ``name`` is another teacher's.
        DataError: if the corpus has no labels of two classes, or vectors are missing.
        InputError: if there is no such corpus or teacher, or its output is no embedding.
        TrainingError: if the loss or the map is not finite; nothing is written then.
    """
    opened = cache if isinstance(cache, Cache) else Cache(cache)
    settings = settings or ProjectionSettings()
    base, found = opened.teacher(teacher), opened.corpus(corpus)
    width = base.contract.dimension
    if dim is not None and not 1 <= dim <= width:
        raise ConfigError(f"--dim {dim}: teacher {base.name!r} has {width} dimensions, expected 1 to {width}")
    keys = found.keys()
    rows = np.flatnonzero(first_occurrences([keys]))
    names, labels = _class_numbers(found, rows)
    store, places = locate_vectors(opened, base, keys[rows], found)

    def gather(indices: NDArray[np.integer]) -> Vectors:
        return store.vectors(places[indices])

    with cpu_threads(threads):
        matrix, training = train_map(gather, labels, (dim or width, width), settings, progress)
    name = name or f"{base.name}.projected"
    note = ", ".join(f"{key} {value}" for key, value in settings.model_dump().items())
    try:
        derived = write_derived(opened, base, name, matrix, f"of {base.name}, corpus {found.name}, {note}")
    except ContractMismatchError as error:
        raise ConfigError(
            f"--name {name}: the cache has another teacher of that name: give another --name, the settings "
            "that one was made with, or remove it with 'embedcache rm'"
        ) from error
    written = extend(opened, derived, found, progress)
    sample = np.sort(permutation(len(labels), settings.seed, _SAMPLE_STREAM, first=_SAMPLE_ROWS))
    vectors, counts = gather(sample), np.bincount(labels)
    before, after = (
        neighbour_accuracy(one, labels[sample]) for one in (vectors, apply_projection(matrix, vectors))
    )
    return Projection(
        teacher=derived.name,
        contract=derived.contract.id,
        base=base.name,
        corpus=found.name,
        dimension=derived.contract.dimension,
        labels={names[at]: int(counts[at]) for at in np.argsort(-counts, kind="stable")},
        training=training,
        sample=len(sample),
        base_accuracy=before,
        accuracy=after,
        notes=tuple(_notes(training, before - after)),
        written=written,
    )


def _notes(training: MapTraining, fall: float) -> Iterator[str]:
    """Yield the problems of a map after which the neighbours' accuracy is lower by ``fall``."""
    if not training.steps:
        yield "the map was not trained: no batch had two rows of one label; raise --batch-size"
    elif training.moved < LEAST_MOVE:
        yield "the map hardly moved: use more --epochs or a higher --lr (1e-3), and another --name"
    if fall > CLEAR_FALL:
        yield (
            "fewer nearest neighbours share the label: use a larger --dim, a lower --lr or fewer --epochs, "
            "and another --name"
        )


def train_map(
    gather: Callable[[NDArray[np.integer]], Vectors],
    labels: NDArray[np.int64],
    shape: tuple[int, int],
    settings: ProjectionSettings,
    progress: Progress = NO_PROGRESS,
) -> tuple[NDArray[np.float32], MapTraining]:
    """Train a map, float32 of ``shape``; equal rows, settings and threads give the same map, bit for bit.

    The initial map has random orthonormal rows. At full width it keeps all cosines, so neighbourhoods survive
    a learning rate as small as the paper's.

    Args:
        gather: returns the vectors of rows by number, float32, shape (rows, d of the base).
        labels: int64, shape (n,).
        shape: (d, d of the base).
        settings: training settings.
        progress: progress over the rows.

    Raises:
        TrainingError: if the loss or the map is not finite.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        initial = torch.nn.init.orthogonal_(torch.empty(shape))
    matrix = initial.clone().requires_grad_()
    optimizer = torch.optim.AdamW([matrix], lr=settings.lr)
    rows, losses, alone, steps = len(labels), list[float](), 0, 0
    progress.phase("train", settings.epochs * rows)
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
                        f"loss {float(loss.detach())} at row {first} of epoch {epoch}: check the vectors "
                        "with 'embedcache doctor', or lower --lr"
                    )
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                steps += 1
                total += float(found.detach().sum())
                counted += len(found)
            progress.advance(len(batch))
        losses.append(total / max(counted, 1))
    trained = matrix.detach()
    moved = float(torch.linalg.norm(trained - initial) / torch.linalg.norm(initial))
    if not math.isfinite(moved):
        raise TrainingError(f"the map is not finite after training at --lr {settings.lr:g}: lower it")
    return trained.numpy(), MapTraining(tuple(losses), alone, steps, moved)


def neighbour_accuracy(vectors: Vectors, labels: NDArray[np.int64], neighbours: int = 10) -> float:
    """Return the share of rows whose label wins the vote of their nearest other rows by cosine.

    Args:
        vectors: float32, shape (n, d), of any length.
        labels: int64, shape (n,); among labels with equal votes the smallest wins.
        neighbours: voters, at most n - 1.
    """
    from scipy.stats import mode
    from sklearn.neighbors import NearestNeighbors

    searched = NearestNeighbors(n_neighbors=min(neighbours, len(vectors) - 1), metric="cosine").fit(vectors)
    # Without queries scikit-learn leaves each row out of its own neighbours.
    voted = mode(labels[searched.kneighbors(return_distance=False)], axis=1).mode
    return float((voted == labels).mean())


def _class_numbers(corpus: Corpus, rows: NDArray[np.int64]) -> tuple[list[str], NDArray[np.int64]]:
    """Return the names of the labels, and the number of each row's label."""
    if not corpus.info.has_labels:
        raise DataError(f"{corpus.title} has no labels: build it with --label-column")
    values = corpus.labels(rows)
    names, numbers = np.unique(np.array(values), return_inverse=True)
    if isinstance(values[0], float) or len(names) < 2:
        raise DataError(
            f"{corpus.title} has {len(names)} different labels such as {values[0]}, expected two or more "
            "classes: build it with another --label-column"
        )
    return [str(one) for one in names.tolist()], numbers.astype(np.int64)
