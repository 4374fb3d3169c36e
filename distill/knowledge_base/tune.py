"""How many neighbours to ask, and what the student's own answer counts for, chosen on labelled rows.

The paper searches beta over 0, 0.1 ... 1 and k over 1 to 20, on the set that it reports. Here the rows are
others than those reported, and others than those in the base: a row that is in it would find itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
from numpy.typing import NDArray

from distill.knowledge_base.lead import Interval, lead_interval
from distill.knowledge_base.vote import Probabilities, mixed, neighbour_vote

BETAS = tuple(step / 10 for step in range(11))
"""The betas tried; 1 is the student alone."""

MOST_NEIGHBOURS = 20
"""k is tried from 1 to this."""

SHOWN_KS = (5, 10, 15, 20)
"""The k of the paper's Table 2."""

_TINY = 1e-12


@dataclass(frozen=True)
class Tried:
    """One k and beta.

    Attributes:
        k: neighbours asked.
        beta: what the student's own answer counts for.
        accuracy: share of the rows that is right, 0 to 1.
        log_loss: mean of minus the logarithm of the probability of the right label.
        right: which of the n rows are, bool of shape (n,).
    """

    k: int
    beta: float
    accuracy: float
    log_loss: float
    right: NDArray[np.bool_] = field(compare=False, repr=False)


@dataclass(frozen=True)
class Tuning:
    """All that was tried.

    Attributes:
        best: the best of it.
        tried: every k and beta.
        without: the student alone.
    """

    best: Tried
    tried: tuple[Tried, ...]
    without: Tried

    def best_of(self, k: int) -> Tried:
        """Return the best beta of one k."""
        return min((one for one in self.tried if one.k == k), key=_order)

    def at(self, k: int, beta: float) -> Tried:
        """Return what one k and beta gave."""
        return next(one for one in self.tried if one.k == k and one.beta == beta)

    def lead(self, one: Tried) -> Interval:
        """Return the 95 % interval of the lead that one k and beta has over the student alone."""
        return lead_interval(one.right, self.without.right)


def tune(
    student: Probabilities,
    scores: NDArray[np.floating],
    soft_labels: NDArray[np.floating],
    labels: NDArray[np.int64],
    tau: float,
    ks: Sequence[int] | None = None,
) -> Tuning:
    """Try every k and beta.

    The best has the highest accuracy; of several, the lowest log loss, for accuracy moves in steps of a row;
    then the fewest neighbours, and the student's own answer.

    Args:
        student: the student's probabilities, shape (n, c), n above 0.
        scores: cosines of the nearest neighbours, shape (n, most), the nearest first.
        soft_labels: the teacher's probabilities for them, shape (n, most, c).
        labels: the right labels, int64 of shape (n,).
        tau: the temperature of the neighbours' weights.
        ks: the k to try; default: 1 to the number of neighbours.
    """
    found = []
    for k in ks or range(1, scores.shape[1] + 1):
        voted = neighbour_vote(scores[:, :k], soft_labels[:, :k], tau)
        found += [_judge(k, beta, mixed(student, voted, beta), labels) for beta in BETAS]
    best = min(found, key=_order)
    return Tuning(best, tuple(found), next(one for one in found if one.beta == 1))


@dataclass(frozen=True)
class SensitivityRow:
    """A row of the table over k (the paper's Table 2).

    Attributes:
        k: neighbours asked; 0 without retrieval.
        accuracy: share that is right with the beta chosen, 0 to 1.
        lead: the 95 % interval of its lead over the student alone.
        best_beta: the best beta of this k.
        best_accuracy: share that is right with it.
        seconds: time of the student for all rows (k = 0), or what searching adds to it.
        added: the same as a share of the student's time.
    """

    k: int
    accuracy: float
    lead: Interval
    best_beta: float
    best_accuracy: float
    seconds: float
    added: float

    def to_json(self) -> dict[str, object]:
        """Return the row as a JSON object."""
        return asdict(self)


def sensitivity(
    tuning: Tuning, ks: Sequence[int], student_seconds: float, search: Callable[[int], float]
) -> list[SensitivityRow]:
    """Return the table over k, the student alone first.

    Args:
        tuning: what was tried.
        ks: the k to show; those that were not tried are left out.
        student_seconds: time of the student for all rows.
        search: seconds that asking k neighbours of all rows takes.
    """
    alone = tuning.without.accuracy
    rows = [SensitivityRow(0, alone, (0.0, 0.0), 1.0, alone, student_seconds, 0.0)]
    for k in ks:
        if any(one.k == k for one in tuning.tried):
            best, seconds = tuning.best_of(k), search(k)
            chosen = tuning.at(k, tuning.best.beta)
            rows.append(
                SensitivityRow(
                    k=k,
                    accuracy=chosen.accuracy,
                    lead=tuning.lead(chosen),
                    best_beta=best.beta,
                    best_accuracy=best.accuracy,
                    seconds=seconds,
                    added=seconds / student_seconds,
                )
            )
    return rows


def _judge(k: int, beta: float, probabilities: Probabilities, labels: NDArray[np.int64]) -> Tried:
    likely = probabilities[np.arange(len(labels)), labels]
    right = probabilities.argmax(axis=1) == labels
    return Tried(k, beta, float(right.mean()), float(-np.log(np.maximum(likely, _TINY)).mean()), right)


def _order(one: Tried) -> tuple[float, float, int, float]:
    return (-one.accuracy, one.log_loss, one.k, -one.beta)
