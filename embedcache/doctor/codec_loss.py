"""Codec comparison: size and loss of each codec on the same vectors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embedcache.codecs import CODEC_NAMES, Vectors, get_codec, measure, pq
from embedcache.doctor.vectors import unit
from embedcache.errors import InputError

MOST_QUERIES = 500
NEIGHBOURS = 10


@dataclass(frozen=True)
class CodecLoss:
    """Size and loss of a codec; all figures are None where the vectors do not fit it.

    Attributes:
        codec: its name.
        bytes_per_vector: bytes of a vector in a shard, its scale included.
        mean_cosine, worst_cosine: between vectors before and after.
        neighbours_kept: share of the ten nearest neighbours that stay.
        note: reason why nothing was measured.
    """

    codec: str
    bytes_per_vector: int | None = None
    mean_cosine: float | None = None
    worst_cosine: float | None = None
    neighbours_kept: float | None = None
    note: str = ""


def compare_codecs(vectors: Vectors, seed: int = 0) -> Iterator[CodecLoss]:
    """Yield the loss of every codec on one half of the vectors; ``pq`` is trained on the other half.

    Args:
        vectors: float32, shape (n, d), not zero; n is at least 24.
        seed: seed of the halves and the codebook.
    """
    order = np.random.default_rng(seed).permutation(len(vectors))
    scored, training = np.array_split(vectors[order], 2)
    for name in CODEC_NAMES:
        try:
            codec = pq.train(training, seed=seed) if name == pq.NAME else get_codec(name)
            stored = codec.encode(scored)
        except InputError as error:
            yield CodecLoss(name, note=str(error))
            continue
        size, cosines = codec.bytes_per_row(vectors.shape[1]), measure(codec, scored, stored)
        kept = neighbours_kept(unit(scored), unit(codec.decode(stored)))
        yield CodecLoss(name, size, cosines["mean_cosine"], cosines["worst_cosine"], kept)


def neighbours_kept(before: Vectors, after: Vectors) -> float:
    """Return the share of the ten nearest neighbours of 500 rows that stay; rows have length one."""
    old, new = map(_neighbours, (before, after))
    return float((new[:, :, None] == old[:, None, :]).any(axis=2).mean())


def _neighbours(vectors: Vectors) -> NDArray[np.int64]:
    cosines = vectors[:MOST_QUERIES] @ vectors.T
    np.fill_diagonal(cosines, -np.inf)
    nearest: NDArray[np.int64] = np.argpartition(-cosines, NEIGHBOURS, axis=1)[:, :NEIGHBOURS]
    return nearest
