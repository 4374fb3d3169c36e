"""Classifiers on frozen vectors: what can be read off them by a linear rule?

Logistic regression with a quadratic penalty, fitted by scikit-learn. Features are standardised on the
examples that a classifier learns from, so one grid of strengths serves models whose vectors are long or
short, and products beside differences. The strength is never chosen on examples that are scored: it is chosen
in folds of the training examples, or on examples of their own ("dev"). The stronger penalty wins a tie.

The protocols are those of SentEval (Conneau and Kiela, 2018). Labels are numbers, 0 and up.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, TypeVar

from distill.evaluation.threads import cpu_threads

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]
    Labels = NDArray[np.int64]

T = TypeVar("T")
R = TypeVar("R")

STRENGTHS = tuple(2.0**power for power in range(-12, 0, 2))
"""Values of scikit-learn's ``C`` that are tried, strongest penalty first: for standardised features."""

FOLDS = 10
"""Parts that examples are divided into where folds choose or score."""

MOST_TO_CHOOSE = 30_000
"""Examples that the strength is chosen with, where dev examples choose it; more are drawn from."""

MOST_ITERATIONS = 1000

# Examples scaled at once: their means and variances are summed up in float64, which doubles the memory.
_CHUNK = 8192


@dataclass(frozen=True)
class Answers:
    """What classifiers said of the scored examples.

    Attributes:
        predicted: (n,) int64, a label for each.
        strengths: the chosen ``C``: of each fold, or the one.
        unfinished: fits that were stopped before they had converged.
    """

    predicted: Labels
    strengths: tuple[float, ...]
    unfinished: int = 0


@contextmanager
def _unwarned() -> Iterator[None]:
    """Keep warnings of fits that end early off the screen; for all threads at once, as filters are."""
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        # Also given where float32 shows no lower loss any more, which is the optimum; too many iterations
        # are counted.
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


@_unwarned()
def answer_by_nested_folds(vectors: Vectors, labels: Labels, seed: int) -> Answers:
    """Answer for every example by a classifier that learnt from the nine folds it is not in.

    The strength of each of the ten classifiers is chosen by nine-fold cross-validation over its own folds.
    Leaving out the folds a and b serves twice: b is then the inner fold of a, and a the inner fold of b.

    Args:
        vectors: (n, d) features.
        labels: (n,); at least two labels occur :data:`FOLDS` times or more.
        seed: which examples share a fold.
    """
    import numpy as np

    fold = assign_folds(labels, seed)

    def choose(pair: tuple[int, int]) -> tuple[Labels, int]:
        learnt = (fold != pair[0]) & (fold != pair[1])
        held = [fold == inner for inner in reversed(pair)]
        model = _Classifier(vectors[learnt], labels[learnt])
        scaled = [model.scale(vectors[inner]) for inner in held]
        counts = np.zeros((2, len(STRENGTHS)), np.int64)
        for place, strength in enumerate(STRENGTHS):
            model.fit(strength)
            for side in (0, 1):
                counts[side, place] = np.sum(model.predict(scaled[side]) == labels[held[side]])
        return counts, model.unfinished

    right = np.zeros((FOLDS, len(STRENGTHS)), np.int64)
    unfinished = 0
    pairs = list(combinations(range(FOLDS), 2))
    for pair, (counts, stopped) in zip(pairs, _on_all_cores(choose, pairs), strict=True):
        right[list(pair)] += counts
        unfinished += stopped
    chosen = tuple(_best(counts) for counts in right)

    def answer(number: int) -> tuple[Labels, int]:
        model = _Classifier(vectors[fold != number], labels[fold != number])
        model.fit(chosen[number])
        return model.predict(model.scale(vectors[fold == number])), model.unfinished

    predicted = np.empty_like(labels)
    for number, (answers, stopped) in enumerate(_on_all_cores(answer, range(FOLDS))):
        predicted[fold == number] = answers
        unfinished += stopped
    return Answers(predicted, chosen, unfinished)


@_unwarned()
def answer_by_folds(vectors: Vectors, labels: Labels, test: Vectors, seed: int) -> Answers:
    """Answer for ``test``, with the strength chosen by ten-fold cross-validation over the others.

    Args:
        vectors: (n, d) features to learn from.
        labels: (n,) their labels; at least two occur :data:`FOLDS` times or more.
        test: (m, d) features of the examples to be scored.
        seed: which examples share a fold.
    """
    import numpy as np

    fold = assign_folds(labels, seed)

    def choose(number: int) -> tuple[Labels, int]:
        model = _Classifier(vectors[fold != number], labels[fold != number])
        held = model.scale(vectors[fold == number])
        counts = np.zeros(len(STRENGTHS), np.int64)
        for place, strength in enumerate(STRENGTHS):
            model.fit(strength)
            counts[place] = np.sum(model.predict(held) == labels[fold == number])
        return counts, model.unfinished

    counted = _on_all_cores(choose, range(FOLDS))
    strength = _best(np.sum([counts for counts, _ in counted], axis=0))
    model = _Classifier(vectors.copy(), labels)
    model.fit(strength)
    unfinished = model.unfinished + sum(stopped for _, stopped in counted)
    return Answers(model.predict(model.scale(test.copy())), (strength,), unfinished)


@_unwarned()
def answer_by_dev(
    vectors: Vectors, labels: Labels, dev: Vectors, dev_labels: Labels, test: Vectors, seed: int
) -> Answers:
    """Answer for ``test``, with the strength chosen on examples that no classifier learns from.

    Args:
        vectors: (n, d) features to learn from. They are standardised IN PLACE, as ``dev`` and ``test`` are:
            there may be gigabytes of them.
        labels: (n,) their labels, two of them at least.
        dev: (k, d) features of the examples that choose.
        dev_labels: (k,) their labels.
        test: (m, d) features of the examples to be scored.
        seed: which examples the strength is chosen with, of more than :data:`MOST_TO_CHOOSE`.
    """
    import numpy as np

    everything = len(labels) <= MOST_TO_CHOOSE
    drawn = np.sort(np.random.default_rng(seed).permutation(len(labels))[:MOST_TO_CHOOSE])
    trial = _Classifier(vectors, labels) if everything else _Classifier(vectors[drawn], labels[drawn])
    dev = trial.scale(dev)
    # What has learnt from all examples answers at once: the fit of the chosen strength is not made twice.
    scored = trial.scale(test) if everything else None

    def choose(strengths: Sequence[float]) -> tuple[list[int], list[Labels], int]:
        model = trial.again()
        right, answers = [], []
        for strength in strengths:
            model.fit(strength)
            right.append(int(np.sum(model.predict(dev) == dev_labels)))
            if scored is not None:
                answers.append(model.predict(scored))
        return right, answers, model.unfinished

    # Two rows of every other strength: in a row each fit starts from the one before, and two keep two cores
    # busy.
    rows = _on_all_cores(choose, [STRENGTHS[::2], STRENGTHS[1::2]])
    right = [count for both in zip(*(counts for counts, _, _ in rows), strict=True) for count in both]
    strength = _best(right)
    unfinished = sum(stopped for _, _, stopped in rows)
    if everything:
        place = STRENGTHS.index(strength)
        return Answers(rows[place % 2][1][place // 2], (strength,), unfinished)
    model = _Classifier(vectors, labels)
    model.fit(strength)
    return Answers(model.predict(model.scale(test)), (strength,), unfinished + model.unfinished)


def assign_folds(labels: Labels, seed: int) -> NDArray[np.int64]:
    """Return the fold of each example, (n,): each label is spread evenly, and the folds are of one size."""
    import numpy as np

    shuffled = np.random.default_rng(seed).permutation(len(labels))
    by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
    fold = np.empty(len(labels), np.int64)
    fold[by_label] = np.arange(len(labels)) % FOLDS
    return fold


def pair_features(left: Vectors, right: Vectors) -> Vectors:
    """Return ``[|u - v| ; u * v]`` of pairs, each (n, d), as (n, 2 d); a pair has no order."""
    import numpy as np

    return np.hstack([np.abs(left - right), left * right])


def entailment_features(premises: Vectors, hypotheses: Vectors) -> Vectors:
    """Return ``[u ; v ; u * v ; |u - v|]`` of pairs, each (n, d), as (n, 4 d): InferSent's features."""
    import numpy as np

    return np.hstack([premises, hypotheses, premises * hypotheses, np.abs(premises - hypotheses)])


def _on_all_cores(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Return ``work`` of each item, in order: a thread a core, each with its own one-threaded algebra.

    Fits of a few thousand examples are too small to be divided: their threads would wait for each other.
    """
    from threadpoolctl import threadpool_limits

    queue = list(items)
    # A thread has its own copy of most examples: no more of them than there is work for. Each sets the limit
    # again for itself: libraries that thread by OpenMP keep one for every thread that calls them.
    workers = min(cpu_threads(), len(queue))
    crew = ThreadPoolExecutor(workers, initializer=threadpool_limits, initargs=(1,))
    with threadpool_limits(1), crew as pool:
        return list(pool.map(work, queue))


class _Classifier:
    """Logistic regression on standardised features; each fit starts from the one before.

    The optimum is the same wherever a fit starts: the loss is convex.
    """

    def __init__(self, vectors: Vectors, labels: Labels) -> None:
        """Take the examples to learn from; ``vectors`` are standardised in place."""
        from sklearn.preprocessing import StandardScaler

        self._scaler: Any = StandardScaler(copy=False)
        for first in range(0, len(vectors), _CHUNK):
            self._scaler.partial_fit(vectors[first : first + _CHUNK])
        self._vectors = self.scale(vectors)
        self._labels = labels
        self._start()

    def _start(self) -> None:
        from sklearn.linear_model import LogisticRegression

        self.unfinished = 0
        self._regression: Any = LogisticRegression(warm_start=True, max_iter=MOST_ITERATIONS)

    def again(self) -> _Classifier:
        """Return one of the same examples, shared with this one, that has not been fitted."""
        other = copy.copy(self)
        other._start()
        return other

    def scale(self, vectors: Vectors) -> Vectors:
        """Return ``vectors``, standardised in place."""
        scaled: Vectors = self._scaler.transform(vectors)
        return scaled

    def fit(self, strength: float) -> None:
        """Fit with ``C = strength``."""
        self._regression.set_params(C=strength).fit(self._vectors, self._labels)
        self.unfinished += int(max(self._regression.n_iter_) >= MOST_ITERATIONS)

    def predict(self, scaled: Vectors) -> Labels:
        """Return the labels of standardised vectors."""
        predicted: Labels = self._regression.predict(scaled)
        return predicted


def _best(right: Sequence[int] | NDArray[np.int64]) -> float:
    """Return the strength with the most right answers, the strongest penalty of several."""
    import numpy as np

    return STRENGTHS[int(np.argmax(right))]
