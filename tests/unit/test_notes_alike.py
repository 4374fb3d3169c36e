"""What both kinds of notes promise: those in one sealed file, and those in a file that only grows."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from note_helpers import SOURCE, shard
from processes import run_together

from embedcache.cache import Cache
from embedcache.corpus.description import checked_digest
from embedcache.note_log import NoteLog
from embedcache.own_notes import OwnNotes

OPENED = {
    "sealed": "OwnNotes(Cache(sys.argv[1]), 'some.json', str, str)",
    "grows": "NoteLog(Cache(sys.argv[1]), 'some.log')",
}


@pytest.fixture(params=OPENED)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def cache(tmp_path: Path, kind: str) -> Path:
    """A cache with one note."""
    folder = Cache.create(tmp_path / "cache").folder
    notes_of(folder, kind).add({shard(0): SOURCE})
    return folder


def notes_of(cache: Path, kind: str) -> OwnNotes[str] | NoteLog:
    if kind == "grows":
        return NoteLog(Cache(cache), "some.log")
    return OwnNotes(Cache(cache), "some.json", checked_digest, lambda note: note)


def noted(cache: Path, kind: str) -> list[str]:
    return sorted(notes_of(cache, kind).all())


def test_a_copy_of_the_folder_vouches_for_nothing(cache: Path, kind: str, tmp_path: Path) -> None:
    shutil.copytree(cache, tmp_path / "copy")
    assert noted(tmp_path / "copy", kind) == []
    assert noted(cache, kind) == [shard(0)]
    # It makes notes of its own, and the others do not come back with them.
    notes_of(tmp_path / "copy", kind).add({shard(1): SOURCE})
    assert noted(tmp_path / "copy", kind) == [shard(1)]
    # A rename is no copy.
    cache.rename(tmp_path / "elsewhere")
    assert noted(tmp_path / "elsewhere", kind) == [shard(0)]


@pytest.mark.parametrize(
    ("kind", "step", "is_noted"),
    [
        *(("sealed", step, False) for step in ("create", "written", "synced")),
        *(("sealed", step, True) for step in ("renamed", "recorded")),
        *(("grows", step, True) for step in ("written", "synced")),
    ],
    indirect=["kind"],
)
def test_a_kill_at_any_moment_loses_no_other_note(cache: Path, kind: str, step: str, is_noted: bool) -> None:
    program = (
        "import os, signal, sys\n"
        "from embedcache import fsio\n"
        "from embedcache.cache import Cache\n"
        "from embedcache.note_log import NoteLog\n"
        "from embedcache.own_notes import OwnNotes\n"
        f"notes = {OPENED[kind]}\n"
        "def die(step, path):\n"
        "    if step == sys.argv[2]:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "fsio.on_write_step = die\n"
        "notes.add({sys.argv[3]: 64 * '5'})\n"
    )
    died = subprocess.run([sys.executable, "-c", program, str(cache), step, shard(1)], check=False)
    assert died.returncode == -signal.SIGKILL
    committed = [shard(1)] if is_noted else []
    assert noted(cache, kind) == sorted([shard(0), *committed])
    # And nobody waits for the lock of one who is gone.
    notes_of(cache, kind).add({shard(2): SOURCE})
    assert noted(cache, kind) == sorted([shard(0), shard(2), *committed])


def test_two_processes_lose_nothing_to_each_other(cache: Path, kind: str) -> None:
    program = (
        "import hashlib, sys\n"
        "from embedcache.cache import Cache\n"
        "from embedcache.note_log import NoteLog\n"
        "from embedcache.own_notes import OwnNotes\n"
        f"notes = {OPENED[kind]}\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "for number in range(60):\n"
        "    notes.add({hashlib.sha256(f'{sys.argv[2]}{number}'.encode()).hexdigest(): 64 * 'a'})\n"
    )
    run_together(program, [str(cache), "a"], [str(cache), "b"])
    assert len(noted(cache, kind)) == 121


def test_what_others_add_meanwhile_is_kept_and_known(cache: Path, kind: str) -> None:
    one, other = notes_of(cache, kind), notes_of(cache, kind)
    one.add({shard(1): SOURCE})
    other.add({shard(2): SOURCE})
    assert sorted(other.all()) == noted(cache, kind) == sorted(map(shard, range(3)))
    one.refresh()
    assert sorted(one.all()) == noted(cache, kind)
