"""Shards that a merge or a split has cut: not sent back to where their rows are, nor taken for whole ones."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from share_helpers import TEXTS, OtherVectors, content, make_cache

from embedcache.builder import build
from embedcache.cache import Cache
from embedcache.merge import merge_caches
from embedcache.share import PullChoice, compare_with_remote, pull, push
from embedcache.split import split_cache
from embedcache.store.base import CONVERTED_FROM, TAKEN_AS
from embedcache.testing import fake_teacher

TEACHER = fake_teacher(8)
PART: dict[str, Any] = {"corpora": ["corpus"], "where": "row % 4 = 0", "alias": "some"}


@pytest.fixture
def team(tmp_path: Path) -> str:
    """Return a remote with the vectors of all texts."""
    push(make_cache(tmp_path / "theirs"), str(tmp_path / "team"))
    return str(tmp_path / "team")


@pytest.fixture
def mine(tmp_path: Path, team: str) -> Path:
    """Return a cache that has taken a quarter of the rows, which came alone."""
    pull(tmp_path / "mine", team, PullChoice(**PART), sample_check=False)
    assert said(tmp_path / "mine", TAKEN_AS) == ["float16"]
    return tmp_path / "mine"


def said(cache: Path, field: str) -> list[object]:
    """Return what the shards of a cache say in a field of their provenance; None where they do not."""
    store = Cache(cache).store(TEACHER.contract)
    return [shard.header.provenance.get(field) for shard in store.shards]


def shards_of(cache: Path) -> set[str]:
    return {Path(path).stem for path in content(cache) if "/shards/" in path}


def objects_of(remote: str) -> set[str]:
    return {path.name for path in Path(remote).glob("objects/??/*")}


def test_what_is_left_of_taken_rows_is_not_fetched_again_nor_sent_back(
    tmp_path: Path, team: str, mine: Path
) -> None:
    # Five of the sixty texts have other vectors in another cache, whose word counts.
    disputed = TEXTS[:20:4]
    source = tmp_path / "other.txt"
    source.write_text("".join(f"{text}\n" for text in disputed), encoding="utf-8")
    build(source, teacher=TEACHER, encoder=OtherVectors(TEACHER), cache=tmp_path / "other", name="other")
    whole = shards_of(mine)
    merged = merge_caches([mine, tmp_path / "other"], tmp_path / "merged", prefer="last")
    (teacher,) = merged.teachers
    assert teacher.shards is not None
    assert (teacher.shards.whole, teacher.shards.cut, teacher.lost) == (1, 1, 5)
    assert sorted(said(tmp_path / "merged", TAKEN_AS), key=str) == [None, "float16"]
    cut = shards_of(tmp_path / "merged") - shards_of(tmp_path / "other")
    assert not cut & whole
    # All of the keys are here: nothing comes, and no vector that has lost comes back.
    pull(tmp_path / "merged", team, PullChoice(**PART), sample_check=False)
    assert shards_of(tmp_path / "merged") == cut | shards_of(tmp_path / "other")
    assert np.array_equal(
        Cache(tmp_path / "merged").lookup(disputed), Cache(tmp_path / "other").lookup(disputed)
    )
    # The team has these rows; what it cannot know of is sent.
    push(tmp_path / "merged", team)
    assert not objects_of(team) & cut
    assert objects_of(team) >= shards_of(tmp_path / "other")
    # Somebody else has none of them.
    push(tmp_path / "merged", str(tmp_path / "elsewhere"))
    assert objects_of(str(tmp_path / "elsewhere")) >= cut


def test_diff_does_not_count_taken_rows_as_to_be_sent_back(tmp_path: Path, team: str, mine: Path) -> None:
    def to_push(remote: str) -> int:
        lines = compare_with_remote(mine, remote).lines
        return sum(line.cache_files for line in lines if line.kind == "teacher")

    push(
        make_cache(tmp_path / "other", ["a text that nobody has"], name="other"), str(tmp_path / "elsewhere")
    )
    assert (to_push(team), to_push(str(tmp_path / "elsewhere"))) == (0, 1)
    push(mine, str(tmp_path / "elsewhere"))
    assert to_push(str(tmp_path / "elsewhere")) == 0


def test_a_part_of_taken_rows_is_not_sent_back(tmp_path: Path, team: str, mine: Path) -> None:
    split_cache(mine, tmp_path / "part", corpora=["some"], first=20)
    assert said(tmp_path / "part", TAKEN_AS) == ["float16"]
    assert not shards_of(tmp_path / "part") & shards_of(mine)
    push(tmp_path / "part", team)
    assert not objects_of(team) & shards_of(tmp_path / "part")
    push(tmp_path / "part", str(tmp_path / "elsewhere"))
    assert objects_of(str(tmp_path / "elsewhere")) >= shards_of(tmp_path / "part")


def test_a_part_of_a_converted_copy_is_not_taken_for_the_whole(tmp_path: Path, team: str) -> None:
    pull(tmp_path / "small", team, PullChoice(codec="int8"), sample_check=False)
    assert all(said(tmp_path / "small", CONVERTED_FROM))
    # The copies are not fetched again; a part of one lacks rows of what it was made of.
    copies = shards_of(tmp_path / "small")
    pull(tmp_path / "small", team, PullChoice(codec="int8"), sample_check=False)
    assert shards_of(tmp_path / "small") == copies
    split_cache(tmp_path / "small", tmp_path / "part", corpora=["corpus"], first=60, name="some")
    whole = [one for one in said(tmp_path / "part", CONVERTED_FROM) if one]
    assert len(whole) == 1
    pull(tmp_path / "part", team, PullChoice(codec="int8"), sample_check=False)
    assert shards_of(tmp_path / "part") > copies
    assert np.array_equal(Cache(tmp_path / "part").lookup(TEXTS), Cache(tmp_path / "small").lookup(TEXTS))


def test_converted_copies_that_come_whole_are_not_fetched_again_nor_sent_back(
    tmp_path: Path, team: str
) -> None:
    pull(tmp_path / "small", team, PullChoice(codec="int8"), sample_check=False)
    make_cache(tmp_path / "other", ["a text that nobody has"], teacher=TEACHER, name="other")
    merge_caches([tmp_path / "other", tmp_path / "small"], tmp_path / "merged")
    split_cache(tmp_path / "merged", tmp_path / "part", corpora=["corpus"])
    before = objects_of(team)
    for cache in (tmp_path / "merged", tmp_path / "part"):
        copies = shards_of(cache)
        assert copies >= shards_of(tmp_path / "small")
        pull(cache, team, sample_check=False)
        assert shards_of(cache) == copies
    push(tmp_path / "merged", team)
    push(tmp_path / "part", team)
    assert not objects_of(team) & shards_of(tmp_path / "small")
    assert objects_of(team) > before
    # What a copy of the cache says of itself is not believed, and so not handed on.
    shutil.copytree(tmp_path / "small", tmp_path / "stranger")
    merge_caches([tmp_path / "stranger"], tmp_path / "misled")
    pull(tmp_path / "misled", team, PullChoice(corpora=["corpus"]), sample_check=False)
    assert len(shards_of(tmp_path / "misled")) > len(shards_of(tmp_path / "small"))
