"""Files appear whole or not at all, and a failing write says what to do."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import pytest

from embedcache import fsio
from embedcache.errors import MissingInputError, StorageError
from embedcache.fsio import TEMPORARY_PREFIX


def failing(code: int):
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def test_bytes_are_written_and_replaced(tmp_path: Path) -> None:
    target = tmp_path / "new" / "folder" / "file"
    fsio.write_bytes(target, b"one")
    fsio.write_bytes(target, b"two")
    assert target.read_bytes() == b"two"
    assert os.listdir(target.parent) == ["file"]  # noqa: PTH208 - hidden files count


def test_the_bytes_are_durable_before_the_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = []
    fsync, replace = os.fsync, os.replace

    def logged_fsync(descriptor: int) -> None:
        place = Path(f"/proc/self/fd/{descriptor}").readlink()
        events.append("folder" if place == tmp_path else "file")
        fsync(descriptor)

    def logged_replace(*paths: Path) -> None:
        assert paths[0].read_bytes() == b"data"
        events.append("rename")
        replace(*paths)

    monkeypatch.setattr(os, "fsync", logged_fsync)
    monkeypatch.setattr(os, "replace", logged_replace)
    fsio.write_bytes(tmp_path / "file", b"data")
    assert events == ["file", "rename", "folder"]


@pytest.mark.parametrize("function", ["fsync", "replace"])
@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (errno.ENOSPC, "the disk is full; make room and run the same command again"),
        (errno.EDQUOT, "quota"),
        (errno.EROFS, "the file system is read-only; choose a folder that can be written"),
        (errno.EACCES, "permission denied; choose a folder that can be written"),
        (
            errno.EIO,
            "Input/output error; see to the disk and run the same command again: what is stored stays",
        ),
    ],
)
def test_a_failing_write_leaves_the_old_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, code: int, remedy: str
) -> None:
    target = tmp_path / "file"
    fsio.write_bytes(target, b"old")
    monkeypatch.setattr(os, function, failing(code))
    with pytest.raises(StorageError, match=remedy) as caught:
        fsio.write_bytes(target, b"new")
    assert str(target) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]  # noqa: PTH208 - hidden files count


@pytest.mark.parametrize(
    ("error", "shown"),
    [(OSError(errno.EROFS, "Read-only file system"), StorageError), (KeyboardInterrupt(), KeyboardInterrupt)],
    ids=["read-only", "ctrl-c"],
)
def test_a_clean_up_that_fails_does_not_hide_the_first_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, shown: type[BaseException]
) -> None:
    def fail() -> None:
        with fsio.temporary_sibling(tmp_path / "file"):
            raise error

    monkeypatch.setattr(Path, "unlink", failing(errno.EACCES))
    with pytest.raises(shown) as caught:
        fail()
    assert "permission" not in str(caught.value)


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    def interrupted() -> None:
        with fsio.temporary_sibling(tmp_path / "file") as temporary:
            temporary.write_bytes(b"half")
            assert temporary.name.startswith(TEMPORARY_PREFIX)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - hidden files count


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="it is a file, not a folder"):
        fsio.make_directory(tmp_path / "file")
    with pytest.raises(StorageError, match="a part of the path is a file"):
        fsio.make_directory(tmp_path / "file" / "below")


def synced_folders(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return a list that fills with the folders that are synced."""
    found: list[Path] = []
    fsync = os.fsync

    def logged(descriptor: int) -> None:
        place = Path(f"/proc/self/fd/{descriptor}").readlink()
        if place.is_dir():
            found.append(place)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", logged)
    return found


def test_a_new_folder_is_as_durable_as_what_is_put_into_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = synced_folders(monkeypatch)
    fsio.make_directory(tmp_path / "a" / "b" / "c")
    assert synced == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]
    synced.clear()
    fsio.make_directory(tmp_path / "a" / "b" / "d")
    assert synced == [tmp_path / "a" / "b"]
    synced.clear()
    fsio.make_directory(tmp_path / "a" / "b" / "d")
    assert synced == []


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_whose_folders_cannot_be_synced_is_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    fsync = os.fsync

    def refused(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().is_dir():
            raise OSError(code, os.strerror(code))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", refused)
    fsio.write_bytes(tmp_path / "new" / "file", b"data")
    assert (tmp_path / "new" / "file").read_bytes() == b"data"


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match=f"no cache at {tmp_path}/none"):
        fsio.require_directory(tmp_path / "none", "cache")


def test_canonical_json_has_one_spelling() -> None:
    assert fsio.canonical_json({"b": 1, "a": ["ü", None, True]}) == '{"a":["ü",null,true],"b":1}'.encode()
    assert fsio.canonical_json({"a": 1, "b": 2}) == fsio.canonical_json({"b": 2, "a": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        fsio.canonical_json({"a": float("nan")})


@pytest.mark.parametrize("text", ["NaN", '{"a": Infinity}', "[-Infinity]", "{", "[" * 100_000])
def test_what_is_no_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no JSON|Expecting|nested too deep"):
        fsio.parsed_json(text.encode())
    assert fsio.parsed_json(b"[1.5, null]") == [1.5, None]


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1])
def test_the_digest_of_a_file_is_that_of_its_bytes(tmp_path: Path, size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    (tmp_path / "file").write_bytes(data[:size])
    assert fsio.sha256_file(tmp_path / "file") == hashlib.sha256(data[:size]).hexdigest()
