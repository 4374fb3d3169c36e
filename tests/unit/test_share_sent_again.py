"""What a remote lists and has lost is sent again, also where it has the same rows elsewhere by now."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from share_helpers import content, make_cache

from embedcache.share import PullChoice, check_remote, pull, push


def a_copy(source: str, cache: Path) -> None:
    pull(cache, source, PullChoice(codec="int8"), sample_check=False)


def taken_rows(source: str, cache: Path) -> None:
    pull(cache, source, PullChoice(corpora=["corpus"], rows=10), sample_check=False)


@pytest.mark.parametrize("bring", [a_copy, taken_rows])
def test_a_shard_that_was_deleted_as_damaged(tmp_path: Path, bring: Callable[[str, Path], None]) -> None:
    team, other = tmp_path / "team", tmp_path / "other"
    push(make_cache(tmp_path / "source"), str(other))
    bring(str(other), tmp_path / "ann")
    # Before the remote has what it came from, it is news to it; afterwards it would be none.
    push(tmp_path / "ann", str(team))
    push(tmp_path / "source", str(team))
    shard = next((tmp_path / "ann").glob("teachers/*/shards/*.arrow"))
    broken = team / "objects" / shard.stem[:2] / shard.stem
    broken.write_bytes(bytes(broken.stat().st_size))
    (fault,) = check_remote(str(team), delete_damaged=True).faults
    assert fault.deleted
    assert not broken.exists()
    # Who has none of it sends nothing.
    assert push(tmp_path / "source", str(team)).sent == 0
    assert push(tmp_path / "ann", str(team)).sent == 1
    assert check_remote(str(team)).is_sound
    pull(tmp_path / "bob", str(team), PullChoice(corpora=["corpus"], teachers=["fake"]), sample_check=False)
    assert shard.name in {Path(path).name for path in content(tmp_path / "bob")}
