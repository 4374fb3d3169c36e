"""How many candidates a search of the graph has to look at: as few as find nearly all neighbours.

How hard it is to find neighbours depends on the vectors: in well parted clusters a short search finds all of
them, among tens of thousands of alike ones it does not. So the length is measured, on vectors that are not in
the base: the teacher's, of the rows that a run held out. Rows of the base itself, moved a little, are found
far more easily than new ones and would tell of too short a search. What a student finds with its own vectors
is looked at when k and beta are chosen, see :mod:`distill.knowledge_base.asked`.
"""

from __future__ import annotations

from dataclasses import dataclass

from distill.knowledge_base.index import NeighbourIndex
from distill.knowledge_base.recall import are_among
from embedcache.codecs import Vectors

EFFORTS = (32, 40, 48, 56, 64, 72, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512)
"""The lengths of a search that are tried, the quickest first."""

WANTED_RECALL = 0.99
"""Share of the nearest neighbours that a search has to find."""

USUAL_EFFORT = 256
"""The length where too few rows were held out to measure on."""

FEWEST_QUERIES = 100
"""Vectors that can be measured on; of fewer, one neighbour that is not found would decide."""

_NEIGHBOURS = 10


@dataclass(frozen=True)
class Effort:
    """What was settled on.

    Attributes:
        ef_search: candidates looked at in a search.
        recall: share of the ten nearest that it finds; below :data:`WANTED_RECALL` only where the longest
            search tried does not find more.
    """

    ef_search: int
    recall: float


def settle_effort(index: NeighbourIndex, queries: Vectors) -> Effort | None:
    """Have an index look at as few candidates as find nearly all neighbours, and return how many those are.

    Args:
        index: the index, of one row at least; its ``ef_search`` is set.
        queries: unit vectors of texts that are not in it, float32 of shape (n, d).

    Returns:
        None where there are fewer than :data:`FEWEST_QUERIES`: then it stays as it was found out before, or
        is :data:`USUAL_EFFORT`.
    """
    if len(queries) < FEWEST_QUERIES:
        if not index.settings.is_settled:
            index.search_with(USUAL_EFFORT)
        return None
    nearest, _ = index.exact(queries, _NEIGHBOURS)
    found = Effort(EFFORTS[0], 0.0)
    for ef_search in EFFORTS:
        index.search_with(ef_search)
        rows, _ = index.search(queries, _NEIGHBOURS)
        found = Effort(ef_search, float(are_among(rows, nearest).mean()))
        if found.recall >= WANTED_RECALL:
            break
    return found
