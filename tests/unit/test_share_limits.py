"""How much may be fetched: manifests and descriptions count, copies of them do not, and disks have room."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from share_helpers import TEXTS, make_cache, manifest_bytes, manifest_of

from embedcache.build_remote import RemoteOptions
from embedcache.builder import build
from embedcache.errors import InputError, StorageError
from embedcache.share import PullChoice, limits, preview_pull, pull, push
from embedcache.share.places.base import Stat
from embedcache.share.places.folder import FolderPlace
from embedcache.share.remote import documents
from embedcache.share.remote.open_stock import open_stock
from embedcache.share.remote.remote import Remote
from embedcache.testing import FakeEncoder, fake_teacher


@pytest.fixture
def remote(tmp_path: Path) -> str:
    push(make_cache(tmp_path / "mine"), str(tmp_path / "remote"))
    return str(tmp_path / "remote")


def no_manifest_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read = Remote.read

    def refuse(self: Remote, path: str, most: int) -> bytes | None:
        assert not path.startswith("manifests/"), "a manifest is read"
        return read(self, path, most)

    monkeypatch.setattr(Remote, "read", refuse)


def test_manifests_that_are_too_large_are_refused_before_one_is_read(
    tmp_path: Path, remote: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_manifest_is_read(monkeypatch)
    size = manifest_bytes(remote)
    told = (
        rf"{size:,} bytes would have to be fetched \({size:,} of manifests\), more than the {size - 1:,} of"
    )
    choice = PullChoice(max_bytes=size - 1)
    for ask in (pull, preview_pull):
        with pytest.raises(InputError, match=f"{told} --max-bytes: .*'embedcache remote gc'"):
            ask(tmp_path / "there", remote, choice)
    source, teacher = tmp_path / "texts.txt", fake_teacher(8)
    source.write_text("\n".join(TEXTS[:20]), encoding="utf-8")
    options = RemoteOptions(remote, max_bytes=size - 1, sample_check=False)
    with pytest.raises(InputError, match=told):
        build(source, teacher=teacher, encoder=FakeEncoder(teacher), cache=tmp_path / "new", remote=options)
    assert not (tmp_path / "there").exists()


def test_manifests_count_as_they_come_where_a_place_tells_no_sizes(
    tmp_path: Path, remote: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = FolderPlace.list
    monkeypatch.setattr(
        FolderPlace, "list", lambda self, folder: dict.fromkeys(listed(self, folder), Stat(None))
    )
    size = manifest_bytes(remote)
    with pytest.raises(InputError, match=rf"\({size:,} of manifests\)"):
        pull(tmp_path / "there", remote, PullChoice(max_bytes=size - 1))


def test_descriptions_count_before_they_are_read(
    tmp_path: Path, remote: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unread(*arguments: object) -> bytes:
        raise AssertionError("a description is read")

    monkeypatch.setattr(documents, "read_object", unread)
    size = manifest_bytes(remote)
    with pytest.raises(InputError, match=rf"\({size:,} of manifests and \d+ of descriptions\).*pull less"):
        pull(tmp_path / "there", remote, PullChoice(max_bytes=size + 1))


def test_what_is_on_this_machine_counts_nothing(
    tmp_path: Path, remote: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = PullChoice(corpora=["corpus"], rows=10)
    first = preview_pull(tmp_path / "there", remote, PullChoice())
    assert first.counted_bytes == first.bytes + manifest_bytes(remote)
    pull(tmp_path / "there", remote)
    pull(tmp_path / "other", remote, part)
    # A cache that was not there yet has kept no copies of manifests.
    assert preview_pull(tmp_path / "there", remote).counted_bytes == manifest_bytes(remote)
    assert preview_pull(tmp_path / "other", remote, part).counted_bytes == manifest_bytes(remote)

    def unread(*arguments: object) -> bytes:
        raise AssertionError("a description is read")

    monkeypatch.setattr(documents, "read_object", unread)
    no_manifest_is_read(monkeypatch)
    again = pull(tmp_path / "there", remote, PullChoice(max_bytes=0))
    assert (again.fetched, again.present) == (0, len(manifest_of(Path(remote))["files"]))
    part = PullChoice(corpora=["corpus"], rows=10, max_bytes=0)
    assert pull(tmp_path / "other", remote, part).fetched_bytes == 0


def test_a_kept_description_of_other_bytes_is_fetched_again(tmp_path: Path, remote: str) -> None:
    source, stock = open_stock(remote, None)
    (file,) = stock.versions("corpora/corpus/corpus.json")
    place = tmp_path / "kept" / file.path
    place.parent.mkdir(parents=True)
    for written in (b"x" * file.bytes, b"x" * 2 * file.bytes):
        place.write_bytes(written)
        data = documents.Documents(source, tmp_path, kept=[tmp_path / "kept"]).data(file)
        assert hashlib.sha256(data).hexdigest() == file.sha256


def test_what_was_fetched_takes_room_once(
    tmp_path: Path, remote: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, teacher = tmp_path / "texts.txt", fake_teacher(8)
    source.write_text("\n".join(TEXTS), encoding="utf-8")
    blocks, read_range = FolderPlace.blocks, FolderPlace.read_range
    fetched: list[int] = []

    def counted_blocks(self: FolderPlace, path: str, size: int) -> Iterator[memoryview]:
        for block in blocks(self, path, size):
            fetched.append(len(block))
            yield block

    def counted_range(self: FolderPlace, path: str, start: int, length: int) -> bytes:
        fetched.append(length)
        return read_range(self, path, start, length)

    def part(name: str) -> object:
        return pull(tmp_path / name, remote, PullChoice(corpora=["corpus"], where="row % 3 = 0"))

    def through(name: str) -> object:
        encoder, folder = FakeEncoder(teacher), tmp_path / name
        return build(source, teacher=teacher, encoder=encoder, cache=folder, remote=RemoteOptions(remote))

    usage = shutil.disk_usage(tmp_path)

    def left(room: int, folder: Path) -> object:
        return usage._replace(free=room - sum(fetched))

    monkeypatch.setattr(FolderPlace, "blocks", counted_blocks)
    monkeypatch.setattr(FolderPlace, "read_range", counted_range)
    for number, fetch in enumerate((part, through)):
        fetched.clear()
        fetch(f"free-{number}")
        needed = limits.RESERVE_BYTES + sum(fetched)
        fetched.clear()
        with monkeypatch.context() as patch:
            patch.setattr(
                shutil, "disk_usage", lambda _, most=needed: usage._replace(free=most - sum(fetched))
            )
            fetch(f"tight-{number}")


def test_a_file_system_that_is_read_only_is_called_so(
    tmp_path: Path, remote: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=0))
    with pytest.raises(StorageError, match="0 are free, of which 67,108,864 are left to other processes"):
        pull(tmp_path / "there", remote)

    class ReadOnly:
        f_flag = os.ST_RDONLY

    monkeypatch.setattr(limits.os, "statvfs", lambda _: ReadOnly)
    with pytest.raises(StorageError, match="there: the file system is read-only; choose a folder that can"):
        pull(tmp_path / "there", remote)
