"""Rows that are asked for by the values of their columns, and what is said where there are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from distill.classification.rows import Columns, read_labelled
from distill.errors import DataError
from embedcache.corpus.conditions import RowConditions
from embedcache.corpus.readers import ReadOptions, ReadReport, read_batches
from embedcache.errors import InputError


def row(*values: object) -> tuple[object, ...]:
    return 1, "a text", None, None, *values


@pytest.mark.parametrize("wrong", ["split", "=train", "split=", ""])
def test_a_condition_has_a_column_and_a_value(wrong):
    with pytest.raises(InputError, match=r"--rows '.*': expected COLUMN=VALUE, such as split=train"):
        RowConditions(["lang=en", wrong])


def test_all_conditions_have_to_hold():
    conditions = RowConditions(["split=train", "stars=5", "a=b=c"])
    assert conditions.columns == [("--rows", "split"), ("--rows", "stars"), ("--rows", "a")]
    # Numbers are compared as they are written; of a value the first sign of equality is none.
    assert conditions.hold(row("train", 5, "b=c"))
    assert not conditions.hold(row("train", 4, "b=c"))
    assert not conditions.hold(row("dev", 5, "b=c"))
    assert conditions.not_asked == 2


def test_what_columns_other_than_these_hold_does_not_matter():
    assert RowConditions(["split=train"]).hold((1, "a text", None, None, "a second text", "train"))
    assert RowConditions([]).hold(row("train"))
    # A line that could not be taken apart is somebody else's to judge.
    assert RowConditions(["split=train"]).hold((1, "malformed", None, None))


def test_the_values_that_there_are_are_told_the_commonest_first():
    conditions = RowConditions(["split=validation", "lang=en"])
    for split, lang in [("dev", "en"), ("train", "de"), ("train", "en"), (None, "en")]:
        assert not conditions.hold(row(split, lang))
    assert conditions.describe_none() == (
        "none of its 4 rows has split=validation and lang=en: 'split' has 'train' (2), 'dev' (1), 'None' (1)"
        "; 'lang' has 'en' (3), 'de' (1); give --rows with values that stand in one row"
    )


def test_of_many_values_a_few_are_told_and_long_ones_are_cut():
    conditions = RowConditions(["id=x"])
    for number in range(1200):
        conditions.hold(row("y" * 100 if number % 2 else number))
    told = conditions.describe_none()
    assert f"'{'y' * 37}...' (600), '0' (1), '2' (1), '4' (1), '6' (1) and 596 others;" in told
    assert len(told) < 250
    for number in range(3000):
        conditions.hold(row(f"n{number}"))
    assert "and 995 or more others" in conditions.describe_none()


def test_a_value_that_no_row_has_is_answered_with_those_there_are(tmp_path: Path):
    path = tmp_path / "rows.tsv"
    path.write_text("split\tlabel\ttext\ntrain\t1\ta cat\ntrain\t0\ta dog\ndev\t1\ta bird\n")
    with pytest.raises(
        DataError, match=r"rows\.tsv: none of its 3 rows has split=test: 'split' has 'train' \(2\)"
    ):
        read_labelled(path, Columns("text"), ["split=test"])
    with pytest.raises(InputError, match=r"none of its 3 rows has split=test: .*'dev' \(1\)"):
        list(read_batches([path], ReadOptions("text", rows=("split=test",)), ReadReport()))
    assert read_labelled(path, Columns("text"), ["split=dev"]).texts == ["a bird"]
