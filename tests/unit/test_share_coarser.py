"""Rows that a remote has in a finer codec are not sent there in a coarser one, to be read in their place."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from share_helpers import TEXTS, make_cache, make_key, without_indexes

from embedcache.cache import Cache
from embedcache.errors import StorageError
from embedcache.share import PullChoice, compare_with_remote, pull, push
from embedcache.share.rows.remote_keys import RemoteKeys
from embedcache.split import split_cache
from embedcache.testing import fake_teacher, sentences

TEACHER = fake_teacher(8)
MORE = sentences(40, seed=9)


def shards_of(cache: Path) -> set[str]:
    return set(Cache(cache).container(TEACHER.contract).names())


def codecs_of(cache: Path) -> set[str]:
    return {shard.codec.name for shard in Cache(cache).store(TEACHER.contract).shards}


def objects_of(remote: str) -> set[str]:
    return {path.name for path in Path(remote).glob("objects/??/*")}


@pytest.fixture
def team(tmp_path: Path) -> str:
    """Return a remote with the float16 vectors of all texts."""
    push(make_cache(tmp_path / "theirs", codec="float16"), str(tmp_path / "team"))
    return str(tmp_path / "team")


@pytest.fixture
def cut(tmp_path: Path, team: str) -> Path:
    """Return a cache with int8 rows of a hundred of the texts, the last of them cut from a copy."""
    pull(tmp_path / "small", team, PullChoice(codec="int8"), sample_check=False)
    split_cache(tmp_path / "small", tmp_path / "cut", corpora=["corpus"], first=100, name="some")
    assert codecs_of(tmp_path / "cut") == {"int8"}
    assert shards_of(tmp_path / "cut") - shards_of(tmp_path / "small")
    return tmp_path / "cut"


def test_what_the_remote_has_in_a_finer_codec_is_not_sent(tmp_path: Path, team: str, cut: Path) -> None:
    fresh = shards_of(cut) - shards_of(tmp_path / "small")
    done = push(cut, team)
    assert not objects_of(team) & shards_of(cut)
    (told,) = done.told
    assert told.startswith(f"{len(fresh)} shard not sent: {team} has all of its rows in a codec that keeps")
    # What the owner reads stays what it was.
    owner = tmp_path / "theirs"
    before = Cache(owner).lookup(TEXTS)
    pull(owner, team, sample_check=False)
    assert codecs_of(owner) == {"float16"}
    assert np.array_equal(Cache(owner).lookup(TEXTS), before)
    # Somebody else has none of them.
    push(cut, str(tmp_path / "elsewhere"))
    assert objects_of(str(tmp_path / "elsewhere")) >= shards_of(cut)


def test_a_shard_with_a_row_that_the_remote_lacks_is_sent_and_the_others_are_told_of(
    tmp_path: Path, team: str
) -> None:
    mixed = make_cache(tmp_path / "mixed", [*TEXTS[:30], *MORE[:10]], codec="int8", name="mixed")
    done = push(mixed, team)
    assert objects_of(team) >= shards_of(mixed.folder)
    (told,) = done.told
    assert told.startswith(f"30 rows of 1 shard to be sent are on {team} in a codec that keeps more")
    # What is there is no news, and nothing to be told again.
    assert push(mixed, team).told == ()


def test_shards_that_keep_as_much_or_more_are_sent_whatever_is_there(tmp_path: Path) -> None:
    team = str(tmp_path / "team")
    push(make_cache(tmp_path / "theirs", codec="int8"), team)
    for name, codec, rows in (("same", "int8", 100), ("finer", "float16", 100), ("finest", "float32", 100)):
        mine = make_cache(tmp_path / name, TEXTS[:rows], codec=codec, name=name, shard_rows=50)
        assert push(mine, team).told == ()
        assert objects_of(team) >= shards_of(mine.folder)


def test_rows_that_are_there_in_part_finer_and_in_part_the_same_are_not_sent(tmp_path: Path) -> None:
    team = str(tmp_path / "team")
    push(make_cache(tmp_path / "finer", TEXTS[:40], codec="float32", name="finer"), team)
    push(make_cache(tmp_path / "same", TEXTS[40:80], codec="int8", name="same"), team)
    mine = make_cache(tmp_path / "mine", TEXTS[:80], codec="int8", name="mine", shard_rows=80)
    (told,) = push(mine, team).told
    assert told.startswith("1 shard not sent")
    assert not objects_of(team) & shards_of(mine.folder)
    # Of the same alone nothing would be read otherwise.
    other = make_cache(tmp_path / "other", TEXTS[40:70], codec="int8", name="other", shard_rows=80)
    assert push(other, team).told == ()
    assert objects_of(team) >= shards_of(other.folder)


def test_diff_counts_what_push_sends(tmp_path: Path, team: str, cut: Path) -> None:
    def to_push(remote: str) -> int:
        lines = compare_with_remote(cut, remote).lines
        return sum(line.cache_files for line in lines if line.kind == "teacher")

    assert to_push(team) == 0
    assert "no push sends it" in compare_with_remote(cut, team).told[0]
    push(make_cache(tmp_path / "other", MORE, name="other"), str(tmp_path / "elsewhere"))
    assert to_push(str(tmp_path / "elsewhere")) == len(shards_of(cut))


def test_row_indexes_are_not_fetched_where_there_is_no_room_for_them(
    tmp_path: Path, team: str, cut: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Rows that were taken from the remote are looked up in its row indexes, too.
    taken = tmp_path / "taken"
    pull(taken, team, PullChoice(corpora=["corpus"], rows=10), sample_check=False)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    for cache in (cut, taken):
        for path in cache.glob("derived/remotes/*/*.index"):
            path.unlink()
        for act in (push, compare_with_remote):
            with pytest.raises(StorageError, match=r"bytes would have to be fetched, and 1,000 are free"):
                act(cache, team)
        assert not list(cache.glob("derived/remotes/*/*.index"))
    monkeypatch.undo()
    # Those that are here need no room.
    compare_with_remote(cut, team)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    compare_with_remote(cut, team)


def test_what_a_key_has_not_signed_does_not_count(tmp_path: Path, team: str, cut: Path) -> None:
    private, _ = make_key(tmp_path, "key")
    done = push(cut, team, sign=private)
    assert not any("not sent" in line for line in done.told)
    assert objects_of(team) >= shards_of(cut)


def test_teachers_are_looked_at_one_by_one(tmp_path: Path, team: str) -> None:
    other = fake_teacher(8, seed=3, name="other")
    mine = make_cache(tmp_path / "mine", TEXTS[:40], teacher=other, codec="int8", name="mine")
    assert push(mine, team).told == ()
    assert objects_of(team) >= set(mine.container(other.contract).names())


def test_the_usual_push_reads_no_row_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = fake_teacher(512)
    team = str(tmp_path / "team")
    push(make_cache(tmp_path / "theirs", teacher=wide, codec="float16"), team)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a row index was read")

    monkeypatch.setattr(RemoteKeys, "load", refuse)
    for codec in ("float16", "float32"):
        mine = make_cache(tmp_path / codec, MORE, teacher=wide, codec=codec, name=codec)
        assert push(mine, team).sent > 0


def test_only_indexes_that_can_tell_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards that are too small for a finer codec, by their bytes, are not looked into."""
    wide = fake_teacher(512)
    team = str(tmp_path / "team")
    theirs = make_cache(tmp_path / "theirs", TEXTS[:40], teacher=wide, codec="float16", name="theirs")
    push(theirs, team)
    push(make_cache(tmp_path / "small", TEXTS[40:80], teacher=wide, codec="int8", name="small"), team)
    read: list[set[str]] = []
    load = RemoteKeys.load

    def watched(self: RemoteKeys, *args: object, **rest: object) -> None:
        read.append({shard.sha256 for shard in self.shards})
        load(self, *args, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(RemoteKeys, "load", watched)
    mine = make_cache(tmp_path / "mine", MORE, teacher=wide, codec="int8", name="mine")
    push(mine, team)
    assert read[0] == set(theirs.container(wide.contract).names())


def test_shards_without_a_row_index_are_not_fetched_for_it_and_that_is_told(
    tmp_path: Path, team: str, cut: Path
) -> None:
    without_indexes(Path(team))
    fresh = shards_of(cut) - shards_of(tmp_path / "small")
    told = push(cut, team).told
    assert any(line.startswith(f"6 shards of {team} without a row index are not looked at") for line in told)
    assert objects_of(team) >= fresh


def test_row_indexes_are_fetched_by_as_many_threads_as_a_push_has(
    tmp_path: Path, team: str, cut: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[object] = []
    load = RemoteKeys.load

    def watched(self: RemoteKeys, *args: object, **rest: object) -> None:
        if args:
            jobs.append(args[1])
        load(self, *args, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(RemoteKeys, "load", watched)
    push(cut, team, jobs=3)
    assert jobs
    assert set(jobs) == {3}
