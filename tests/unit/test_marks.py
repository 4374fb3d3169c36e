"""Marks of bad shards: they are not lost by damage, and go with what they are of or when somebody says so."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from share_helpers import TEXTS, bad_cache, make_cache, mark_bad

from distill.data.dataset import open_dataset
from embedcache.cache import Cache
from embedcache.check import repair, verify
from embedcache.cli.main import cli
from embedcache.errors import CorruptCacheError, InputError
from embedcache.fsio import read_sealed_json, write_sealed_json
from embedcache.housekeeping import collect_garbage, remove_bad, remove_shards, remove_teacher
from embedcache.sample_notes import SAMPLED, all_sample_notes, bad_shards, forget_removed
from embedcache.share import PullChoice, pull, push
from embedcache.testing import fake_teacher

CONTRACT = fake_teacher(8).contract


def shards_of(cache: Path) -> frozenset[str]:
    return frozenset(Cache(cache).container(CONTRACT).names())


def marked(cache: Path) -> frozenset[str]:
    return bad_shards(Cache(cache), CONTRACT.id)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """Return a cache of one shard, which is marked as bad from the remote ``team``."""
    make_cache(tmp_path / "mine", TEXTS[:40], name="mine")
    mark_bad(tmp_path / "mine", str(tmp_path / "team"), shards_of(tmp_path / "mine"))
    return tmp_path / "mine"


# Damage


def test_what_cannot_be_read_is_not_taken_for_no_mark(tmp_path: Path, mine: Path) -> None:
    (notes,) = mine.glob(f"derived/remotes/*/{SAMPLED}")
    notes.write_bytes(notes.read_bytes() + b" ")
    remedy = rf"{SAMPLED} is damaged \(.*\), so nobody knows .* pull from every remote again"
    for use in (
        lambda: open_dataset(Cache(mine), corpus="mine"),
        lambda: push(mine, str(tmp_path / "other")),
    ):
        with pytest.raises(CorruptCacheError, match=remedy):
            use()
    assert not (tmp_path / "other").exists()
    (damage,) = verify(mine).damage
    assert damage.path.endswith(f"/{SAMPLED}")
    assert "pull from every remote again, which compares" in damage.way_out
    repair(mine)
    assert not notes.exists()
    assert len(open_dataset(Cache(mine), corpus="mine")) == 40


def test_notes_of_older_versions_are_read_and_what_is_none_says_nothing(mine: Path) -> None:
    before = marked(mine)
    (path,) = mine.glob(f"derived/remotes/*/{SAMPLED}")
    value = read_sealed_json(path)
    del value["notes"][CONTRACT.id]["earlier"]
    write_sealed_json(path, value)
    assert marked(mine) == before != frozenset()
    write_sealed_json(path, {"notes": {CONTRACT.id: {"verdict": 1}}})
    assert marked(mine) == frozenset()
    assert verify(mine).damage == []


def test_a_mark_stays_as_long_as_any_marked_shard_is_here(tmp_path: Path, mine: Path) -> None:
    make_cache(tmp_path / "theirs", TEXTS[40:80], name="theirs")
    (new,) = shards_of(tmp_path / "theirs")

    mark_bad(mine, str(tmp_path / "team"), frozenset({new}))
    forget_removed(Cache(mine), CONTRACT.id, lambda: {new})
    assert marked(mine) == {new}
    forget_removed(Cache(mine), CONTRACT.id, lambda: {"other"})
    assert marked(mine) == frozenset()


def test_notes_on_more_shards_than_small_files_have_room_for_are_sound(mine: Path) -> None:
    (bad,) = marked(mine)
    (notes,) = all_sample_notes(Cache(mine))
    many = frozenset(hashlib.sha256(str(number).encode()).hexdigest() for number in range(70_000))
    notes.revise(CONTRACT.id, lambda note: replace(note, known=many))
    (path,) = mine.glob(f"derived/remotes/*/{SAMPLED}")
    assert path.stat().st_size > 4 << 20
    assert verify(mine).damage == []
    assert marked(mine) == {bad}


# Deleting


def test_what_was_deleted_is_compared_again_should_it_come_again(tmp_path: Path) -> None:
    mine, team = tmp_path / "mine", str(tmp_path / "team")
    bad_cache(mine, TEXTS[:40], "texts")
    (wrong,) = shards_of(mine)
    push(mine, team)
    make_cache(tmp_path / "theirs", TEXTS[:40], name="texts")
    (right,) = shards_of(tmp_path / "theirs")
    push(tmp_path / "theirs", team)
    # Whoever was first is believed, wrongly here.
    pull(mine, team)
    assert marked(mine) == {right}
    remove_shards(Cache(mine), "fake", [wrong[:8]])
    (notes,) = all_sample_notes(Cache(mine))
    assert wrong not in notes.of(CONTRACT.id).known | notes.of(CONTRACT.id).earlier
    # The way out that is documented: the wrong push is taken back or left out, and what came is kept.
    (own,) = [
        path.stem for path in (tmp_path / "team" / "manifests").iterdir() if wrong in path.read_text("utf-8")
    ]
    pull(mine, team, PullChoice(skip_manifests=[own[:12]]), sample_check=False)
    assert shards_of(mine) == {right}
    assert marked(mine) == frozenset()
    assert len(open_dataset(Cache(mine), corpus="texts")) == 40


def test_marks_go_with_the_teacher(mine: Path) -> None:
    (bad,) = marked(mine)
    remove_teacher(Cache(mine), "fake")
    # Built anew, the same vectors are a shard of the same name.
    make_cache(mine, TEXTS[:40], name="mine")
    assert shards_of(mine) == {bad}
    assert marked(mine) == frozenset()
    assert len(open_dataset(Cache(mine), corpus="mine")) == 40


def test_they_stay_where_the_teacher_has_another_name(mine: Path) -> None:
    before = marked(mine)
    cache = Cache(mine)
    cache.register_teacher("other", CONTRACT, {"spec": "fake"})
    remove_teacher(cache, "fake")
    assert marked(mine) == before != frozenset()


def test_marks_go_with_vectors_that_nothing_needs(tmp_path: Path, mine: Path) -> None:
    CliRunner().invoke(cli, ["rm", "corpus", "mine", "--cache", str(mine), "--yes"])
    assert collect_garbage(Cache(mine), hours=0, unused_vectors=True)
    assert shards_of(mine) == frozenset()
    assert marked(mine) == frozenset()


def test_marks_of_shards_that_are_gone_can_be_taken_away(mine: Path) -> None:
    (bad,) = marked(mine)
    next(mine.rglob(f"{bad}.arrow")).unlink()
    command = ["rm", "teacher", "fake", "--bad", "--cache", str(mine)]
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 0, done.output
    assert (
        "none of the bad shards of teacher 'fake' is here any more; their marks are gone now" in done.output
    )
    assert marked(mine) == frozenset()


@pytest.mark.parametrize(
    "remove", [remove_bad, lambda cache, name: remove_shards(cache, name, _names(cache))]
)
def test_an_lmdb_file_that_was_emptied_is_where_the_next_vectors_go(tmp_path: Path, remove) -> None:
    mine = tmp_path / "mine"
    make_cache(mine, TEXTS[:40], name="mine", store="lmdb")
    mark_bad(mine, str(tmp_path / "team"), shards_of(mine))
    remove(Cache(mine), "fake")
    assert shards_of(mine) == frozenset()
    with pytest.raises(InputError, match="keeps these vectors in lmdb, not in arrow"):
        make_cache(mine, TEXTS[:40], name="mine", store="arrow")
    make_cache(mine, TEXTS[:40], name="mine")
    assert verify(mine).damage == []
    assert Cache(mine).container(CONTRACT).kind == "lmdb"
    assert len(open_dataset(Cache(mine), corpus="mine")) == 40


def _names(cache: Cache) -> list[str]:
    return [name[:8] for name in cache.container(CONTRACT).names()]


# Keeping


def test_what_another_remote_has_too_is_kept_by_a_pull_from_there(tmp_path: Path, mine: Path) -> None:
    """And only that: what is bad from elsewhere alone, a pull from here says nothing about."""
    (bad,) = marked(mine)
    make_cache(tmp_path / "theirs", TEXTS[:40], name="mine")
    push(tmp_path / "theirs", str(tmp_path / "other"))
    make_cache(tmp_path / "more", TEXTS[40:80], name="more")
    push(tmp_path / "more", str(tmp_path / "third"))
    pull(mine, str(tmp_path / "third"), sample_check=False)
    pull(mine, str(tmp_path / "other"))
    assert marked(mine) == {bad}
    done = pull(mine, str(tmp_path / "other"), sample_check=False)
    assert any("1 shard that an earlier sample found bad kept" in line for line in done.told)
    assert marked(mine) == frozenset()
    assert len(open_dataset(Cache(mine), corpus="mine")) == 40
