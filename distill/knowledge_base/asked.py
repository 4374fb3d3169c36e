"""What the graph finds of what a student asks for, and what its answers lose by that.

A graph is good at vectors like those it was made of. A student that learned how its vectors lie among the
teacher's, and not where, asks from outside, where its nearest neighbours are scattered and dear to find. What
that does to the answers only exact search tells.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from distill.classification.score import accuracy
from distill.knowledge_base.base import KnowledgeBase
from distill.knowledge_base.recall import Recall, recall_of, search_both
from distill.knowledge_base.vote import Probabilities, mixed, neighbour_vote
from embedcache.codecs import Vectors

_CLEAR_LOSS = 0.005


@dataclass(frozen=True)
class Asked:
    """A student's answers by the graph beside those by exact search.

    Attributes:
        recall: what the graph finds of the neighbours nearest to the student's vectors.
        other_votes: texts whose neighbours vote for another label than the nearest ones.
        accuracy: share that is right with the graph, 0 to 1.
        exact_accuracy: share that is right with exact search.
    """

    recall: Recall
    other_votes: int
    accuracy: float
    exact_accuracy: float

    @property
    def loses_much(self) -> bool:
        """Whether with exact search more than half a text of a hundred more would be right."""
        return self.exact_accuracy - self.accuracy > _CLEAR_LOSS

    def to_json(self) -> dict[str, object]:
        """Return it as a JSON object."""
        return {**asdict(self), "loses_much": self.loses_much}


def compare_answers(
    base: KnowledgeBase,
    vectors: Vectors,
    student: Probabilities,
    labels: NDArray[np.int64],
    k: int,
    beta: float,
) -> Asked:
    """Answer texts with the neighbours that the graph finds, and with the nearest.

    Args:
        base: the knowledge base.
        vectors: the student's vectors of n texts that are not in it, of length one, float32 of shape (n, d).
        student: the student's own probabilities, shape (n, c).
        labels: the right labels, int64 of shape (n,).
        k: neighbours asked.
        beta: what the student's own answer counts for.
    """
    both = search_both(base.index, vectors, k)
    voted = [
        neighbour_vote(cosines, base.soft_labels[rows], base.tau)
        for rows, cosines in (both.found, both.exact)
    ]
    by_graph, by_exact = (accuracy(mixed(student, votes, beta).argmax(axis=1), labels) for votes in voted)
    others = voted[0].argmax(axis=1) != voted[1].argmax(axis=1)
    return Asked(recall_of(base.index, vectors, both), int(others.sum()), by_graph, by_exact)
