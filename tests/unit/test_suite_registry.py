"""Results survive JSON, and a suite outside the package is found by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from distill.errors import DataError
from distill.evaluation import cache
from distill.evaluation.result import (
    Evaluation,
    Figure,
    MeanOfSeeds,
    ModelFacts,
    Outcomes,
    Spread,
    SuiteResult,
)
from distill.evaluation.task import get_suite

OUTSIDE = """
from distill.evaluation.result import Figure, SuiteResult

def lengths(encode, data, options):
    '''Length of vectors.'''
    return SuiteResult({"length": Figure(float((encode(["a"]) ** 2).sum()), "length")})
"""


def evaluation() -> Evaluation:
    rng = np.random.default_rng(0)
    pairs = Outcomes(rng.random(9), rng.random(9), "digest")
    values = Outcomes(100 * rng.random(7))
    figures = {
        "a": Figure(200 / 3, "spearman", (1.5, 99.0), 9, {"pearson": 1 / 3}, pairs, "A", skipped=2),
        "b": Figure(50.0, "accuracy", None, 7, outcomes=values),
    }
    teacher = SuiteResult(figures, settings={"seed": 0}, missing=("C",), notes=("two rows skipped",))
    student = SuiteResult({name: Figure(25.0, "x") for name in figures}, average_interval=(20.0, 30.0))
    return Evaluation(
        "sts",
        (
            (ModelFacts("t", "teacher", 10, 1.5, 4), teacher),
            (ModelFacts("s", run="/runs/s", seed="0+1"), student),
        ),
        teacher="t",
        notes=("a note",),
        retention_intervals={"s": (40.0, 45.5)},
        over_seeds=(Spread("s", ("s", "s2"), {"average": MeanOfSeeds(25.0, 0.5, 2)}),),
    )


def test_an_evaluation_survives_its_file_with_every_bit_of_its_outcomes(tmp_path: Path) -> None:
    before = evaluation()
    cache.write_kept(tmp_path, cache.Kept({"data": "d"}, before))
    kept = cache.read_kept(tmp_path, "sts")
    assert kept is not None
    after = kept.evaluation
    assert after == before
    for name, figure in before["t"].figures.items():
        assert figure.outcomes is not None
        assert np.array_equal(after["t"].figures[name].outcomes.values, figure.outcomes.values)


def test_retention_is_the_share_of_the_teachers_average_with_its_interval() -> None:
    retention = evaluation().retention("s")
    assert retention is not None
    assert retention.value == pytest.approx(100 * 25 / ((200 / 3 + 50) / 2))
    assert retention.interval == (40.0, 45.5)


def test_a_suite_outside_the_package_is_named_by_module_or_file(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "outside_suite.py").write_text(OUTSIDE)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("outside_suite:lengths", f"{tmp_path}/outside_suite.py:lengths"):
        suite = get_suite(name)
        result = suite.run(lambda texts: np.full((len(texts), 2), 3.0, np.float32), tmp_path, None)
        assert (suite.name, suite.summary, result.figures["length"].value) == (
            "lengths",
            "Length of vectors.",
            18.0,
        )


@pytest.mark.parametrize("name", ["stss", "no_such_module:f", "json:no_such_function"])
def test_an_unknown_suite_is_an_error_that_names_it(name: str) -> None:
    with pytest.raises(DataError, match=name):
        get_suite(name)
