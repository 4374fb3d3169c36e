"""Locks of files: one process at a time, nobody waits who does not want to, and no lock outlives an error."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from pathlib import Path

import pytest

from embedcache.errors import StorageError
from embedcache.locked_folder import locked_file, locked_if_free, open_locked


def test_who_locks_a_file_waits_for_others_that_do(tmp_path: Path) -> None:
    events: list[str] = []

    def second() -> None:
        with locked_file(tmp_path / "lock"):
            events.append("second")

    thread = threading.Thread(target=second)
    with locked_file(tmp_path / "lock"):
        thread.start()
        thread.join(0.2)
        events.append("first")
    thread.join()
    assert events == ["first", "second"]
    assert (tmp_path / "lock").is_file()


def test_a_lock_is_taken_if_it_is_free_and_nobody_waits(tmp_path: Path) -> None:
    path = tmp_path / "note"
    with locked_if_free(path) as is_held:
        assert not is_held
    assert not path.exists()
    path.write_bytes(b"content")
    with locked_if_free(path) as is_held:
        assert is_held
        with locked_if_free(path) as is_held_twice:
            assert not is_held_twice
    with locked_if_free(path) as is_held:
        assert is_held
    assert path.read_bytes() == b"content"


@pytest.mark.parametrize("error", [FileNotFoundError, BlockingIOError])
def test_errors_of_the_block_are_not_taken_for_those_of_the_lock(
    tmp_path: Path, error: type[OSError]
) -> None:
    path = tmp_path / "note"
    path.touch()
    with pytest.raises(error, match="of the block"), locked_if_free(path):
        raise error("of the block")
    with pytest.raises(error, match="of the block"), locked_file(path):
        raise error("of the block")


def test_a_file_that_cannot_be_opened_is_told_of(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot write"), locked_file(tmp_path / "missing" / "lock"):
        pass
    for lock in (locked_file(tmp_path), locked_if_free(tmp_path)):
        with pytest.raises(StorageError, match=r"cannot write .*: Is a directory"), lock:
            pass


def test_a_file_system_without_locks_is_told_of_and_the_file_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    path = tmp_path / "lock"
    with pytest.raises(StorageError, match="No locks available"):
        open_locked(path, os.O_RDWR | os.O_CREAT)
    monkeypatch.undo()
    links = [Path(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]  # noqa: PTH208 - names
    assert path not in [link.readlink() for link in links if link.is_symlink()]
