"""The sample that a first pull compares: what it says where the model is not here."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner
from share_helpers import make_cache

from embedcache.cli.main import cli
from embedcache.share import pull, push


def test_a_model_that_is_not_here_is_told_of_with_what_to_do(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "mine")
    push(cache, str(tmp_path / "remote"))
    (check,) = pull(tmp_path / "there", str(tmp_path / "remote")).samples
    (teacher,) = cache.teachers()
    assert (check.verdict, check.sampled) == ("not compared", 0)
    told = f"verify --deep --teacher {teacher.contract.id[:12]} --teacher-model FOLDER"
    assert told in check.told
    # That command is there, and gets as far as to look for the model.
    words = ["--cache", str(tmp_path / "there"), *told.replace("FOLDER", str(tmp_path / "no")).split()[1:]]
    result = CliRunner().invoke(cli, ["verify", *words])
    assert result.exit_code != 0
    assert "there is no such folder" in f"{result.output}{result.exception}"
