"""The derived index: it answers like the shards, and heals itself when it is gone, stale, damaged or lies."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedcache.errors import StorageError
from embedcache.keys import key_array
from embedcache.store import FolderShards, ShardStore
from embedcache.store import index as index_module
from embedcache.store import store as store_module
from embedcache.store.digests import FileNotes
from embedcache.testing import example_batch, example_contract

CONTRACT = example_contract()


def open_store(folder: Path) -> ShardStore:
    notes = FileNotes(folder / "index" / "checked.json")
    return ShardStore(FolderShards(folder / "shards", notes), CONTRACT, index=(folder / "index", notes))


def texts(first: int, last: int) -> list[str]:
    return [f"text {number}" for number in range(first, last)]


def filled(folder: Path, shards: int = 4, rows: int = 25) -> ShardStore:
    store = open_store(folder)
    for number in range(shards):
        store.put(example_batch(texts(number * rows, (number + 1) * rows), seed=number))
    store.finish()
    return store


def index_files(folder: Path) -> list[Path]:
    return sorted((folder / "index").glob("*.mdb"))


def assert_answers(folder: Path, rows: int = 100) -> None:
    store = open_store(folder)
    keys = key_array(texts(0, rows))
    positions = store.locate(keys)
    assert len(store) == rows
    everything = np.concatenate([shard.keys for shard in store.shards])
    assert (everything[positions] == keys).all()
    assert store.locate(key_array(["never stored"])).tolist() == [-1]


def test_a_finished_store_has_one_index_and_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path)
    assert len(index_files(tmp_path)) == 1
    monkeypatch.setattr(index_module, "_write", lambda *arguments: pytest.fail("the index was made again"))
    assert_answers(tmp_path)


def test_a_deleted_index_is_made_again_byte_for_byte(tmp_path: Path) -> None:
    filled(tmp_path)
    (path,) = index_files(tmp_path)
    before = path.read_bytes()
    path.unlink()
    assert_answers(tmp_path)
    assert index_files(tmp_path) == [path]
    assert path.read_bytes() == before


def test_a_stale_index_is_replaced(tmp_path: Path) -> None:
    filled(tmp_path)
    (old,) = index_files(tmp_path)
    other = open_store(tmp_path)
    other.put(example_batch(texts(100, 110), seed=9))
    assert_answers(tmp_path, rows=110)
    (new,) = index_files(tmp_path)
    assert new != old


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "text"])
def test_a_damaged_index_is_replaced(tmp_path: Path, damage: str) -> None:
    filled(tmp_path)
    (path,) = index_files(tmp_path)
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 0x40
    content = {"flip": bytes(data), "cut": bytes(data[: len(data) // 2]), "empty": b"", "text": b"hello"}
    path.write_bytes(content[damage])
    assert_answers(tmp_path)


def test_an_index_that_lies_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path)
    (path,) = index_files(tmp_path)
    path.unlink()
    # The same file name and digest as an honest one would have: only its answers are wrong.
    honest = index_module._passes

    def shifted(*arguments: object) -> object:
        for buckets in honest(*arguments):  # type: ignore[arg-type]
            yield [(bucket, (first, second, places[::-1])) for bucket, (first, second, places) in buckets]

    with monkeypatch.context() as patch:
        patch.setattr(index_module, "_passes", shifted)
        open_store(tmp_path).finish()
    (liar,) = index_files(tmp_path)
    assert_answers(tmp_path)
    assert index_files(tmp_path) != [liar]


def without_a_place(folder: Path) -> None:
    for path in (folder / "index").iterdir():
        path.unlink()
    (folder / "index").rmdir()
    (folder / "index").write_text("no folder")


def test_where_nothing_can_be_written_the_index_is_in_a_file_that_is_gone_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path)
    without_a_place(tmp_path)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.setattr(store_module, "KeyIndex", lambda keys: pytest.fail("it is in memory"))
    assert_answers(tmp_path)
    assert list(scratch.iterdir()) == []


def test_where_nothing_at_all_can_be_written_the_index_is_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path)
    without_a_place(tmp_path)

    def full(*arguments: object) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(index_module, "_write", full)
    assert_answers(tmp_path)


def test_the_order_of_writing_makes_no_other_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(tmp_path, shards=6)
    names = [shard.name for shard in store.shards]
    assert names != sorted(names)
    monkeypatch.setattr(index_module, "_write", lambda *arguments: pytest.fail("the index was made again"))
    keys = key_array(texts(0, 150))
    everything = np.concatenate([shard.keys for shard in store.shards])
    assert (everything[store.locate(keys)] == keys).all()
    assert len(store) == 150
    assert_answers(tmp_path, rows=150)


def test_an_index_that_another_builder_deletes_at_once_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, written = index_module._write, []

    def deleted_at_first(*arguments: Any) -> Path:
        path = write(*arguments)
        written.append(path)
        if len(written) == 1:
            path.unlink()
        return path

    monkeypatch.setattr(index_module, "_write", deleted_at_first)
    filled(tmp_path)
    assert len(written) == 2
    assert index_files(tmp_path) == written[1:]
    assert_answers(tmp_path)


def test_notes_of_two_processes_are_kept_together(tmp_path: Path) -> None:
    note, files = tmp_path / "checked.json", [tmp_path / name for name in "abc"]
    for path in files:
        path.write_text(path.name)
    mine, theirs = FileNotes(note), FileNotes(note)
    mine.remember(files[:1])
    theirs.remember(files[1:2])
    assert all(FileNotes(note).knows(path) for path in files[:2])
    assert not FileNotes(note).knows(files[2])
    mine.forget(["a"])
    mine.remember(files[2:])
    kept = FileNotes(note)
    assert [kept.knows(path) for path in files] == [False, True, True]


def test_what_others_are_writing_is_left_alone(tmp_path: Path) -> None:
    filled(tmp_path, shards=1)
    theirs = tmp_path / "index" / ".tmp-0123-theirs.mdb"
    theirs.write_bytes(b"half")
    open_store(tmp_path).put(example_batch(texts(25, 26)))
    assert_answers(tmp_path, rows=26)
    assert theirs.exists()
    assert len(list((tmp_path / "index").glob("[!.]*.mdb"))) == 1


@pytest.mark.parametrize("rows_a_bucket", [7, 1000])
@pytest.mark.parametrize("rows_a_pass", [10, 1 << 20])
def test_buckets_and_passes_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_a_bucket: int, rows_a_pass: int
) -> None:
    monkeypatch.setattr(index_module, "_ROWS_A_BUCKET", rows_a_bucket)
    monkeypatch.setattr(index_module, "_ROWS_A_PASS", rows_a_pass)
    filled(tmp_path)
    assert_answers(tmp_path)


def test_of_equal_keys_the_one_in_the_first_shard_is_found(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for seed in range(5):
        store.put(example_batch(["same", f"own {seed}"], seed=seed))
    store.finish()
    again = open_store(tmp_path)
    (position,) = again.locate(key_array(["same"]))
    assert position < 2
    assert len(again) == 6
