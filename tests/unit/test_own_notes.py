"""Notes on shards that count only where they were written."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from note_helpers import SOURCE, shard
from processes import run_together

from embedcache import own_notes
from embedcache.birth import birth_ns
from embedcache.cache import Cache
from embedcache.check.verify import verify
from embedcache.corpus.description import checked_digest
from embedcache.fsio import read_sealed_json, write_sealed_json
from embedcache.own_notes import ANCHOR, OwnNotes

NAME = "indexes.json"


def notes_of(cache: Path) -> OwnNotes[str]:
    return OwnNotes(Cache(cache), NAME, checked_digest, lambda note: note)


def noted(cache: Path) -> list[str]:
    return sorted(notes_of(cache).all())


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache with one note."""
    folder = Cache.create(tmp_path / "cache").folder
    notes_of(folder).add({shard(0): SOURCE})
    return folder


def file_of(cache: Path) -> Path:
    return cache / "derived" / "remotes" / NAME


def test_notes_last_and_are_part_of_a_sound_cache(cache: Path) -> None:
    assert notes_of(cache).get(shard(0)) == SOURCE
    assert notes_of(cache).get(shard(1)) is None
    assert not verify(cache).findings


def test_each_write_is_whole_by_itself(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[list[str]] = []
    write = write_sealed_json

    def killed(target: Path, value: dict[str, object]) -> None:
        # What is known should the process end just before or just after.
        written.append(noted(cache))
        write(target, value)
        written.append(noted(cache))

    monkeypatch.setattr(own_notes, "write_sealed_json", killed)
    notes_of(cache).add({shard(1): SOURCE})
    assert written == [[shard(0)], sorted([shard(0), shard(1)])]


def test_a_change_of_modes_matters_to_nobody(cache: Path) -> None:
    file_of(cache).chmod(0o640)
    assert noted(cache) == [shard(0)]
    file_of(cache).with_name(ANCHOR).chmod(0o664)
    if birth_ns(file_of(cache)) is not None:
        assert noted(cache) == [shard(0)]


def test_either_time_of_the_anchor_vouches(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # On a machine that is not told when it was made.
    monkeypatch.setattr(own_notes, "birth_ns", lambda path: None)
    assert noted(cache) == [shard(0)]
    notes_of(cache).add({shard(1): SOURCE})
    monkeypatch.undo()
    assert noted(cache) == sorted([shard(0), shard(1)])


@pytest.mark.parametrize("changed", [0, "both"])
def test_an_anchor_of_another_inode_or_other_times_vouches_for_nothing(cache: Path, changed: object) -> None:
    value = read_sealed_json(file_of(cache))
    inode, when, born = value["anchor"]
    value["anchor"] = [inode + 1, when, born] if changed == 0 else [inode, when + 1, (born or 0) + 1]
    write_sealed_json(file_of(cache), value)
    assert noted(cache) == []


def test_two_unknown_births_are_not_the_same(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_notes, "birth_ns", lambda path: None)
    value = read_sealed_json(file_of(cache))
    inode, when, _ = value["anchor"]
    value["anchor"] = [inode, when + 1, None]
    write_sealed_json(file_of(cache), value)
    assert noted(cache) == []


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"anchor": None, "notes": {shard(1): SOURCE}},
        {"notes": {shard(1): SOURCE}},
        {"anchor": [1, 2, 3], "notes": [shard(1)]},
        {shard(1): SOURCE},
    ],
)
def test_what_is_no_file_of_notes_is_none(cache: Path, value: dict[str, object]) -> None:
    write_sealed_json(file_of(cache), value)
    assert noted(cache) == []


@pytest.mark.parametrize("change", [lambda notes: list(notes), lambda notes: {**notes, shard(1): 7}])
def test_notes_of_another_form_are_none(cache: Path, change: Callable[[object], object]) -> None:
    value = read_sealed_json(file_of(cache))
    write_sealed_json(file_of(cache), {**value, "notes": change(value["notes"])})
    assert noted(cache) == []


def test_a_lost_anchor_takes_the_notes_along(cache: Path) -> None:
    file_of(cache).with_name(ANCHOR).unlink()
    assert noted(cache) == []


def test_a_change_is_made_to_the_note_as_it_stands(cache: Path) -> None:
    one, other = notes_of(cache), notes_of(cache)
    assert one.update(shard(1), lambda note: note or "a" * 64) == "a" * 64
    assert other.get(shard(1)) is None
    assert other.update(shard(1), lambda note: note or SOURCE) == "a" * 64
    assert noted(cache) == sorted([shard(0), shard(1)])


def test_processes_that_change_one_note_lose_nothing_to_each_other(tmp_path: Path) -> None:
    folder = Cache.create(tmp_path / "cache").folder
    program = (
        "import sys, time\n"
        "from embedcache.cache import Cache\n"
        "from embedcache.own_notes import OwnNotes\n"
        "notes = OwnNotes(Cache(sys.argv[1]), 'some.json', str, lambda note: note)\n"
        "def count(note):\n"
        "    time.sleep(0.001)\n"
        "    return str(int(note or 0) + 1)\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "for _ in range(30):\n"
        "    notes.update(64 * 'a', count)\n"
    )
    run_together(program, [str(folder)], [str(folder)])
    notes: OwnNotes[str] = OwnNotes(Cache(folder), "some.json", str, lambda note: note)
    assert notes.get("a" * 64) == "60"


def test_without_a_cache_or_a_place_to_write_notes_last_as_long_as_the_object(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone: OwnNotes[str] = OwnNotes(None, "some.json", str, lambda note: note)
    alone.add({shard(1): "a"})
    assert alone.get(shard(1)) == "a"
    assert alone.update(shard(1), lambda note: f"{note}b") == alone.get(shard(1)) == "ab"

    def refuse(*args: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    notes = notes_of(cache)
    notes.add({shard(1): SOURCE})
    assert dict(notes.all()) == {shard(0): SOURCE, shard(1): SOURCE}
    assert notes.update(shard(1), lambda note: (note or "")[:-1] + "6") == SOURCE[:-1] + "6"
    assert notes.get(shard(1)) == SOURCE[:-1] + "6"
    assert noted(cache) == [shard(0)]


def test_a_birth_is_neither_changed_nor_copied(tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.touch()
    born = birth_ns(made)
    if born is None:
        pytest.skip("the file system does not tell")
    made.chmod(0o600)
    os.utime(made, ns=(1, 1))
    made.write_bytes(b"more")
    assert birth_ns(made) == born
    shutil.copy2(made, tmp_path / "copy")
    assert birth_ns(tmp_path / "copy") != born
    with pytest.raises(FileNotFoundError):
        birth_ns(tmp_path / "none")
