"""Logistic regression on frozen vectors, with its penalty chosen without the scored examples.

Features are standardised on the examples that a classifier learns from. Labels are numbers, 0 and up.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from distill.evaluation.machine import thread_count
from distill.evaluation.models import Vectors

Labels: TypeAlias = NDArray[np.int64]
Answers: TypeAlias = tuple[Labels, tuple[float, ...]]
"""Labels of the scored examples, and the strengths that were chosen."""

T = TypeVar("T")
R = TypeVar("R")

STRENGTHS = tuple(2.0**power for power in range(-12, 0, 2))
"""Values of scikit-learn's ``C`` that are tried, strongest penalty first; the first wins a tie."""

FOLDS = 10
MOST_TO_CHOOSE = 30_000
"""Examples that the strength is chosen with where dev examples choose it; of more, as many are drawn."""

_CHUNK = 8192  # examples standardised at once: sums are in float64, which doubles the memory


def nested_folds(vectors: Vectors, labels: Labels, seed: int) -> Answers:
    """Answer for every example by a classifier that learnt from the nine folds it is not in.

    The strength of each classifier is chosen by nine-fold cross-validation over its own folds. Leaving out
    the folds a and b serves twice: b is then the inner fold of a, and a the inner fold of b.
    """
    fold = assign_folds(labels, seed)

    def choose(pair: tuple[int, int]) -> list[Labels]:
        learnt, held = ~np.isin(fold, pair), [fold == one for one in reversed(pair)]
        answers = _answers(vectors[learnt], labels[learnt], [vectors[rows] for rows in held])
        return [_count(found, labels[rows]) for found, rows in zip(answers, held, strict=True)]

    right, pairs = np.zeros((FOLDS, len(STRENGTHS)), np.int64), list(combinations(range(FOLDS), 2))
    for pair, counts in zip(pairs, _on_all_cores(choose, pairs), strict=True):
        right[list(pair)] += counts
    strengths = tuple(map(_best, right))

    def answer(number: int) -> Labels:
        learnt = fold != number
        answers = _answers(vectors[learnt], labels[learnt], [vectors[~learnt]], [strengths[number]])
        found: Labels = answers[0][0]
        return found

    predicted = np.empty_like(labels)
    for number, answers in enumerate(_on_all_cores(answer, range(FOLDS))):
        predicted[fold == number] = answers
    return predicted, strengths


def train_folds(vectors: Vectors, labels: Labels, test: Vectors, seed: int) -> Answers:
    """Answer for ``test``, with the strength chosen by ten-fold cross-validation over the others."""
    fold = assign_folds(labels, seed)

    def choose(number: int) -> Labels:
        learnt = fold != number
        (answers,) = _answers(vectors[learnt], labels[learnt], [vectors[~learnt]])
        return _count(answers, labels[~learnt])

    strength = _best(np.sum(_on_all_cores(choose, range(FOLDS)), axis=0))
    (found,) = _answers(vectors, labels, [test], [strength])
    return found[0], (strength,)


def dev_chosen(
    vectors: Vectors, labels: Labels, dev: Vectors, dev_labels: Labels, test: Vectors, seed: int
) -> Answers:
    """Answer for ``test``, with the strength chosen on ``dev``.

    Of more than ``MOST_TO_CHOOSE`` training examples as many are drawn by ``seed`` to choose with.
    """
    drawn = np.sort(np.random.default_rng(seed).permutation(len(labels))[:MOST_TO_CHOOSE])

    def choose(strengths: Sequence[float]) -> Labels:
        return _count(_answers(vectors[drawn], labels[drawn], [dev], strengths)[0], dev_labels)

    # In a row each fit starts from the one before; two rows keep two cores busy.
    right = np.empty(len(STRENGTHS), np.int64)
    right[::2], right[1::2] = _on_all_cores(choose, [STRENGTHS[::2], STRENGTHS[1::2]])
    strength = _best(right)
    (found,) = _answers(vectors, labels, [test], [strength])
    return found[0], (strength,)


def assign_folds(labels: Labels, seed: int) -> Labels:
    """Return the fold of each example, (n,): labels are spread evenly, and folds are of one size."""
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
    fold = np.empty(len(labels), np.int64)
    fold[by_label] = np.arange(len(labels)) % FOLDS
    return fold


def _answers(
    vectors: Vectors, labels: Labels, asked: Sequence[Vectors], strengths: Sequence[float] = ()
) -> list[Labels]:
    """Return the answers of classifiers for each of ``asked``, (strengths, n); with none given of all.

    The loss is convex, so the optimum is the same wherever a fit starts: each starts from the one before.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler()
    for first in range(0, len(vectors), _CHUNK):
        scaler.partial_fit(vectors[first : first + _CHUNK])
    scaled, asked = scaler.transform(vectors), [scaler.transform(some) for some in asked]
    regression = LogisticRegression(warm_start=True, max_iter=1000)
    fits = (regression.set_params(C=strength).fit(scaled, labels) for strength in strengths or STRENGTHS)
    answers = [[fit.predict(some) for some in asked] for fit in fits]
    return [np.array(of_one) for of_one in zip(*answers, strict=True)]


def _count(answers: Labels, labels: Labels) -> Labels:
    """Return the number of right answers, (strengths,)."""
    right: Labels = np.sum(answers == labels, axis=1)
    return right


def _best(right: Labels) -> float:
    return STRENGTHS[int(np.argmax(right))]


def _on_all_cores(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Return ``work`` of each item, in order: a thread a core, each with one-threaded algebra.

    Fits of a few thousand examples are too small to be divided: their threads would wait for each other.
    """
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    # OpenMP keeps a limit for every thread that calls it, so each thread sets it.
    workers = ThreadPoolExecutor(thread_count(), initializer=threadpool_limits, initargs=(1,))
    with warnings.catch_warnings(), threadpool_limits(1), workers as pool:
        # Given at the optimum, where float32 shows no lower loss.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return list(pool.map(work, items))
