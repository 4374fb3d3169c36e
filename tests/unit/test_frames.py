"""Data frames and lists as sources: vectors align with their rows, and nothing is lost without a word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedcache
from embedcache.errors import InputError
from embedcache.testing import FakeEncoder, fake_teacher

TEXTS = ["one", None, "two", "", "three", float("nan")]


def sources() -> list[Any]:
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    return [
        pandas.DataFrame({"body": TEXTS, "n": range(6)}),
        polars.DataFrame({"body": [None if text != text else text for text in TEXTS], "n": range(6)}),
        [{"body": text, "n": number} for number, text in enumerate(TEXTS)],
    ]


def built(source: object, folder: Path, **options: Any) -> embedcache.Cache:
    return embedcache.build(source, teacher=FakeEncoder(fake_teacher(16)), cache=folder, **options)


@pytest.mark.parametrize("number", range(3))
def test_unusable_texts_of_rows_in_memory_are_an_error_or_are_skipped_and_said(tmp_path, number):
    source = sources()[number]
    with pytest.raises(InputError, match=r"3 of 6 rows have no usable text.*2 null.*on_bad='skip'"):
        built(source, tmp_path / "k", text_column="body")
    cache = built(source, tmp_path / "k", text_column="body", on_bad="skip", id_column="n")
    assert cache.result.kept_rows.tolist() == [0, 2, 4]
    assert cache.result.kept_rows.dtype == np.int64
    texts = [TEXTS[row] for row in cache.result.kept_rows]
    np.testing.assert_array_equal(
        cache.lookup(texts), np.stack([cache.lookup([text])[0] for text in ("one", "two", "three")])
    )
    assert cache.corpus().texts() == texts
    # Whole numbers name rows as text.
    assert cache.corpus().ids() == ["0", "2", "4"]


def test_reading_options_are_arguments_of_a_build(tmp_path):
    rows = [{"body": f"text {n}", "kind": "a" if n % 2 else "b"} for n in range(10)]
    cache = built(rows, tmp_path / "k", text_column="body", rows=("kind=a",), limit=3, label_column="kind")
    assert cache.corpus().texts() == ["text 1", "text 3", "text 5"]
    assert cache.result.kept_rows.tolist() == [1, 3, 5]
    with pytest.raises(TypeError, match="'column'"):
        built(rows, tmp_path / "k", column="body")


def test_rows_of_a_file_have_no_places(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\ntwo\n")
    cache = built(tmp_path / "a.txt", tmp_path / "k")
    assert cache.result.kept_rows is None
    assert dict(cache.result.skipped) == {"empty": 1}
