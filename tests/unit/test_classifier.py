"""Classifiers on frozen vectors: the protocols, against scikit-learn put together by hand."""

from __future__ import annotations

import os
import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, PredefinedSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_info, threadpool_limits

from distill.evaluation import classifier
from distill.evaluation.classifier import (
    FOLDS,
    STRENGTHS,
    answer_by_dev,
    answer_by_folds,
    answer_by_nested_folds,
    assign_folds,
    entailment_features,
    pair_features,
)


def clouds(count: int, classes: int = 2, width: int = 6, distance: float = 1.2, seed: int = 0):
    """Points around one centre per class, which overlap; the columns differ in scale by a thousand."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, count)
    centres = np.random.default_rng(99).standard_normal((classes, width)) * distance
    points = centres[labels] + rng.standard_normal((count, width)) * 1.5
    return (points * np.logspace(-2, 1, width)).astype(np.float32), labels


def by_hand(strength: float):
    return make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=5000, tol=1e-8))


def search(folds) -> GridSearchCV:
    grid = {"logisticregression__C": list(STRENGTHS)}
    return GridSearchCV(by_hand(1.0), grid, cv=PredefinedSplit(folds))


class TestNestedFolds:
    def test_answers_as_scikit_learn_by_hand(self):
        vectors, labels = clouds(160)
        answers = answer_by_nested_folds(vectors, labels, seed=3)
        fold = assign_folds(labels, 3)
        expected = np.empty_like(labels)
        for outer in (0, 7):
            learnt = fold != outer
            chosen = search(fold[learnt]).fit(vectors[learnt].astype(np.float64), labels[learnt])
            expected[~learnt] = chosen.predict(vectors[~learnt])
            assert np.mean(answers.predicted[~learnt] != expected[~learnt]) <= 0.01
            assert answers.strengths[outer] == chosen.best_params_["logisticregression__C"]
        assert len(answers.strengths) == FOLDS
        assert answers.unfinished == 0

    def test_labels_that_say_nothing_are_not_learnt(self):
        vectors, _ = clouds(300)
        labels = np.random.default_rng(1).permutation(np.arange(300) % 2)
        answers = answer_by_nested_folds(vectors, labels, seed=0)
        assert abs(np.mean(answers.predicted == labels) - 0.5) < 0.1

    def test_no_example_answers_for_itself(self):
        # A column per example: whoever learnt from an example knows it by heart, all others know nothing.
        labels = np.arange(40) % 2
        vectors = np.eye(40, dtype=np.float32)
        answers = answer_by_nested_folds(vectors, labels, seed=0)
        assert np.mean(answers.predicted == labels) <= 0.6

    def test_the_callers_vectors_are_left_as_they_are(self):
        vectors, labels = clouds(60)
        before = vectors.copy()
        answer_by_nested_folds(vectors, labels, seed=0)
        answer_by_folds(vectors, labels, vectors, seed=0)
        np.testing.assert_array_equal(vectors, before)

    def test_the_same_seed_gives_the_same_answers(self):
        vectors, labels = clouds(80)
        first, second = (answer_by_nested_folds(vectors, labels, seed=5) for _ in range(2))
        np.testing.assert_array_equal(first.predicted, second.predicted)
        assert first.strengths == second.strengths


class TestFolds:
    def test_answers_as_scikit_learn_by_hand_with_three_labels(self):
        vectors, labels = clouds(200, classes=3)
        test, gold = clouds(400, classes=3, seed=1)
        answers = answer_by_folds(vectors, labels, test, seed=0)
        chosen = search(assign_folds(labels, 0)).fit(vectors.astype(np.float64), labels)
        assert answers.strengths == (chosen.best_params_["logisticregression__C"],)
        assert abs(np.mean(answers.predicted == gold) - chosen.score(test, gold)) <= 0.005
        assert np.mean(answers.predicted == gold) > 0.6

    def test_every_label_is_spread_over_the_folds(self):
        labels = np.array([0] * 73 + [1] * 20 + [2] * 4)
        fold = assign_folds(labels, 0)
        sizes = np.bincount(fold, minlength=FOLDS)
        assert sizes.max() - sizes.min() <= 1
        assert set(np.bincount(fold[labels == 0], minlength=FOLDS)) == {7, 8}
        assert set(np.bincount(fold[labels == 1], minlength=FOLDS)) == {2}
        assert np.bincount(fold[labels == 2], minlength=FOLDS).max() == 1

    def test_the_seed_decides_who_shares_a_fold(self):
        labels = np.arange(50) % 2
        np.testing.assert_array_equal(assign_folds(labels, 1), assign_folds(labels, 1))
        assert (assign_folds(labels, 1) != assign_folds(labels, 2)).any()


class TestDev:
    def test_answers_as_scikit_learn_by_hand(self):
        vectors, labels = clouds(150)
        dev, dev_labels = clouds(100, seed=1)
        test, gold = clouds(400, seed=2)
        fits = [by_hand(c).fit(vectors.astype(np.float64), labels) for c in STRENGTHS]
        on_dev = [fit.score(dev, dev_labels) for fit in fits]
        place = int(np.argmax(on_dev))
        expected = fits[place].score(test, gold)
        answers = answer_by_dev(vectors, labels, dev, dev_labels, test, seed=0)
        assert answers.strengths == (STRENGTHS[place],)
        assert abs(np.mean(answers.predicted == gold) - expected) <= 0.005

    def test_of_many_examples_some_choose_and_all_are_learnt_from(self, monkeypatch):
        monkeypatch.setattr(classifier, "MOST_TO_CHOOSE", 60)
        vectors, labels = clouds(200)
        dev, dev_labels = clouds(100, seed=1)
        test, _ = clouds(400, seed=2)
        whole = vectors.astype(np.float64)
        answers = answer_by_dev(vectors, labels, dev, dev_labels, test.copy(), seed=0)
        learnt_all = by_hand(answers.strengths[0]).fit(whole, labels).predict(test)
        learnt_some = by_hand(answers.strengths[0]).fit(whole[:60], labels[:60]).predict(test)
        assert np.mean(answers.predicted != learnt_all) <= 0.005
        assert np.mean(answers.predicted != learnt_some) > 0.005

    def test_the_strongest_penalty_wins_a_tie(self):
        vectors = np.array([[-1.0], [1.0]] * 20, np.float32)
        labels = np.arange(40) % 2
        answers = answer_by_dev(vectors.copy(), labels, vectors.copy(), labels, vectors.copy(), seed=0)
        assert answers.strengths == (STRENGTHS[0],)
        np.testing.assert_array_equal(answers.predicted, labels)

    def test_a_constant_column_does_no_harm(self):
        vectors, labels = clouds(80)
        vectors[:, 0] = 7.0
        answers = answer_by_dev(vectors, labels, *clouds(40, seed=1), clouds(40, seed=2)[0], seed=0)
        assert np.isin(answers.predicted, [0, 1]).all()

    def test_a_dev_label_that_nothing_was_learnt_of_counts_as_wrong(self):
        vectors, labels = clouds(80)
        dev, dev_labels = clouds(40, seed=1)
        dev_labels[:5] = 2
        answers = answer_by_dev(vectors, labels, dev, dev_labels, dev.copy(), seed=0)
        assert 2 not in answers.predicted


def by_nested_folds(vectors, labels, test):
    return answer_by_nested_folds(vectors, labels, seed=0)


def by_folds(vectors, labels, test):
    return answer_by_folds(vectors, labels, test.copy(), seed=0)


def by_dev(vectors, labels, test):
    dev, dev_labels = clouds(60, classes=3, seed=1)
    return answer_by_dev(vectors.copy(), labels, dev, dev_labels, test.copy(), seed=0)


@pytest.mark.parametrize("answer", [by_nested_folds, by_folds, by_dev])
class TestThreads:
    """What holds for every protocol, whose fits are spread over the cores."""

    @pytest.fixture
    def crews(self, monkeypatch) -> list[int]:
        """How many threads each pool was given."""
        sizes: list[int] = []

        class Pool(classifier.ThreadPoolExecutor):
            def __init__(self, size: int, **rest: Any) -> None:
                sizes.append(size)
                super().__init__(size, **rest)

        monkeypatch.setattr(classifier, "ThreadPoolExecutor", Pool)
        return sizes

    def test_answers_do_not_depend_on_their_number(self, answer, crews, monkeypatch):
        vectors, labels = clouds(120, classes=3)
        test, _ = clouds(90, classes=3, seed=2)
        found = {}
        for cores in (1, 3):
            monkeypatch.setenv("OMP_NUM_THREADS", str(cores))
            crews.clear()
            found[cores] = answer(vectors, labels, test)
            # No more threads than there is work for: two rows of strengths where examples choose them.
            assert set(crews) <= {min(cores, 2), cores}
            assert max(crews) > 1 or cores == 1
        np.testing.assert_array_equal(found[1].predicted, found[3].predicted)
        assert found[1].strengths == found[3].strengths
        assert found[1].unfinished == found[3].unfinished == 0

    def test_a_system_that_cannot_tell_which_cores_are_ours(self, answer, crews, monkeypatch):
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        monkeypatch.delattr(os, "sched_getaffinity", raising=False)
        monkeypatch.setattr(os, "cpu_count", lambda: None)
        answer(*clouds(120, classes=3), clouds(9, seed=2)[0])
        assert set(crews) == {1}

    def test_fits_that_end_early_are_counted_and_warned_of_by_nobody(self, answer, monkeypatch):
        monkeypatch.setattr(classifier, "MOST_ITERATIONS", 2)
        assert answer(*clouds(120, classes=3), clouds(9, seed=2)[0]).unfinished > 0

    def test_the_callers_filters_are_left_as_they_were(self, answer):
        before = list(warnings.filters)
        answer(*clouds(120, classes=3), clouds(9, seed=2)[0])
        assert warnings.filters == before
        with pytest.raises(ConvergenceWarning):
            warnings.warn("not converged", ConvergenceWarning, stacklevel=1)


def test_a_failed_fit_leaves_the_filters_and_the_algebras_threads_as_they_were(monkeypatch):
    def fail(*_: object) -> None:
        raise MemoryError("too many examples")

    monkeypatch.setattr(classifier._Classifier, "fit", fail)
    before = list(warnings.filters)
    with threadpool_limits(2, user_api="blas"):
        threads = threads_of_algebra()
        with pytest.raises(MemoryError, match="too many examples"):
            by_folds(*clouds(60), clouds(9, seed=2)[0])
        assert threads_of_algebra() == threads
    assert warnings.filters == before


def test_the_algebra_of_a_thread_has_one_thread():
    import faiss  # noqa: F401 - brings an algebra whose number of threads belongs to each thread that calls it

    with threadpool_limits(2, user_api="blas"):
        before = threads_of_algebra()
        within = classifier._on_all_cores(lambda _: threads_of_algebra(), range(3))
        assert within == [[1] * len(before)] * 3
        assert threads_of_algebra() == before


def threads_of_algebra() -> list[Any]:
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


def test_features_of_pairs():
    left, right = np.array([[1.0, -2.0]], np.float32), np.array([[3.0, 4.0]], np.float32)
    np.testing.assert_array_equal(pair_features(left, right), [[2, 6, 3, -8]])
    np.testing.assert_array_equal(pair_features(right, left), pair_features(left, right))
    np.testing.assert_array_equal(entailment_features(left, right), [[1, -2, 3, 4, 3, -8, 2, 6]])
    assert entailment_features(left, right).dtype == np.float32


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_the_length_of_vectors_does_not_matter(scale):
    vectors, labels = clouds(80)
    plain = answer_by_folds(vectors, labels, vectors, seed=0)
    scaled = answer_by_folds(vectors * np.float32(scale), labels, vectors * np.float32(scale), seed=0)
    assert plain.strengths == scaled.strengths
    assert np.mean(plain.predicted != scaled.predicted) <= 0.02
