"""Ranks of relevant documents by exact search, and the measures that rest on them.

A query ranks all documents by cosine; nothing is approximated. Documents whose cosines differ by less than
float32 can tell are tied, and every measure is then its expected value over all orders of the tied
documents, in closed form (McSherry and Najork, "Computing Information Retrieval Performance Measures
Efficiently in the Presence of Tied Scores", ECIR 2008). So a model that gives every text the same vector gets
what guessing gets, and nothing depends on the order of the lines of a file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distill.vectors import unit

SMALLEST_DIFFERENCE = 1e-6
"""Cosines of float32 vectors are exact to about 1e-7: nearer ones are tied."""

# Cosines held at once, as float32: 256 MB.
_BLOCK = 64_000_000


@dataclass(frozen=True)
class Standing:
    """Where the relevant documents of one query stand.

    Attributes:
        better: (r,) int64, how many documents are more similar than each relevant one.
        tied: (r,) int64, how many are as similar as it, itself among them.
        first: how many relevant documents are as similar as the most similar one of them.
        gains: (r,) float64, how relevant each one is, above zero.
    """

    better: NDArray[np.int64]
    tied: NDArray[np.int64]
    first: int
    gains: NDArray[np.float64]

    def hit(self, k: int) -> float:
        """Return the probability that a relevant document is among the first ``k``."""
        better, tied = self._best()
        open_places = min(max(k - better, 0), tied)
        missed = 1.0
        for place in range(open_places):
            missed *= max(tied - self.first - place, 0) / (tied - place)
        return 1 - missed

    def recall(self, k: int) -> float:
        """Return the expected share of the relevant documents that are among the first ``k``."""
        return float(np.clip((k - self.better) / self.tied, 0, 1).mean())

    def reciprocal_rank(self) -> float:
        """Return the expected reciprocal rank of the first relevant document."""
        better, tied = self._best()
        place = np.arange(1, tied - self.first + 2)
        # Of the tied documents, the one at ``place`` is relevant although none before it was.
        hazard = self.first / (tied - place + 1)
        until = np.concatenate([[1.0], np.cumprod(1 - hazard[:-1])])
        return float((until * hazard / (better + place)).sum())

    def ndcg(self, k: int) -> float:
        """Return the expected discounted cumulative gain at ``k`` as a share of the greatest possible.

        Gains are linear and the discount is ``1 / log2(rank + 1)``, as in trec_eval.
        """
        discounts = 1 / np.log2(np.arange(2, k + 2))
        up_to = np.concatenate([[0.0], np.cumsum(discounts)])
        expected = (
            up_to[np.minimum(self.better + self.tied, k)] - up_to[np.minimum(self.better, k)]
        ) / self.tied
        best = np.sort(self.gains)[::-1][:k]
        return float((self.gains * expected).sum() / (best * discounts[: len(best)]).sum())

    def _best(self) -> tuple[int, int]:
        row = int(self.better.argmin())
        return int(self.better[row]), int(self.tied[row])


def rank_relevant(
    queries: NDArray[np.float32],
    documents: NDArray[np.float32],
    relevant: Sequence[NDArray[np.int64]],
    gains: Sequence[NDArray[np.float64]],
    left_out: Mapping[int, int] | None = None,
) -> list[Standing]:
    """Rank all documents for each query; return where its relevant ones stand.

    Args:
        queries: (q, d) vectors, none zero.
        documents: (n, d) vectors, none zero.
        relevant: for each query the rows of its relevant documents, at least one.
        gains: for each query how relevant each of them is.
        left_out: query's row -> row of a document that is not ranked for it, none of its relevant ones.
    """
    left_out = left_out or {}
    # In float32, unlike pairs' cosines: a catalogue may hold millions of rows.
    asked, found = unit(queries), unit(documents)
    standings = []
    # All documents of a query stand in one block, so that every cosine is computed once, in one way.
    rows = max(1, _BLOCK // max(1, len(found)))
    for start in range(0, len(asked), rows):
        cosines = asked[start : start + rows] @ found.T
        for query, row in enumerate(cosines, start):
            if query in left_out:
                row[left_out[query]] = -np.inf
            standings.append(_standing(row, relevant[query], gains[query]))
    return standings


def _standing(
    cosines: NDArray[np.float32], relevant: NDArray[np.int64], gains: NDArray[np.float64]
) -> Standing:
    own = cosines[relevant]
    above, below = own + SMALLEST_DIFFERENCE, own - SMALLEST_DIFFERENCE
    better = np.array([np.count_nonzero(cosines > bound) for bound in above], dtype=np.int64)
    not_worse = np.array([np.count_nonzero(cosines >= bound) for bound in below], dtype=np.int64)
    first = int(np.count_nonzero(own >= own.max() - np.float32(SMALLEST_DIFFERENCE)))
    return Standing(better, not_worse - better, first, gains)
