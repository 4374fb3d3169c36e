"""Files appear whole or not at all, a failing write says why, and no link is followed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from embedcache import fsio
from embedcache.errors import CacheFormatError, StorageError


def failing(code: int):
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_bytes_are_durable_before_their_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events, target = [], tmp_path / "new" / "folder" / "file"
    fsync, replace = os.fsync, os.replace

    def logged_fsync(descriptor: int) -> None:
        events.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        fsync(descriptor)

    def logged_replace(*paths: Path) -> None:
        events.append("rename")
        replace(*paths)

    monkeypatch.setattr(os, "fsync", logged_fsync)
    monkeypatch.setattr(os, "replace", logged_replace)
    fsio.write_bytes(target, b"da", b"ta")
    assert target.read_bytes() == b"data"
    assert names_in(target.parent) == ["file"]
    # A file is only as durable as the names of the folders above it.
    assert events[:2] == [tmp_path, tmp_path / "new"]
    assert events[3:] == ["rename", target.parent]


@pytest.mark.parametrize("function", ["fsync", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_failing_write_leaves_the_old_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, code: int
) -> None:
    target = tmp_path / "file"
    fsio.write_bytes(target, b"old")
    monkeypatch.setattr(os, function, failing(code))
    with pytest.raises(StorageError, match=f"^cannot write {target}: .+$"):
        fsio.write_bytes(target, b"new")
    assert target.read_bytes() == b"old"
    assert names_in(tmp_path) == ["file"]


@pytest.mark.parametrize(("code", "is_harmless"), [(errno.EINVAL, True), (errno.EIO, False)])
def test_folders_that_cannot_be_synced_are_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, is_harmless: bool
) -> None:
    fsync = os.fsync

    def refuse(descriptor: int) -> None:
        (failing(code) if Path(f"/proc/self/fd/{descriptor}").readlink().is_dir() else fsync)(descriptor)

    monkeypatch.setattr(os, "fsync", refuse)
    if is_harmless:
        fsio.write_bytes(tmp_path / "new" / "file", b"data")
    else:
        with pytest.raises(StorageError):
            fsio.write_bytes(tmp_path / "file", b"data")


@pytest.mark.parametrize("has_links", [True, False])
def test_of_two_new_files_of_one_name_the_first_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    if not has_links:
        monkeypatch.setattr(os, "link", failing(errno.ENOTSUP))
    for number, expected in enumerate((True, False)):
        with fsio.temporary_sibling(tmp_path / "file") as temporary:
            temporary.write_bytes(bytes([number]))
            assert fsio.commit_new(temporary, tmp_path / "file") is expected
    assert (tmp_path / "file").read_bytes() == b"\0"


# JSON


def test_canonical_json_has_one_spelling() -> None:
    assert fsio.canonical_json({"b": 1, "a": ["ü", None, True]}) == '{"a":["ü",null,true],"b":1}'.encode()
    with pytest.raises(ValueError, match="JSON"):
        fsio.canonical_json({"a": float("nan")})


@pytest.mark.parametrize(
    "text", ["", "{", "NaN", '{"a": Infinity}', "[" * 17 + "]" * 17, "[" * 100_000, '{"a":' * 300 + "1"]
)
def test_invalid_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        fsio.parsed_json(text.encode())


def test_sealed_json_comes_back_and_any_change_is_found(tmp_path: Path) -> None:
    path = tmp_path / "sealed.json"
    fsio.write_sealed_json(path, {"a": ["ü", 1.5, None]})
    assert fsio.read_sealed_json(path) == {"a": ["ü", 1.5, None]}
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(ValueError, match=r".+"):
            fsio.read_sealed_json(path)
    path.write_bytes(whole)
    with pytest.raises(ValueError, match="bytes"):
        fsio.read_sealed_json(path, len(whole) - 1)


# Reading


@pytest.mark.parametrize("kind", ["link", "loop", "folder", "pipe", "device"])
def test_only_regular_files_are_opened(tmp_path: Path, kind: str) -> None:
    (tmp_path / "outside").write_text("x")
    path = tmp_path / "path"
    make = {
        "link": lambda: path.symlink_to(tmp_path / "outside"),
        "loop": lambda: path.symlink_to(path),
        "folder": path.mkdir,
        "pipe": lambda: os.mkfifo(path),
        "device": lambda: path.symlink_to("/dev/zero"),
    }
    make[kind]()
    for read in (fsio.open_regular, fsio.read_regular, fsio.map_regular, fsio.regular_size):
        with pytest.raises(ValueError, match="a cache holds its files itself"):
            read(path)


def test_a_folder_that_is_a_link_is_not_entered(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert fsio.inside(tmp_path, "a", "b", "missing") == tmp_path / "a" / "b" / "missing"
    fsio.refuse_links(tmp_path, 2)
    (tmp_path / "a" / "link").symlink_to(tmp_path)
    fsio.refuse_links(tmp_path, 1)
    for refused in (lambda: fsio.inside(tmp_path, "a", "link", "a"), lambda: fsio.refuse_links(tmp_path, 2)):
        with pytest.raises(CacheFormatError, match="symbolic link"):
            refused()
