"""Notes on shards that count only where they were written."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from embedcache import own_notes
from embedcache.birth import birth_ns
from embedcache.cache import Cache
from embedcache.check.verify import verify
from embedcache.conversions import Conversions
from embedcache.fsio import read_sealed_json, write_sealed_json
from embedcache.own_notes import ANCHOR, OwnNotes

SOURCE = "5" * 64


def shard(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()


def noted(cache: Path) -> list[str]:
    return sorted(Conversions(Cache(cache)).all())


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache with one note."""
    folder = Cache.create(tmp_path / "cache").folder
    Conversions(Cache(folder)).add({shard(0): SOURCE})
    return folder


def file_of(cache: Path) -> Path:
    return cache / "derived" / "remotes" / "converted.json"


def test_notes_last_and_are_part_of_a_sound_cache(cache: Path) -> None:
    assert Conversions(Cache(cache)).get(shard(0)) == SOURCE
    assert Conversions(Cache(cache)).get(shard(1)) is None
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
    Conversions(Cache(cache)).add({shard(1): SOURCE})
    assert written == [[shard(0)], sorted([shard(0), shard(1)])]


@pytest.mark.parametrize("step", ["create", "written", "synced", "renamed", "recorded"])
def test_a_kill_at_any_moment_loses_no_other_note(cache: Path, step: str) -> None:
    program = (
        "import os, signal, sys\n"
        "from embedcache import fsio\n"
        "from embedcache.cache import Cache\n"
        "from embedcache.conversions import Conversions\n"
        "notes = Conversions(Cache(sys.argv[1]))\n"
        "def die(step, path):\n"
        "    if step == sys.argv[2]:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "fsio.on_write_step = die\n"
        "notes.add({sys.argv[3]: 64 * '5'})\n"
    )
    died = subprocess.run([sys.executable, "-c", program, str(cache), step, shard(1)], check=False)
    assert died.returncode == -signal.SIGKILL
    committed = [shard(1)] if step in ("renamed", "recorded") else []
    assert noted(cache) == sorted([shard(0), *committed])
    # And nobody waits for the lock of one who is gone.
    Conversions(Cache(cache)).add({shard(2): SOURCE})
    assert noted(cache) == sorted([shard(0), shard(2), *committed])


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
    Conversions(Cache(cache)).add({shard(1): SOURCE})
    monkeypatch.undo()
    assert noted(cache) == sorted([shard(0), shard(1)])


def test_a_copy_of_the_folder_vouches_for_nothing(cache: Path, tmp_path: Path) -> None:
    shutil.copytree(cache, tmp_path / "copy")
    assert noted(tmp_path / "copy") == []
    assert noted(cache) == [shard(0)]
    # It makes notes of its own, and the others do not come back with them.
    Conversions(Cache(tmp_path / "copy")).add({shard(1): SOURCE})
    assert noted(tmp_path / "copy") == [shard(1)]
    # A rename is no copy.
    cache.rename(tmp_path / "elsewhere")
    assert noted(tmp_path / "elsewhere") == [shard(0)]


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


def test_two_processes_lose_nothing_to_each_other(tmp_path: Path) -> None:
    folder = Cache.create(tmp_path / "cache").folder
    program = (
        "import hashlib, sys\n"
        "from embedcache.cache import Cache\n"
        "from embedcache.conversions import Conversions\n"
        "notes = Conversions(Cache(sys.argv[1]))\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "for number in range(60):\n"
        "    notes.add({hashlib.sha256(f'{sys.argv[2]}{number}'.encode()).hexdigest(): 64 * 'a'})\n"
    )
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(folder), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in "ab"
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.communicate("go\n", timeout=300)
        assert writer.returncode == 0
    assert len(noted(folder)) == 120


def test_without_a_cache_or_a_place_to_write_notes_last_as_long_as_the_object(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone: OwnNotes[str] = OwnNotes(None, "some.json", str, lambda note: note)
    alone.add({shard(1): "a"})
    assert alone.get(shard(1)) == "a"

    def refuse(*args: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    notes = Conversions(Cache(cache))
    notes.add({shard(1): SOURCE})
    assert dict(notes.all()) == {shard(0): SOURCE, shard(1): SOURCE}
    assert noted(cache) == [shard(0)]


def test_what_others_add_meanwhile_is_kept_and_known(cache: Path) -> None:
    one, other = Conversions(Cache(cache)), Conversions(Cache(cache))
    one.add({shard(1): SOURCE})
    other.add({shard(2): SOURCE})
    assert sorted(other.all()) == noted(cache) == sorted(map(shard, range(3)))


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
