"""Intervals and p-values: equal to figures taken draw by draw, and right as often as they claim."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import spearmanr

from distill.errors import DataError
from distill.evaluation import stats
from distill.evaluation.result import AVERAGE, Figure, Outcomes, SuiteResult
from distill.evaluation.stats import (
    compare,
    drawn,
    holm,
    p_value,
    percentiles,
    retention_interval,
    with_intervals,
)


def pairs(n: int = 60, seed: int = 0, noise: float = 1.0, texts: str = "") -> Outcomes:
    rng = np.random.default_rng(seed)
    gold = np.round(np.random.default_rng(0).random(n) * 5)  # many ties
    return Outcomes(np.round(gold + noise * rng.standard_normal(n), 1), gold, texts)


def figure(outcomes: Outcomes | None) -> Figure:
    if outcomes is None:
        return Figure(50.0, "spearman")
    if outcomes.gold is None:
        return Figure(float(outcomes.values.mean()), "accuracy", items=len(outcomes), outcomes=outcomes)
    value = 100 * float(spearmanr(outcomes.gold, outcomes.values).statistic)
    return Figure(value, "spearman", items=len(outcomes), outcomes=outcomes)


def result(**outcomes: Outcomes | None) -> SuiteResult:
    return SuiteResult({name: figure(one) for name, one in outcomes.items()})


@pytest.mark.parametrize("block", [1, 150, 10**6])
def test_every_draw_has_the_figure_of_the_items_drawn(monkeypatch, block):
    monkeypatch.setattr(stats, "_BLOCK", block)
    one = pairs()
    counts = np.concatenate(list(stats._counts(60, "s", 7, 3)), axis=1)
    assert (counts.sum(axis=0) == 60).all()
    items = [np.repeat(np.arange(60), draw) for draw in counts.T.astype(int)]
    expected = [100 * spearmanr(one.gold[rows], one.values[rows]).statistic for rows in items]
    np.testing.assert_allclose(drawn(one, "s", 7, 3), expected, atol=1e-9)
    of_values = drawn(Outcomes(one.gold), "s", 7, 3)
    np.testing.assert_allclose(of_values, [one.gold[rows].mean() for rows in items])


def test_draws_depend_on_name_size_and_seed_alone():
    values = pairs().gold
    first = drawn(Outcomes(values), "s", 50, 1)
    np.testing.assert_array_equal(first, drawn(Outcomes(values), "s", 50, 1))
    # Two models share the draws.
    np.testing.assert_allclose(drawn(Outcomes(5 - values), "s", 50, 1), 5 - first)
    assert (first != drawn(Outcomes(values), "t", 50, 1)).any()
    assert (first != drawn(Outcomes(values), "s", 50, 2)).any()


def accuracies(seed: int) -> tuple[Outcomes, float]:
    return Outcomes(100.0 * (np.random.default_rng(seed).random(150) < 0.7)), 70.0


def correlations(seed: int) -> tuple[Outcomes, float]:
    x, y = np.random.default_rng(seed).multivariate_normal([0, 0], [[1, 0.6], [0.6, 1]], 200).T
    # Of two normal variables (Kruskal, Journal of the American Statistical Association 53, 1958).
    return Outcomes(y, x), 100 * 6 / np.pi * np.arcsin(0.3)


@pytest.mark.parametrize("sample", [accuracies, correlations])
def test_an_interval_holds_the_true_figure_as_often_as_it_claims(sample):
    held = 0
    for trial in range(200):
        outcomes, true = sample(trial)
        low, high = percentiles(drawn(outcomes, "", 250, trial))
        held += low <= true <= high
    assert 0.89 <= held / 200 <= 0.99


def test_intervals_are_filled_in_for_sets_and_average():
    before = result(a=pairs(), b=Outcomes(np.array([100.0, 0, 100, 100, 0, 100, 0, 100])))
    after = with_intervals(before, 300)
    assert with_intervals(before, 300) == after
    for name, one in after.figures.items():
        assert one.interval[0] < one.value == before.figures[name].value < one.interval[1]
    # Errors of sets drawn apart from each other partly cancel out.
    widths = [np.ptp(one.interval) for one in after.figures.values()]
    assert np.ptp(after.average_interval) < sum(widths) / 2
    assert with_intervals(after, 0) == before


@pytest.mark.parametrize("other", [None, Outcomes(np.array([0.1, 0.2]), np.array([1.0, 2.0]))])
def test_without_items_or_with_too_few_there_is_no_interval(other):
    after = with_intervals(result(a=pairs(), b=other), 200)
    assert after.figures["a"].interval is not None
    assert after.figures["b"].interval is None
    assert after.average_interval is None


def test_p_values_by_hand():
    # 3 of 99 draws are at or below zero: 2 * (1 + 3) / 100.
    differences = np.array([-1.0, -2.0, 0.0, *[5.0] * 96])
    assert p_value(differences) == p_value(-differences) == pytest.approx(0.08)
    assert p_value(np.full(99, 3.0)) == pytest.approx(0.02)
    assert p_value(np.zeros(99)) == 1.0
    assert p_value(np.full(99, np.nan)) is None


def test_holm_by_hand():
    # Smallest times three, next times two, largest times one; never falling.
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([None, 0.02]) == [None, 0.02]


def test_the_interval_of_retention_is_that_of_the_ratio_draw_by_draw():
    teacher = result(a=pairs(), b=pairs(seed=1))
    student = result(a=pairs(noise=1.2), b=pairs(seed=1, noise=1.2))
    of = [
        np.mean([drawn(one.outcomes, name, 200, 0) for name, one in model.figures.items()], axis=0)
        for model in (student, teacher)
    ]
    ends = retention_interval(student, teacher, 200)
    assert ends == pytest.approx(percentiles(100 * of[0] / of[1]))
    # Items hard for both cancel out: it is narrower than with separate draws.
    assert np.ptp(ends) < np.ptp(percentiles(100 * of[0] / np.roll(of[1], 1)))


OTHERS = [
    result(b=pairs()),
    result(a=pairs(59)),
    result(a=pairs(texts="other")),
    result(a=Outcomes(pairs().values, pairs().gold[::-1].copy())),
    result(a=Outcomes(pairs().gold)),
    result(a=None),
]


@pytest.mark.parametrize("other", OTHERS)
def test_models_on_other_items_are_not_compared(other):
    assert retention_interval(result(a=pairs()), other, 50) is None
    with pytest.raises(DataError, match="item by item"):
        compare(other, result(a=pairs()), draws=100)


def test_the_order_of_the_sets_does_not_matter():
    one, other = result(a=pairs(noise=1.2), b=pairs(seed=1)), result(b=pairs(seed=1), a=pairs())
    assert retention_interval(one, other, 50) is not None
    row, same, average = compare(one, other, draws=100)
    assert (row.label, row.b, same.difference) == ("a", other.figures["a"].value, 0)
    assert average.difference == pytest.approx(one.average - other.average)


def test_nothing_is_shown_without_a_teacher_above_zero_or_enough_draws():
    assert (
        retention_interval(result(a=pairs()), result(a=Outcomes(-pairs().values, pairs().gold)), 50) is None
    )
    with pytest.raises(DataError, match="item by item"):
        compare(replace(result(a=pairs()), headline=None), result(a=pairs()), draws=100)
    with pytest.raises(DataError, match="use 40"):
        compare(result(a=pairs()), result(a=pairs()), draws=39)


def test_a_real_difference_is_found_and_an_absent_one_is_not():
    gold = np.random.default_rng(0).random(300)

    def noisy(values: np.ndarray, seed: int, noise: float) -> np.ndarray:
        return values + noise * np.random.default_rng(seed).standard_normal(len(values))

    hard = noisy(gold, 1, 0.4)  # wrong on the same items for all models
    a = result(real=Outcomes(hard, gold), absent=Outcomes(noisy(hard, 2, 0.05), gold))
    b = result(real=Outcomes(noisy(hard, 3, 0.3), gold), absent=Outcomes(noisy(hard, 4, 0.05), gold))
    real, absent, average = compare(a, b, draws=500)
    assert (real.verdict, absent.verdict) == ("A is better", "no difference shown")
    assert 0 < real.interval[0] < real.difference < real.interval[1]
    assert absent.interval[0] < 0 < absent.interval[1]
    # The sets are corrected for their number, the average is one test.
    assert [real.p_corrected, absent.p_corrected] == holm([real.p_value, absent.p_value])
    assert (average.label, average.p_corrected) == (AVERAGE, average.p_value)
    assert average.difference == pytest.approx(a.average - b.average)
    turned = compare(b, a, draws=500)[0]
    assert (turned.verdict, turned.p_value) == ("B is better", real.p_value)
    # Items in common make a small difference visible.
    of_a, of_b = (drawn(model.figures["real"].outcomes, "real", 500, 0) for model in (a, b))
    assert np.ptp(real.interval) < np.ptp(percentiles(of_a - np.roll(of_b, 1)))


def test_a_difference_is_claimed_where_there_is_none_no_more_often_than_the_level_allows():
    rng = np.random.default_rng(5)
    claimed = 0
    for trial in range(100):
        a, b = (result(x=Outcomes(100.0 * (rng.random(200) < 0.6))) for _ in "ab")
        (row,) = compare(a, b, draws=300, seed=trial)
        claimed += row.verdict != "no difference shown"
    assert claimed <= 11
