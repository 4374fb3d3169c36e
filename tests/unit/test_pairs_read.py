"""Rows of two texts, and the choice of rows by their columns, out of every format with columns."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pair_helpers import joined, pair_file

from embedcache.builder import build
from embedcache.cache import Cache
from embedcache.check import repair, verify
from embedcache.cli.main import cli
from embedcache.corpus.column_view import ColumnCells
from embedcache.corpus.readers import ReadOptions, ReadReport, expand_sources, read_batches
from embedcache.derived import PROJECTION, extend, write_derived
from embedcache.errors import InputError, MissingInputError
from embedcache.testing import FakeEncoder, fake_teacher

ROWS: list[dict[str, Any]] = [
    {"one": "a cat", "two": "a dog", "split": "train", "label": 1},
    {"one": "a bird", "two": "", "split": "train", "label": 0},
    {"one": "a stone", "two": "the road", "split": "dev", "label": 1},
    {"one": " ", "two": "the road", "split": "train", "label": 1},
    {"one": "a\x1fb", "two": "the road", "split": "train", "label": 1},
    {"one": "a b", "two": "the\x1froad", "split": "train", "label": 1},
    {"one": "a river", "two": "the house", "split": "train", "label": 0},
]
PAIRS = ReadOptions("one", label_column="label", text2_column="two")


def write(folder: Path, kind: str, rows: list[dict[str, Any]] = ROWS) -> Path:
    path = folder / f"rows.{kind}"
    if kind == "jsonl":
        path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    elif kind in ("csv", "tsv"):
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter="," if kind == "csv" else "\t")
            writer.writeheader()
            writer.writerows(rows)
    else:
        table = pa.Table.from_pylist(rows)
        if kind == "parquet":
            pq.write_table(table, path)
        else:
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)
    return path


def read(path: Path, options: ReadOptions) -> tuple[list[str], list[str], ReadReport]:
    report = ReadReport()
    batches = list(read_batches([path], options, report))
    texts = [text for batch in batches for text in batch.texts]
    return texts, [str(label) for batch in batches for label in batch.labels or []], report


@pytest.mark.parametrize("kind", ["jsonl", "csv", "tsv", "parquet", "arrow"])
def test_two_columns_are_a_pair_and_rows_are_chosen_by_a_third(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path, kind)
    texts, labels, report = read(path, PAIRS)
    assert texts == ["a cat\x1fa dog", "a stone\x1fthe road", "a river\x1fthe house"]
    assert labels == ["1", "1", "0"]
    assert report.skipped == {"empty": 2, "pair separator": 2}
    assert report.not_asked == 0
    texts, labels, report = read(path, ReadOptions("one", None, "label", None, None, "two", ("split=dev",)))
    assert (texts, labels) == (["a stone\x1fthe road"], ["1"])
    assert (dict(report.skipped), report.not_asked) == ({}, 6)
    both = ReadOptions("one", text2_column="two", rows=("split=train", "label=0"))
    texts, _, report = read(path, both)
    assert texts == ["a river\x1fthe house"]
    assert (dict(report.skipped), report.not_asked) == ({"empty": 1}, 5)


def test_a_null_second_text_is_skipped_and_single_texts_may_hold_no_separator(tmp_path: Path) -> None:
    rows = [{"one": "a cat", "two": None}, {"one": "a", "two": 3}, {"one": "a", "two": "b"}]
    texts, _, report = read(write(tmp_path, "jsonl", rows), ReadOptions("one", text2_column="two"))
    assert texts == ["a\x1fb"]
    assert report.skipped == {"null": 1, "not a string": 1}
    (tmp_path / "plain.txt").write_text("a cat\na\x1fdog\n", encoding="utf-8")
    texts, _, report = read(tmp_path / "plain.txt", ReadOptions())
    assert texts == ["a cat"]
    assert report.skipped == {"pair separator": 1}


def test_a_column_beside_pairs_is_that_of_the_rows_kept(tmp_path: Path) -> None:
    rows = [{**row, "three": f"cell {number}"} for number, row in enumerate(ROWS)]
    path = write(tmp_path, "jsonl", rows)
    texts, _, _ = read(path, PAIRS)
    cells = ColumnCells(expand_sources([path]), PAIRS, "three")
    assert cells.make(0, texts) == ["cell 0", "cell 2", "cell 6"]
    firsts = [text.split("\x1f")[0] for text in texts]
    with pytest.raises(InputError, match=r"row 0 .*is another there"):
        ColumnCells(expand_sources([path]), PAIRS, "three").make(0, firsts)


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        (ReadOptions("one", text2_column="three"), MissingInputError, r"no column 'three'.*--text2-column"),
        (ReadOptions("one", rows=("kind=x",)), MissingInputError, r"no column 'kind'.*--rows"),
        (ReadOptions("one", rows=("split",)), InputError, "'split': expected COLUMN=VALUE"),
        (ReadOptions("one", rows=("split=test",)), InputError, r"none of its 7 .*split=test: .*'dev' \(1\)"),
    ],
)
@pytest.mark.parametrize("kind", ["jsonl", "tsv", "parquet"])
def test_what_cannot_be_read_is_named(
    tmp_path: Path, kind: str, options: ReadOptions, error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        read(write(tmp_path, kind), options)


def test_plain_text_has_no_second_column(tmp_path: Path) -> None:
    (tmp_path / "plain.txt").write_text("a cat\n", encoding="utf-8")
    for options in (ReadOptions(text2_column="two"), ReadOptions(rows=("split=train",))):
        with pytest.raises(MissingInputError, match="plain text has no columns"):
            read(tmp_path / "plain.txt", options)


def test_the_text_column_is_found_beside_the_others(tmp_path: Path) -> None:
    rows = [{"said": "a cat", "then": "a dog", "split": "train"}]
    texts, _, _ = read(write(tmp_path, "tsv", rows), ReadOptions(text2_column="then", rows=("split=train",)))
    assert texts == ["a cat\x1fa dog"]


def made(tmp_path: Path, **options: Any) -> Cache:
    teacher = fake_teacher(8)
    file = pair_file(tmp_path / "pairs.tsv", 30)
    settings = {"text_column": "premise", "text2_column": "hypothesis", **options}
    return build(file, teacher=teacher, encoder=FakeEncoder(teacher), cache=tmp_path / "cache", **settings)


def test_a_build_counts_rows_that_were_not_asked_for(tmp_path: Path) -> None:
    summary = made(tmp_path, rows=["split=train"]).last_build
    assert summary is not None
    assert (summary.rows, summary.not_asked, summary.skipped) == (20, 10, {})


def test_other_rows_of_the_same_file_are_another_corpus(tmp_path: Path) -> None:
    made(tmp_path, rows=["split=train"])
    with pytest.raises(InputError, match="another corpus called 'pairs'"):
        made(tmp_path, rows=["split=dev"])
    replaced = made(tmp_path, rows=["split=dev"], replace=True)
    assert len(replaced.corpus()) == 10
    again = made(tmp_path, rows=["split=dev"]).last_build
    assert again is not None
    assert again.encoded == 0


def test_the_texts_of_a_pair_can_be_told_apart_on_a_terminal(tmp_path: Path) -> None:
    cache = made(tmp_path)
    command = ["query", "SELECT text FROM rows LIMIT 1", "--cache", str(cache.folder)]
    shown = CliRunner().invoke(cli, command, env={"COLUMNS": "200"}).output
    first, second = joined(30)[0].split("\x1f")
    assert f"{first} \u241f {second}" in shown
    assert "\x1f" not in shown


def test_explain_knows_pairs(tmp_path: Path) -> None:
    cache = made(tmp_path)
    columns = ["--text-column", "premise", "--text2-column", "hypothesis"]
    command = [
        "explain",
        str(tmp_path / "pairs.tsv"),
        "--teacher",
        "fake",
        "--cache",
        str(cache.folder),
        "--json",
    ]
    found = json.loads(CliRunner().invoke(cli, [*command, *columns]).output)
    assert (found["rows"], found["cached"], found["texts"]) == (30, 30, [])
    single = json.loads(CliRunner().invoke(cli, [*command, *columns[:2]]).output)
    assert (single["rows"], single["cached"]) == (30, 0)


def test_views_are_of_single_texts(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="views are made of single texts"):
        made(tmp_path, views=["crop"])
    assert not (tmp_path / "cache").exists()


def test_a_pair_can_be_looked_up(tmp_path: Path) -> None:
    cache = made(tmp_path)
    assert cache.lookup(joined(30)).shape == (30, 8)
    assert cache.lookup([joined(30)[4]]).shape == (1, 8)


def test_verify_finds_a_damaged_projection_and_repair_says_what_to_run(tmp_path: Path) -> None:
    cache = made(tmp_path)
    matrix = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
    derived = write_derived(cache, cache.teacher(), "fake.projected", matrix, "a test")
    assert list(extend(cache, derived, cache.corpus()))[-1] == (30, 30)
    assert not verify(cache.folder).findings
    path = cache.teacher_folder(derived.contract) / PROJECTION
    data = path.read_bytes()
    for damaged in (data[:-1] + b"x", None):
        path.unlink() if damaged is None else path.write_bytes(damaged)
        (finding,) = verify(cache.folder).findings
        assert finding.is_damage
        assert finding.path.endswith(PROJECTION)
        assert "distill project" in finding.way_out
        (left,) = repair(cache.folder).left
        assert "distill project" in left.detail
    path.write_bytes(data)
    assert not verify(cache.folder).findings
