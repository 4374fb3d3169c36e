"""Rows of two texts, and the choice of rows by their columns, out of every format with columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from flat_build import build
from input_helpers import PAIR_ROWS
from pair_helpers import joined, pair_file

from embedcache.cache import Cache
from embedcache.cli.main import cli
from embedcache.corpus.readers import ReadOptions
from embedcache.corpus.sources import expand_sources
from embedcache.corpus.view_store import ColumnCells
from embedcache.errors import InputError
from embedcache.projection import PROJECTION, extend, write_derived
from embedcache.repair import repair
from embedcache.testing import FakeEncoder, fake_teacher
from embedcache.verify import verify

PAIRS = ReadOptions("one", label_column="label", text2_column="two")


def test_a_column_beside_pairs_is_that_of_the_rows_kept(tmp_path: Path) -> None:
    rows = [{**row, "three": f"cell {number}"} for number, row in enumerate(PAIR_ROWS)]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    texts = ["a cat\x1fa dog", "a stone\x1fthe road", "a river\x1fthe house"]
    cells = ColumnCells(expand_sources([path]), PAIRS, "three")
    assert cells.make(0, texts) == ["cell 0", "cell 2", "cell 6"]
    firsts = [text.split("\x1f")[0] for text in texts]
    with pytest.raises(InputError, match="does not fit"):
        ColumnCells(expand_sources([path]), PAIRS, "three").make(0, firsts)


def made(tmp_path: Path, **options: Any) -> Cache:
    teacher = fake_teacher(8)
    file = pair_file(tmp_path / "pairs.tsv", 30)
    settings = {"text_column": "premise", "text2_column": "hypothesis", **options}
    return build(file, teacher=teacher, encoder=FakeEncoder(teacher), cache=tmp_path / "cache", **settings)


def test_a_build_counts_rows_that_were_not_asked_for(tmp_path: Path) -> None:
    summary = made(tmp_path, rows=["split=train"]).result
    assert summary is not None
    assert (summary.rows, summary.not_asked, summary.skipped) == (20, 10, {})


def test_other_rows_of_the_same_file_are_another_corpus(tmp_path: Path) -> None:
    made(tmp_path, rows=["split=train"])
    with pytest.raises(InputError, match="another corpus called 'pairs'"):
        made(tmp_path, rows=["split=dev"])
    replaced = made(tmp_path, rows=["split=dev"], overwrite=True)
    assert len(replaced.corpus()) == 10
    again = made(tmp_path, rows=["split=dev"]).result
    assert again is not None
    assert again.encoded == 0


def test_the_texts_of_a_pair_can_be_told_apart_on_a_terminal(tmp_path: Path) -> None:
    cache = made(tmp_path)
    command = ["query", "SELECT text FROM rows LIMIT 1", "--cache", str(cache.folder)]
    shown = CliRunner().invoke(cli, command, env={"COLUMNS": "200"}).output
    first, second = joined(30)[0].split("\x1f")
    assert f"{first} \u241f {second}" in shown
    assert "\x1f" not in shown


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
        assert "distill project" in finding.fix
        (left,) = repair(cache.folder).left
        assert "distill project" in left.detail
    path.write_bytes(data)
    assert not verify(cache.folder).findings
