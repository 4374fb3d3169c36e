"""Pairs of texts from the file to the commands: a pair is a row like any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from flat_build import build
from pair_helpers import joined, pair_file

from embedcache.cache import Cache
from embedcache.cli.main import cli
from embedcache.errors import InputError
from embedcache.testing import FakeEncoder, fake_teacher


def built(tmp_path: Path, **options: Any) -> Cache:
    teacher, file = fake_teacher(8), pair_file(tmp_path / "pairs.tsv", 30)
    settings = {"text_column": "premise", "text2_column": "hypothesis", **options}
    return build(file, teacher=teacher, encoder=FakeEncoder(teacher), cache=tmp_path / "cache", **settings)


def test_pairs_are_built_counted_and_looked_up(tmp_path: Path) -> None:
    result = built(tmp_path, rows=["split=train"]).result
    assert result is not None
    assert (result.rows, result.not_asked, result.skipped) == (20, 10, {})
    assert built(tmp_path, rows=["split=dev"], overwrite=True).lookup([joined(30)[3]]).shape == (1, 8)
    with pytest.raises(InputError, match="views are made of single texts"):
        built(tmp_path, views=["crop"], overwrite=True)


def test_both_texts_of_a_pair_are_shown(tmp_path: Path) -> None:
    cache = str(built(tmp_path).folder)
    command = ["query", "SELECT text FROM rows LIMIT 1", "--cache", cache]
    shown = CliRunner().invoke(cli, command, env={"COLUMNS": "200"}).output
    assert joined(30)[0].replace("\x1f", " \u241f ") in shown
