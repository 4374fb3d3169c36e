"""A corpus joined with a teacher's cached vectors: what a student is trained on. Nothing is copied."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distill.data.sampler import permutation
from distill.errors import DataError
from embedcache.cache import Cache, CachedTeacher
from embedcache.corpus.corpus import Corpus
from embedcache.key_index import KeyIndex
from embedcache.store import VectorStore

_HELD_OUT_STREAM = 2**31 - 1
"""Epoch number of the permutation that picks held-out rows; no training reaches it."""


@dataclass(frozen=True)
class DistillDataset:
    """Rows of a corpus and where their vectors lie.

    Attributes:
        corpus: the corpus.
        teacher: the teacher the vectors are of.
        store: the teacher's vectors.
        rows: int64, shape (n,); the training rows: distinct texts, held-out ones left out.
        positions: int64, shape (n,); where the row's vector lies in ``store``.
        held_out: int64; rows kept out of training.
        duplicates: rows left out because their text stands earlier in the corpus.
    """

    corpus: Corpus
    teacher: CachedTeacher
    store: VectorStore
    rows: NDArray[np.int64]
    positions: NDArray[np.int64]
    held_out: NDArray[np.int64]
    duplicates: int

    def __len__(self) -> int:
        """Return the number of training rows."""
        return len(self.rows)


def open_dataset(
    cache: Cache,
    *,
    corpus: str | None = None,
    teacher: str | None = None,
    held_out: int = 0,
    limit: int | None = None,
    seed: int = 0,
) -> DistillDataset:
    """Join a corpus of ``cache`` with a teacher's vectors.

    Args:
        cache: the cache.
        corpus, teacher: names; either may be left out where the cache holds one.
        held_out: how many distinct rows to keep out of training, chosen by ``seed``.
        limit: train on the first so many distinct rows only.
        seed: chooses the held-out rows.

    Raises:
        DataError: if vectors of the corpus are missing, or too few rows are left to train on.
    """
    chosen = cache.corpus(corpus)
    cached = cache.teacher(teacher)
    store = cache.store(cached.contract)
    keys = chosen.keys()
    distinct = KeyIndex(keys).first_places()
    duplicates = len(keys) - len(distinct)
    if limit is not None:
        distinct = distinct[:limit]
    positions = store.locate(keys[distinct])
    missing = int((positions < 0).sum())
    if missing:
        raise DataError(
            f"{missing} of {len(distinct)} texts of corpus {chosen.name!r} have no vector of teacher "
            f"{cached.name!r} yet: run 'embedcache build' for this corpus and teacher (it encodes only what "
            "is missing)"
        )
    if held_out * 2 > len(distinct):
        raise DataError(
            f"corpus {chosen.name!r} has {len(distinct)} distinct texts; {held_out} held out leave too few "
            "to train on: use a larger corpus or a smaller evaluation.held_out"
        )
    shuffled = permutation(len(distinct), seed, _HELD_OUT_STREAM)
    kept = np.sort(shuffled[held_out:])
    return DistillDataset(
        corpus=chosen,
        teacher=cached,
        store=store,
        rows=distinct[kept],
        positions=positions[kept],
        held_out=distinct[np.sort(shuffled[:held_out])],
        duplicates=duplicates,
    )
