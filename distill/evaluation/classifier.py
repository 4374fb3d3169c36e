"""Classifiers on frozen vectors: what can be read off them by a linear rule?

Logistic regression with a quadratic penalty, fitted by scikit-learn. Features are standardised on the
examples that a classifier learns from, so one grid of strengths serves models whose vectors are long or
short, and products beside differences. The strength is never chosen on examples that are scored: it is chosen
in folds of the training examples, or on examples of their own ("dev"). The stronger penalty wins a tie.

The protocols are those of SentEval (Conneau and Kiela, 2018). Labels are numbers, 0 and up.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]
    Labels = NDArray[np.int64]

STRENGTHS = tuple(2.0**power for power in range(-12, 0, 2))
"""Values of scikit-learn's ``C`` that are tried, strongest penalty first: for standardised features."""

FOLDS = 10
"""Parts that examples are divided into where folds choose or score."""

MOST_TO_CHOOSE = 20_000
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
    right = np.zeros((FOLDS, len(STRENGTHS)), np.int64)
    unfinished = 0
    for a, b in combinations(range(FOLDS), 2):
        model = _Classifier(vectors[(fold != a) & (fold != b)], labels[(fold != a) & (fold != b)])
        held = {outer: model.scale(vectors[fold == inner]) for outer, inner in ((a, b), (b, a))}
        for place, strength in enumerate(STRENGTHS):
            model.fit(strength)
            right[a, place] += np.sum(model.predict(held[a]) == labels[fold == b])
            right[b, place] += np.sum(model.predict(held[b]) == labels[fold == a])
        unfinished += model.unfinished
    predicted = np.empty_like(labels)
    chosen = tuple(_best(counts) for counts in right)
    for number, strength in enumerate(chosen):
        model = _Classifier(vectors[fold != number], labels[fold != number])
        model.fit(strength)
        predicted[fold == number] = model.predict(model.scale(vectors[fold == number]))
        unfinished += model.unfinished
    return Answers(predicted, chosen, unfinished)


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
    right = np.zeros(len(STRENGTHS), np.int64)
    unfinished = 0
    for number in range(FOLDS):
        model = _Classifier(vectors[fold != number], labels[fold != number])
        held = model.scale(vectors[fold == number])
        for place, strength in enumerate(STRENGTHS):
            model.fit(strength)
            right[place] += np.sum(model.predict(held) == labels[fold == number])
        unfinished += model.unfinished
    strength = _best(right)
    model = _Classifier(vectors.copy(), labels)
    model.fit(strength)
    return Answers(model.predict(model.scale(test.copy())), (strength,), unfinished + model.unfinished)


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

    drawn = np.sort(np.random.default_rng(seed).permutation(len(labels))[:MOST_TO_CHOOSE])
    trial = _Classifier(vectors[drawn], labels[drawn])
    dev = trial.scale(dev)
    right = []
    for strength in STRENGTHS:
        trial.fit(strength)
        right.append(int(np.sum(trial.predict(dev) == dev_labels)))
    strength = _best(right)
    model = _Classifier(vectors, labels)
    model.fit(strength)
    return Answers(model.predict(model.scale(test)), (strength,), trial.unfinished + model.unfinished)


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


class _Classifier:
    """Logistic regression on standardised features; each fit starts from the one before.

    The optimum is the same wherever a fit starts: the loss is convex.
    """

    def __init__(self, vectors: Vectors, labels: Labels) -> None:
        """Take the examples to learn from; ``vectors`` are standardised in place."""
        from sklearn.linear_model import LogisticRegression
        from sklearn.preprocessing import StandardScaler

        self.unfinished = 0
        self._scaler: Any = StandardScaler(copy=False)
        for first in range(0, len(vectors), _CHUNK):
            self._scaler.partial_fit(vectors[first : first + _CHUNK])
        self._vectors = self.scale(vectors)
        self._labels = labels
        self._regression: Any = LogisticRegression(warm_start=True, max_iter=MOST_ITERATIONS)

    def scale(self, vectors: Vectors) -> Vectors:
        """Return ``vectors``, standardised in place."""
        scaled: Vectors = self._scaler.transform(vectors)
        return scaled

    def fit(self, strength: float) -> None:
        """Fit with ``C = strength``."""
        from sklearn.exceptions import ConvergenceWarning

        with warnings.catch_warnings():
            # Also given where float32 shows no lower loss any more, which is the optimum; too many iterations
            # are counted.
            warnings.simplefilter("ignore", ConvergenceWarning)
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
