"""Data frames and lists as sources: vectors align with their rows, and nothing is lost without a word."""

from __future__ import annotations

import json
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
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


def test_lazy_frames_and_streamed_datasets_are_read_a_piece_at_a_time(tmp_path):
    polars, datasets = pytest.importorskip("polars"), pytest.importorskip("datasets")
    texts = [f"text {number}" for number in range(500)]
    whole = built(texts, tmp_path / "whole").corpus().info.digest
    polars.DataFrame({"body": texts, "n": range(500)}).write_parquet(tmp_path / "rows.parquet")
    lazy = polars.scan_parquet(tmp_path / "rows.parquet").filter(polars.col("n") >= 0)
    stream = datasets.IterableDataset.from_generator(lambda: ({"body": text} for text in texts))
    for number, source in enumerate((lazy, stream)):
        cache = built(source, tmp_path / str(number), text_column="body")
        assert cache.corpus().info.digest == whole
    with pytest.raises(InputError, match="no column 'other'"):
        built(lazy, tmp_path / "k", text_column="other")


ROWS = [
    {"title": "Cats", "body": "They sleep.", "year": 1999},
    {"title": None, "body": "They bark.", "year": 2001},
    {"title": "", "body": None, "year": None},
]


@pytest.mark.parametrize("kind", ["memory", "jsonl", "csv", "parquet"])
def test_a_template_makes_one_text_of_several_columns(tmp_path, kind):
    source: Any = ROWS
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "rows.parquet")
        source = tmp_path / "rows.parquet"
    elif kind != "memory":
        source = tmp_path / f"rows.{kind}"
        lines = [json.dumps(row) for row in ROWS]
        if kind == "csv":
            lines = ["title,body,year", "Cats,They sleep.,1999", ",They bark.,2001", ",,"]
        source.write_text("\n".join(lines) + "\n")
    cache = built(source, tmp_path / "k", on_bad="skip", text_template="{title}: {body} {{{year}}}")
    assert cache.corpus().texts() == ["Cats: They sleep. {1999}", ": They bark. {2001}"]
    assert dict(cache.result.skipped) == {"empty": 1}


@pytest.mark.parametrize("kind", ["memory", "jsonl"])
def test_a_key_that_objects_lack_is_a_gap_even_in_the_first(tmp_path, kind):
    source: Any = [
        {"title": "a"},
        {"title": "b", "body": "text", "doc": {"x": "y"}},
        {"body": "c", "doc": None},
    ]
    if kind == "jsonl":
        lines, source = [json.dumps(row) for row in source], tmp_path / "rows.jsonl"
        source.write_text("\n".join(lines))
    cache = built(source, tmp_path / "k", text_template="{title}.{body}.{doc.x}", on_bad="skip")
    assert cache.corpus().texts() == ["a..", "b.text.y", ".c."]
    cache = built(source, tmp_path / "other", text_column="doc.x", on_bad="skip")
    assert cache.corpus().texts() == ["y"]


def test_dates_truth_values_and_decimals_stand_in_templates_as_they_are_written(tmp_path):
    day, moment = date(2026, 1, 31), datetime(2026, 1, 31, 12, 30)
    rows = [{"a": day, "b": moment, "c": True, "d": Decimal("1.50"), "e": 2020.0, "f": 0.5, "g": None}]
    cache = built(pa.Table.from_pylist(rows), tmp_path / "k", text_template="{a} {b} {c} {d} {e} {f}{g}")
    assert cache.corpus().texts() == ["2026-01-31 2026-01-31T12:30:00 true 1.50 2020 0.5"]


def test_only_error_and_skip_say_what_to_do_with_bad_rows(tmp_path):
    with pytest.raises(InputError, match="expected error or skip"):
        built(["a"], tmp_path / "k", on_bad="drop")


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"text_template": "no column"}, "in braces"),
        ({"text_template": "{title"}, "expected '}'"),
        ({"text_template": "{}"}, "in braces"),
        ({"text_template": "{title!r}"}, "columns alone"),
        ({"text_template": "{title} {other}"}, "no column 'other'"),
        ({"text_template": "{title}", "text_column": "body"}, "leave text_column"),
    ],
)
def test_templates_that_make_no_text_are_refused(tmp_path, options, word):
    with pytest.raises(InputError, match=word):
        built(ROWS, tmp_path / "k", **options)


def test_fields_inside_columns_stand_in_templates_and_views_of_columns_beside_them(tmp_path):
    rows = [{"doc": {"title": f"t{n}", "text": f"x{n}"}, "other": f"o{n}"} for n in range(5)]
    options = {"text_template": "{doc.title}. {doc.text}", "views": ["v=column:other"]}
    cache = built(rows, tmp_path / "k", **options)
    assert cache.corpus().texts()[0] == "t0. x0"
    assert cache.corpus().view("v").texts() == [f"o{n}" for n in range(5)]
