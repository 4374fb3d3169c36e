"""Who deletes and gives no sign of life takes nothing that a push counts on."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from share_helpers import TEXTS, claims_left, claims_on, content, make_cache, put_object

from embedcache.errors import RemoteError
from embedcache.share import collect_remote, pull, push, retry
from embedcache.share.places.base import Data
from embedcache.share.places.folder import FolderPlace
from embedcache.share.remote import claims as claims_module
from embedcache.share.remote.claims import Claims
from embedcache.share.remote.marks import new_mark


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims_module, "_POLL_SECONDS", 0.02)
    monkeypatch.setattr(retry, "FIRST_PAUSE_SECONDS", 0.01)


class Stall:
    """Lets a folder not answer who deletes: a deletion stands still, and beats fail meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.over = threading.Event(), threading.Event()
        self.mark = ""
        write, remove, note = FolderPlace.write, FolderPlace.remove, Claims._note

        def stalling(place: FolderPlace, path: str) -> None:
            if path.startswith("objects/"):
                self.begun.set()
                assert self.over.wait(60)
            remove(place, path)

        def failing(place: FolderPlace, path: str, data: Data) -> None:
            if self.begun.is_set() and path == f"claims/{self.mark}.beat":
                raise OSError("the server does not answer")
            write(place, path, data)

        def noting(claims: Claims, kind: str, data: bytes) -> str:
            if kind == "gc":
                self.mark = claims.mark
            return note(claims, kind, data)

        monkeypatch.setattr(FolderPlace, "remove", stalling)
        monkeypatch.setattr(FolderPlace, "write", failing)
        monkeypatch.setattr(Claims, "_note", noting)


def test_a_deletion_that_stalls_takes_nothing_that_a_push_counts_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = tmp_path / "remote"
    push(make_cache(tmp_path / "cache", TEXTS[:80]), str(remote))
    other = make_cache(tmp_path / "other", TEXTS[200:], name="other")
    put_object(remote, (other.folder / "corpora" / "other" / "corpus.json").read_bytes())
    stall = Stall(monkeypatch)
    deleting = threading.Thread(target=lambda: collect_remote(str(remote), hours=0, delete=True))
    pushing = threading.Thread(target=lambda: push(other, str(remote), stale_seconds=0.5))
    deleting.start()
    assert stall.begun.wait(60)
    pushing.start()
    # Longer than any other process may be silent.
    pushing.join(2)
    assert pushing.is_alive()
    stall.over.set()
    deleting.join(60)
    pushing.join(60)
    assert not pushing.is_alive()
    monkeypatch.undo()
    pull(tmp_path / "there", str(remote))
    assert content(tmp_path / "there").items() >= content(other.folder).items()


def test_no_try_to_delete_begins_once_this_process_may_count_as_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(make_cache(tmp_path / "cache", TEXTS[:80]), str(tmp_path / "remote"))
    digest = put_object(tmp_path / "remote", b"nobody needs it")
    tries: list[str] = []

    def failing(place: FolderPlace, path: str) -> None:
        if not path.startswith("objects/"):
            return
        tries.append(path)
        # It takes long to fail, and so have the beats.
        monkeypatch.setattr(Claims, "overslept", True)
        raise OSError("the server does not answer")

    monkeypatch.setattr(FolderPlace, "remove", failing)
    with pytest.raises(RemoteError, match="stood still"):
        collect_remote(str(tmp_path / "remote"), hours=0, delete=True)
    assert tries == [f"objects/{digest[:2]}/{digest}"]


def silent_deletion(folder: Path, seconds: float, mark: str = "") -> Claims:
    """Leave the files of a process that deletes and was last heard of some time ago."""
    claims = claims_on(folder, elsewhere=True)
    claims.mark = mark or claims.mark
    claims._beat()
    claims._note("gc", b"gc")
    beat = folder / "claims" / f"{claims.mark}.beat"
    os.utime(beat, (beat.stat().st_mtime - seconds,) * 2)
    return claims


def test_how_to_go_on_without_a_silent_deletion_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    silent = silent_deletion(tmp_path, 3500)
    waits: list[int] = []

    def on_wait(others: int) -> None:
        waits.append(others)
        if len(waits) == 3:
            (tmp_path / "claims" / f"{silent.mark}.1.gc").unlink()

    with caplog.at_level(logging.WARNING, "embedcache"), claims_on(tmp_path).alive(on_wait) as mine:
        assert waits == [1, 1, 1]
        assert mine.of_others() == {}
    (told,) = caplog.messages
    assert f"{tmp_path}: whoever has written claims/{silent.mark}.1.gc deletes there" in told
    assert "it counts as gone after 60 minutes" in told
    assert "delete this file to go on at once" in told
    assert claims_left(tmp_path) == []


def test_a_deletion_that_gives_signs_of_life_is_waited_for_without_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with claims_on(tmp_path, elsewhere=True).collecting() as other:

        def on_wait(others: int) -> None:
            other._take_away(f"{other.mark}.1.gc")

        with caplog.at_level(logging.WARNING, "embedcache"), claims_on(tmp_path).alive(on_wait):
            assert caplog.messages == []


def test_a_deletion_that_has_been_silent_for_an_hour_is_gone(tmp_path: Path) -> None:
    silent_deletion(tmp_path, 3601)
    with claims_on(tmp_path).alive(lambda others: pytest.fail("waited")) as mine:
        assert mine.of_others() == {}
    assert claims_left(tmp_path) == []


def test_a_killed_deletion_of_this_machine_is_not_waited_for(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    machine, _, digits = new_mark().split("-")
    silent_deletion(tmp_path, 70, f"{machine}-{process.pid}-{digits}")
    with claims_on(tmp_path).alive(lambda others: pytest.fail("waited")):
        pass
