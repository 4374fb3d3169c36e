"""Intervals and p-values: against figures taken draw by draw, and against how often they ought to hold."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from rich.console import Console
from scipy.stats import pearsonr, spearmanr

from distill.evaluation import bootstrap
from distill.evaluation.bootstrap import (
    average_of,
    drawn_figures,
    p_value,
    percentile_interval,
    resampled,
    retention_interval,
    with_intervals,
)
from distill.evaluation.classification import f1
from distill.evaluation.old_fidelity import score_fidelity
from distill.evaluation.old_geometry import score_geometry
from distill.evaluation.result import EvaluationResult, ModelReport
from distill.evaluation.scores import (
    Draws,
    MeanOutcomes,
    Outcomes,
    PairOutcomes,
    PercentileOutcomes,
    RatioOutcomes,
    SetScore,
    SetScores,
    WholeScores,
    ends_of,
)


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


def further(outcomes: Outcomes, others: dict[str, float | None], draws: int = 7) -> dict[str, np.ndarray]:
    """The further measures of every draw of a set."""
    score = SetScore("S", "figure", 50.0, len(outcomes), others=others, outcomes=outcomes)
    figures = bootstrap._all_figures(score, outcomes)
    return bootstrap._taken(figures, len(outcomes), draws, 3)


def drawn_items(items: int, draws: int = 7) -> list[np.ndarray]:
    counts = np.concatenate(list(bootstrap._draws(items, draws, 3)), axis=1)
    return [np.repeat(np.arange(items), draw) for draw in counts.T.astype(int)]


def test_further_measures_of_pairs_are_those_of_the_same_draws():
    plain = pairs()
    subsets = np.repeat([0.0, 1.0, 2.0], [10, 20, 30])
    outcomes = PairOutcomes(plain.gold, plain.predicted, subsets)
    found = further(outcomes, {"pearson": 1.0, "spearman_mean_of_subsets": 1.0})
    np.testing.assert_array_equal(found[""], resampled(plain, 7, 3))
    for number, items in enumerate(drawn_items(60)):
        a, b = plain.gold[items], plain.predicted[items]
        assert found["pearson"][number] == pytest.approx(100 * pearsonr(a, b).statistic)
        own = [spearmanr(a[rows], b[rows]).statistic for rows in (subsets[items] == s for s in range(3))]
        assert found["spearman_mean_of_subsets"][number] == pytest.approx(100 * np.mean(own))
    assert (found["pearson"] != found[""]).all()
    # What has no figure, or cannot be told from what is kept, has no interval.
    assert set(further(outcomes, {"pearson": 1.0, "spearman_mean_of_subsets": None})) == {"", "pearson"}
    assert set(further(plain, {"pearson": 1.0, "spearman_mean_of_subsets": 1.0})) == {"", "pearson"}


def test_a_draw_of_equal_pairs_has_no_pearson():
    outcomes = PairOutcomes(np.array([0.1, 0.7]), np.array([0.3, 0.9]))
    found = further(outcomes, {"pearson": 100.0}, draws=200)["pearson"]
    assert np.isnan(found).any()
    np.testing.assert_allclose(found[np.isfinite(found)], 100)


def test_further_measures_of_examples_are_those_of_the_same_draws():
    rng = np.random.default_rng(4)
    gold, said = rng.integers(2, size=(2, 50))
    there, answered = gold == 1, said == 1
    parts = RatioOutcomes(2.0 * (there & answered), there * 1.0 + answered)
    ranks = rng.random(50)
    outcomes = MeanOutcomes((gold == said).astype(float), {"f1": parts, "mrr": ranks})
    found = further(outcomes, {"f1": 50.0, "mrr": 50.0})
    for number, items in enumerate(drawn_items(50)):
        assert found["f1"][number] == pytest.approx(f1(gold[items], said[items], 1))
        assert found["mrr"][number] == pytest.approx(100 * ranks[items].mean())
        assert found[""][number] == pytest.approx(100 * (gold == said)[items].mean())


def test_intervals_of_further_measures_are_in_json_and_few_of_them_in_tables():
    outcomes = MeanOutcomes(np.arange(40) % 2.0, {"mrr": np.linspace(0, 1, 40), "x": np.linspace(0, 1, 40)})
    score = SetScore("S", "accuracy", 50.0, 40, others={"mrr": 50.0, "x": None}, outcomes=outcomes)
    after = with_intervals(SetScores({"s": score}, 1), 200)
    low, high = after.sets["s"].intervals["mrr"]
    assert low < 50 < high
    assert after.sets["s"].to_json()["intervals"] == {"mrr": [round(low, 4), round(high, 4)]}
    assert dict(after.rows())["mrr, 95 % interval"] == {"S": f"{low:.1f} to {high:.1f}"}
    assert with_intervals(after, 0).sets["s"].intervals == {}
    names = ("a", "b", "c")
    many = MeanOutcomes(outcomes.values, dict.fromkeys(names, outcomes.values))
    wide = SetScore("S", "ndcg", 50.0, 40, others=dict.fromkeys(names, 50.0), outcomes=many)
    told = with_intervals(SetScores({"s": wide}, 1), 100)
    assert set(told.sets["s"].intervals) == set(names)
    assert [name for name, _ in told.rows()] == ["ndcg", "95 % interval", *names]


def test_intervals_of_a_whole_model():
    rng = np.random.default_rng(5)
    teacher = rng.standard_normal((300, 8)).astype(np.float32)
    student = teacher + 0.5 * rng.standard_normal((300, 8)).astype(np.float32)
    likeness = with_intervals(score_fidelity(student, teacher), 300)
    figures = {
        "cosine_mean": likeness.cosine_mean,
        "cosine_p05": likeness.cosine_p05,
        "similarity_spearman": likeness.similarity_spearman,
    }
    assert set(likeness.intervals) == set(figures)
    shape = with_intervals(score_geometry(teacher + 0.5, student[:50], teacher[:50]), 300)
    assert set(shape.intervals) == {"alignment", "uniformity", "anisotropy"}
    figures |= {"uniformity": shape.uniformity, "alignment": shape.alignment, "anisotropy": shape.anisotropy}
    for name, ends in (*likeness.intervals.items(), *shape.intervals.items()):
        assert ends is not None
        assert ends[0] < figures[name] < ends[1], name
    assert with_intervals(shape, 0).intervals == {}
    # The same on fewer sentences is less certain.
    few = with_intervals(score_fidelity(student[:60], teacher[:60]), 300)
    assert np.ptp(few.intervals["cosine_mean"]) > np.ptp(likeness.intervals["cosine_mean"])


def test_intervals_of_measures_over_all_pairs_are_as_wide_as_new_sentences_make_them():
    rng = np.random.default_rng(6)
    mixing = rng.standard_normal((6, 6))
    figures, widths = [], []
    for _ in range(150):
        teacher = (rng.standard_normal((80, 6)) @ mixing + 0.4).astype(np.float32)
        student = (teacher + 1.5 * rng.standard_normal((80, 6))).astype(np.float32)
        likeness, shape = score_fidelity(student, teacher), score_geometry(teacher, student, teacher)
        figures.append((likeness.similarity_spearman, shape.uniformity, shape.anisotropy))
        outcomes = {**likeness.outcomes, **shape.outcomes}
        names = ("similarity_spearman", "uniformity", "anisotropy")
        values = np.array([outcomes[name] for name in names])
        np.testing.assert_allclose(values.mean(axis=1), figures[-1], atol=1e-9)
        widths.append(values.std(axis=1) / np.sqrt(80))
    np.testing.assert_allclose(np.mean(widths, axis=0), np.std(figures, axis=0), rtol=0.25)


def test_measures_of_a_whole_model_share_their_draws_where_they_are_of_as_many_items(monkeypatch):
    asked = []

    def counted(items: int, samples: int, seed: int | tuple[int, ...]) -> Iterator[NDArray[np.float64]]:
        asked.append(items)
        return draws(items, samples, seed)

    draws = bootstrap._draws
    monkeypatch.setattr(bootstrap, "_draws", counted)
    values = np.random.default_rng(2).standard_normal(50)
    outcomes = {"a": values, "b": values + 3, "c": values[:20], "d": PercentileOutcomes(values, 50)}
    after = with_intervals(WholeScores(outcomes=outcomes), 80)
    assert asked == [50, 20]
    assert list(after.intervals) == ["a", "b", "c", "d"]
    np.testing.assert_allclose(np.array(after.intervals["a"]) + 3, after.intervals["b"])


def test_nothing_is_drawn_again_where_draws_and_seed_are_the_same(monkeypatch):
    sets = with_intervals(scored(a=pairs()), 60, seed=2)
    whole = with_intervals(WholeScores(outcomes={"a": np.arange(9.0)}), 60, seed=2)

    def refuse(*_: object) -> None:
        raise AssertionError("drawn again")

    monkeypatch.setattr(bootstrap, "_taken", refuse)
    for scores in (sets, whole):
        assert with_intervals(scores, 60, seed=2) is scores
        for samples, seed in ((61, 2), (60, 3)):
            with pytest.raises(AssertionError, match="drawn again"):
                with_intervals(scores, samples, seed)
        assert with_intervals(scores, 0).drawn is None


def test_the_interval_of_retention_is_that_of_the_ratio_draw_by_draw():
    gold, good = pairs().gold, pairs().predicted
    worse = good + np.random.default_rng(8).normal(0, 0.05, len(good))
    teacher = scored(a=PairOutcomes(gold, good), b=PairOutcomes(gold, good[::-1] * 0.2 + gold))
    student = scored(a=PairOutcomes(gold, worse), b=PairOutcomes(gold, worse[::-1] * 0.2 + gold))
    one, two = with_intervals(student, 200), with_intervals(teacher, 200)
    ratios = 100 * average_of(drawn_figures(student, 200)) / average_of(drawn_figures(teacher, 200))
    interval = retention_interval(one, two)
    assert interval == percentile_interval(ratios)
    # What is hard for both drops out: it is narrower than if each had draws of its own.
    apart = retention_interval(one, replace(two, drawn=Draws(200, 0, np.roll(two.drawn.averages, 1))))
    assert np.ptp(interval) < np.ptp(apart)
    assert retention_interval(two, two) == pytest.approx((100, 100))


def test_no_interval_of_retention_without_the_same_draws_of_the_same_items():
    one, two = with_intervals(scored(a=pairs()), 50), with_intervals(scored(a=pairs(seed=4)), 50)
    assert retention_interval(one, two) is not None
    assert retention_interval(one, with_intervals(two, 51)) is None
    assert retention_interval(one, with_intervals(two, 50, seed=1)) is None
    assert retention_interval(one, with_intervals(two, 0)) is None
    assert retention_interval(one, with_intervals(scored(b=pairs(seed=4)), 50)) is None
    assert retention_interval(one, with_intervals(scored(a=pairs(seed=4), b=pairs()), 50)) is None
    assert retention_interval(one, WholeScores()) is None
    below = replace(two, drawn=Draws(50, 0, -two.drawn.averages))
    assert retention_interval(one, below) is None


def test_a_range_with_an_end_below_zero_is_told_from_its_sign():
    assert ends_of((-1.6, 9.2)) == "-1.6 to 9.2"
    assert ends_of((-3.25, -1.5), "+.2f") == "-3.25 to -1.50"


@pytest.mark.parametrize(("width", "there"), [(80, False), (120, True)])
def test_the_interval_of_retention_is_in_the_table_where_there_is_room(width, there):
    teacher = ModelReport("teacher", "teacher", 1, 1.0, 8, None, with_intervals(scored(a=pairs()), 50))
    own = with_intervals(scored(a=pairs(seed=4)), 50)
    student = ModelReport("a-student-of-few-layers", "model", 1, 1.0, 8, None, own).beside(teacher)
    assert teacher.beside(teacher).retention_interval is None
    low, high = student.retention_interval
    assert student.to_json()["retention_interval"] == [round(low, 2), round(high, 2)]
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(EvaluationResult("sts", (teacher.beside(teacher), student)).table())
    text = console.export_text()
    assert ("its 95 % interval" in text) is there
    assert (f"{low:.1f} to {high:.1f}" in text) is there
    assert f"{student.retention:.2f} %" in text


def test_percentiles_of_draws_are_those_of_the_items_drawn():
    values = np.random.default_rng(7).random(41)
    figure = bootstrap._percentile_of_counts(PercentileOutcomes(values, 5))
    found = bootstrap._taken({"p": figure}, 41, 7, 3)["p"]
    np.testing.assert_allclose(found, [np.percentile(values[items], 5) for items in drawn_items(41)])
