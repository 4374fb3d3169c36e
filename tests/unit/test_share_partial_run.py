"""A part of a corpus is as good as any: students are trained on it."""

from __future__ import annotations

from pathlib import Path

import pytest
from distill_helpers import small_run

from embedcache.cache import Cache
from embedcache.check import verify
from embedcache.share import PullChoice, pull, push

pytest_plugins = ["distill_fixtures"]


@pytest.mark.parametrize("codec", [None, "int8"])
def test_a_student_is_trained_on_a_part(
    built_cache: Path, teacher_folder: Path, tmp_path: Path, codec: str | None
) -> None:
    remote = str(tmp_path / "remote")
    push(built_cache, remote)
    done = pull(
        tmp_path / "there",
        remote,
        PullChoice(corpora=["texts"], rows=120, where="characters > 5", codec=codec),
    )
    assert done.part is not None
    assert len(Cache(tmp_path / "there").corpus()) == done.part.rows == 120
    run = small_run(tmp_path / "there", tmp_path / "run", teacher_model=teacher_folder)
    assert run.result.steps > 0
    assert run.best.is_dir()
    assert not verify(tmp_path / "there").damage
