"""Intervals and p-values: against figures taken draw by draw, and against how often they ought to hold."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr

from distill.evaluation import bootstrap
from distill.evaluation.bootstrap import (
    average_of,
    drawn_figures,
    p_value,
    percentile_interval,
    resampled,
    with_intervals,
)
from distill.evaluation.scores import MeanOutcomes, Outcomes, PairOutcomes, SetScore, SetScores


def pairs(n: int = 60, seed: int = 0, noise: float = 1.0) -> PairOutcomes:
    rng = np.random.default_rng(seed)
    gold = np.round(rng.random(n) * 5)  # many ties
    return PairOutcomes(gold, np.round(gold + noise * rng.standard_normal(n), 1))


def scored(**outcomes: Outcomes | None) -> SetScores:
    sets = {}
    for name, one in outcomes.items():
        value = 50.0
        if isinstance(one, PairOutcomes):
            value = 100 * float(spearmanr(one.gold, one.predicted).statistic)
        elif isinstance(one, MeanOutcomes):
            value = 100 * float(one.values.mean())
        sets[name] = SetScore(name, "figure", value, 10 if one is None else len(one), outcomes=one)
    return SetScores(sets, len(sets))


@pytest.mark.parametrize("block", [1, 150, 10**6])
def test_every_draw_has_the_figure_of_the_items_drawn(monkeypatch, block):
    monkeypatch.setattr(bootstrap, "_BLOCK", block)
    outcomes = pairs()
    counts = np.concatenate(list(bootstrap._draws(len(outcomes), 7, 3)), axis=1)
    assert (counts.sum(axis=0) == len(outcomes)).all()
    expected = []
    for draw in counts.T.astype(int):
        items = np.repeat(np.arange(len(outcomes)), draw)
        expected.append(100 * spearmanr(outcomes.gold[items], outcomes.predicted[items]).statistic)
    np.testing.assert_allclose(resampled(outcomes, 7, 3), expected, atol=1e-9)
    values = (outcomes.gold > 2).astype(float)
    np.testing.assert_allclose(
        resampled(MeanOutcomes(values), 7, 3), 100 * (values @ counts) / len(values), atol=1e-9
    )


def test_draws_are_those_of_the_seed_and_the_same_for_all_outcomes_of_a_length():
    values = pairs().gold / 5
    first = resampled(MeanOutcomes(values), 50, 1)
    np.testing.assert_array_equal(first, resampled(MeanOutcomes(values), 50, 1))
    assert (first != resampled(MeanOutcomes(values), 50, 2)).any()
    np.testing.assert_allclose(resampled(MeanOutcomes(1 - values), 50, 1), 100 - first, atol=1e-9)


def test_the_interval_of_a_mean_holds_the_true_one_as_often_as_it_says():
    rng = np.random.default_rng(0)
    held = 0
    for trial in range(300):
        values = (rng.random(150) < 0.7).astype(float)
        ends = percentile_interval(resampled(MeanOutcomes(values), 400, trial))
        assert ends is not None
        held += ends[0] <= 70 <= ends[1]
    assert 0.90 <= held / 300 <= 0.98


def test_the_interval_of_a_correlation_holds_the_true_one_as_often_as_it_says():
    rng = np.random.default_rng(1)
    correlation = 0.6
    # Of two normal variables (Kruskal, Journal of the American Statistical Association 53, 1958).
    true = 100 * 6 / np.pi * np.arcsin(correlation / 2)
    held = 0
    for trial in range(120):
        x, y = rng.multivariate_normal([0, 0], [[1, correlation], [correlation, 1]], 200).T
        ends = percentile_interval(resampled(PairOutcomes(x, y), 250, trial))
        assert ends is not None
        held += ends[0] <= true <= ends[1]
    assert 0.89 <= held / 120 <= 1


def test_intervals_are_filled_in_for_sets_and_average():
    before = scored(a=pairs(), b=MeanOutcomes(np.array([1.0, 0, 1, 1, 0, 1, 0, 1])))
    after = with_intervals(before, 300)
    for name, score in after.sets.items():
        assert score.interval is not None
        assert score.interval[0] < score.value < score.interval[1]
        assert score.value == before.sets[name].value
    assert after.average_interval is not None
    # Errors of sets drawn apart from each other partly cancel out.
    widths = [high - low for low, high in (score.interval or (0, 0) for score in after.sets.values())]
    assert after.average_interval[1] - after.average_interval[0] < sum(widths) / 2
    facts = after.to_json()
    assert facts["average_interval"] == [round(end, 4) for end in after.average_interval]
    assert "95 % interval" in after.summary()
    assert with_intervals(before, 300) == after


def test_no_interval_where_there_is_nothing_to_draw_from():
    before = scored(a=pairs(), b=None)
    after = with_intervals(before, 100)
    assert after.sets["a"].interval is not None
    assert after.sets["b"].interval is None
    # An average over sets of which one has no outcomes does not vary by the others alone.
    assert after.average_interval is None
    assert with_intervals(before, 0) == before
    assert with_intervals(after, 0) == before
    assert with_intervals("no sets") == "no sets"
    assert "95 % interval" not in before.summary()


def test_draws_of_a_set_do_not_depend_on_what_other_sets_are_there():
    both, one = scored(a=pairs(), b=pairs(seed=5)), scored(b=pairs(seed=5))
    np.testing.assert_array_equal(drawn_figures(both, 40)["b"], drawn_figures(one, 40)["b"])
    same = scored(a=pairs(), b=pairs())
    drawn = drawn_figures(same, 40)
    assert (drawn["a"] != drawn["b"]).any()
    np.testing.assert_allclose(average_of(drawn), (drawn["a"] + drawn["b"]) / 2)


def test_a_set_too_small_to_be_ranked_in_most_draws_has_no_interval():
    outcomes = PairOutcomes(np.array([1.0, 2.0]), np.array([0.1, 0.2]))
    figures = resampled(outcomes, 200, 0)
    assert np.isnan(figures).any()
    assert set(figures[np.isfinite(figures)]) <= {100.0}
    assert percentile_interval(figures) is None
    assert p_value(figures) is None
    assert with_intervals(scored(a=outcomes), 200).average_interval is None


def test_p_values_by_hand():
    # 3 of 99 draws are at or below zero: 2 * (1 + 3) / 100.
    assert p_value(np.array([-1.0, -2.0, 0.0, *[5.0] * 96])) == pytest.approx(0.08)
    assert p_value(-np.array([-1.0, -2.0, 0.0, *[5.0] * 96])) == pytest.approx(0.08)
    assert p_value(np.full(99, 3.0)) == pytest.approx(0.02)
    assert p_value(np.zeros(99)) == 1.0
