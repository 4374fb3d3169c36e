"""How often the graph finds what exact search finds."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from distill.knowledge_base.index import Found, NeighbourIndex
from embedcache.codecs import Vectors

_ROUNDING = 1e-6
"""Cosines of two ways of summing may differ by so much."""

_MOVE = 0.3
"""How far a row is moved to be searched for; its cosine with itself is then about 0.96."""


@dataclass(frozen=True)
class Recall:
    """The graph beside exact search.

    Attributes:
        queries: how many vectors were searched for.
        k: neighbours of each.
        recall: share of the k nearest that the graph finds, 0 to 1.
        as_near: share of its neighbours that are as near as the k-th nearest. Rows of nearly the same vector
            are as good as each other, so this is what matters to a vote; it is never below ``recall``.
        seconds: time of a query in the graph.
        exact_seconds: time of a query of exact search.
    """

    queries: int
    k: int
    recall: float
    as_near: float
    seconds: float
    exact_seconds: float

    def to_json(self) -> dict[str, object]:
        """Return the figures as a JSON object."""
        return asdict(self)


@dataclass(frozen=True)
class BothSearches:
    """What the graph has found, and what exact search has, with the seconds that each took."""

    found: Found
    exact: Found
    seconds: float
    exact_seconds: float


def measure_recall(index: NeighbourIndex, queries: Vectors, k: int) -> Recall:
    """Compare the graph with exact search; arguments as for :func:`search_both`."""
    return recall_of(index, queries, search_both(index, queries, k))


def search_both(index: NeighbourIndex, queries: Vectors, k: int) -> BothSearches:
    """Search in the graph, and by comparing with every vector.

    Args:
        index: the index, of k rows at least.
        queries: unit vectors, float32 of shape (n, d), n above 0.
        k: neighbours of each.
    """
    # What a process does once, such as starting threads, is no part of a search.
    index.search(queries[:1], k)
    began = time.perf_counter()
    found = index.search(queries, k)
    searched = time.perf_counter()
    exact = index.exact(queries, k)
    return BothSearches(found, exact, searched - began, time.perf_counter() - searched)


def recall_of(index: NeighbourIndex, queries: Vectors, both: BothSearches) -> Recall:
    """Return what the graph has found of the nearest, given what :func:`search_both` takes and returns."""
    rows, (true_rows, true_cosines) = both.found[0], both.exact
    hits = are_among(rows, true_rows)
    places = np.maximum(rows, 0)
    own = np.stack([index.vectors(near) @ query for near, query in zip(places, queries, strict=True)])
    near = (rows >= 0) & (own >= true_cosines[:, -1:] - _ROUNDING)
    return Recall(
        queries=len(queries),
        k=rows.shape[1],
        recall=float(hits.mean()),
        as_near=float((hits | near).mean()),
        seconds=both.seconds / len(queries),
        exact_seconds=both.exact_seconds / len(queries),
    )


def are_among(rows: NDArray[np.int64], true_rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which of the rows found (n, k) are among the nearest (n, k), bool of shape (n, k)."""
    found: NDArray[np.bool_] = (rows[:, :, None] == true_rows[:, None, :]).any(axis=2)
    return found


def moved_rows(index: NeighbourIndex, count: int, seed: int) -> Vectors:
    """Return rows of an index, each moved a little at random, as unit vectors (at most ``count``, d).

    As they are, they would find themselves at once, and whom they are linked with.
    """
    rng = np.random.default_rng(seed)
    rows = np.sort(rng.permutation(len(index))[:count])
    noise = rng.standard_normal((len(rows), index.dimension)).astype(np.float32)
    noise *= _MOVE / np.linalg.norm(noise, axis=1, keepdims=True)
    moved = index.vectors(rows) + noise
    found: Vectors = moved / np.linalg.norm(moved, axis=1, keepdims=True)
    return found
