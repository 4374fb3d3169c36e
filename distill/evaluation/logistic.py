"""Logistic regression on frozen vectors, with the strength of its penalty chosen off the scored examples.

Labels are numbers, 0 and up.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import combinations
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from distill.evaluation.models import cpu_threads

Vectors = NDArray[np.float32]
Labels = NDArray[np.int64]
T = TypeVar("T")
R = TypeVar("R")

STRENGTHS = tuple(2.0**power for power in range(-12, 0, 2))
"""Values of scikit-learn's ``C`` that are tried, strongest penalty first."""

FOLDS = 10
MOST_TO_CHOOSE = 30_000
"""Examples that the strength is chosen with where dev examples choose it; of more, as many are drawn."""

_MOST_ITERATIONS = 1000
_CHUNK = 8192  # examples scaled at once: sums are in float64, which doubles the memory


@dataclass(frozen=True)
class Answers:
    """Answers for the scored examples: (n,) labels, the chosen strengths, fits stopped before the optimum."""

    predicted: Labels
    strengths: tuple[float, ...]
    unfinished: int = 0


def nested_folds(vectors: Vectors, labels: Labels, seed: int) -> Answers:
    """Answer for every example by a classifier that learnt from the nine folds it is not in.

    The strength of each classifier is chosen by nine-fold cross-validation over its own folds. Leaving out
    the folds a and b serves twice: b is then the inner fold of a, and a the inner fold of b.
    """
    fold = assign_folds(labels, seed)

    def choose(pair: tuple[int, int]) -> tuple[Labels, int]:
        counts, unfinished = _grid(
            vectors, labels, ~np.isin(fold, pair), [fold == one for one in reversed(pair)]
        )
        return counts, unfinished

    right, unfinished = np.zeros((FOLDS, len(STRENGTHS)), np.int64), 0
    pairs = list(combinations(range(FOLDS), 2))
    for pair, (counts, stopped) in zip(pairs, _on_all_cores(choose, pairs), strict=True):
        right[list(pair)] += counts
        unfinished += stopped
    strengths = tuple(_best(counts) for counts in right)

    def answer(number: int) -> tuple[Labels, int]:
        model = _Classifier(vectors[fold != number], labels[fold != number])
        model.fit(strengths[number])
        return model.predict(model.scale(vectors[fold == number])), model.unfinished

    predicted = np.empty_like(labels)
    for number, (answers, stopped) in enumerate(_on_all_cores(answer, range(FOLDS))):
        predicted[fold == number] = answers
        unfinished += stopped
    return Answers(predicted, strengths, unfinished)


def train_folds(vectors: Vectors, labels: Labels, test: Vectors, seed: int) -> Answers:
    """Answer for ``test``, with the strength chosen by ten-fold cross-validation over the others."""
    fold = assign_folds(labels, seed)
    counted = _on_all_cores(
        lambda number: _grid(vectors, labels, fold != number, [fold == number]), range(FOLDS)
    )
    strength = _best(np.sum([counts[0] for counts, _ in counted], axis=0))
    model = _Classifier(vectors.copy(), labels)
    model.fit(strength)
    unfinished = model.unfinished + sum(stopped for _, stopped in counted)
    return Answers(model.predict(model.scale(test.copy())), (strength,), unfinished)


def dev_chosen(
    vectors: Vectors, labels: Labels, dev: Vectors, dev_labels: Labels, test: Vectors, seed: int
) -> Answers:
    """Answer for ``test``, with the strength chosen on ``dev``.

    All features are standardised IN PLACE: there may be gigabytes of them. Of more than
    :data:`MOST_TO_CHOOSE` training examples as many are drawn by ``seed`` to choose with.
    """
    chosen = labels
    trial_vectors = vectors
    if len(labels) > MOST_TO_CHOOSE:
        drawn = np.sort(np.random.default_rng(seed).permutation(len(labels))[:MOST_TO_CHOOSE])
        trial_vectors, chosen = vectors[drawn], labels[drawn]
    trial = _Classifier(trial_vectors, chosen)
    held = trial.scale(dev)

    def choose(strengths: Sequence[float]) -> tuple[dict[float, int], int]:
        model, right = trial.again(), {}
        for strength in strengths:
            model.fit(strength)
            right[strength] = int(np.sum(model.predict(held) == dev_labels))
        return right, model.unfinished

    # In a row each fit starts from the one before; two rows keep two cores busy.
    (even, stopped), (odd, stopped_too) = _on_all_cores(choose, [STRENGTHS[::2], STRENGTHS[1::2]])
    right = even | odd
    strength = _best([right[one] for one in STRENGTHS])
    model = trial if chosen is labels else _Classifier(vectors, labels)
    model.fit(strength)
    answers = model.predict(model.scale(test))
    return Answers(answers, (strength,), stopped + stopped_too + model.unfinished)


def assign_folds(labels: Labels, seed: int) -> NDArray[np.int64]:
    """Return the fold of each example, (n,): labels are spread evenly, and folds are of one size."""
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
    fold = np.empty(len(labels), np.int64)
    fold[by_label] = np.arange(len(labels)) % FOLDS
    return fold


class _Classifier:
    """Logistic regression on standardised features; each fit starts from the one before.

    The loss is convex, so the optimum is the same wherever a fit starts. Vectors are standardised in place.
    """

    def __init__(self, vectors: Vectors, labels: Labels) -> None:
        from sklearn.preprocessing import StandardScaler

        self._scaler: Any = StandardScaler(copy=False)
        for first in range(0, len(vectors), _CHUNK):
            self._scaler.partial_fit(vectors[first : first + _CHUNK])
        self._vectors, self._labels = self.scale(vectors), labels
        self._start()

    def _start(self) -> None:
        from sklearn.linear_model import LogisticRegression

        self.unfinished = 0
        self._regression: Any = LogisticRegression(warm_start=True, max_iter=_MOST_ITERATIONS)

    def again(self) -> _Classifier:
        """Return an unfitted classifier of the same examples, which are shared."""
        other: _Classifier = object.__new__(_Classifier)
        vars(other).update(vars(self))
        other._start()
        return other

    def scale(self, vectors: Vectors) -> Vectors:
        """Return ``vectors``, standardised in place."""
        scaled: Vectors = self._scaler.transform(vectors)
        return scaled

    def fit(self, strength: float) -> None:
        """Fit with ``C = strength``."""
        self._regression.set_params(C=strength).fit(self._vectors, self._labels)
        self.unfinished += int(max(self._regression.n_iter_) >= _MOST_ITERATIONS)

    def predict(self, scaled: Vectors) -> Labels:
        """Return the labels of standardised vectors."""
        predicted: Labels = self._regression.predict(scaled)
        return predicted


def _grid(
    vectors: Vectors, labels: Labels, learnt: NDArray[np.bool_], held: Sequence[NDArray[np.bool_]]
) -> tuple[Labels, int]:
    """Return the right answers in each held-out fold by strength, (folds, strengths), and unfinished fits."""
    model = _Classifier(vectors[learnt], labels[learnt])
    scaled = [model.scale(vectors[rows]) for rows in held]
    counts = np.zeros((len(held), len(STRENGTHS)), np.int64)
    for place, strength in enumerate(STRENGTHS):
        model.fit(strength)
        for side, rows in enumerate(held):
            counts[side, place] = np.sum(model.predict(scaled[side]) == labels[rows])
    return counts, model.unfinished


def _best(right: Sequence[int] | Labels) -> float:
    return STRENGTHS[int(np.argmax(right))]


def _on_all_cores(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Return ``work`` of each item, in order: a thread a core, each with one-threaded algebra.

    Fits of a few thousand examples are too small to be divided: their threads would wait for each other.
    """
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    queue = list(items)
    # OpenMP keeps a limit for every thread that calls it, so each thread sets it.
    workers = ThreadPoolExecutor(min(cpu_threads(), len(queue)), initializer=threadpool_limits, initargs=(1,))
    with warnings.catch_warnings(), threadpool_limits(1), workers as pool:
        # Also given at the optimum, where float32 shows no lower loss; real ones are counted.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return list(pool.map(work, queue))
