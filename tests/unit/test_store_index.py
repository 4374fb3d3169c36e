"""The derived index: it answers like the shards, and heals itself when it is gone, stale, damaged or lies."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedcache.errors import CorruptCacheError, StorageError
from embedcache.keys import key_array
from embedcache.store import FolderShards, ShardStore
from embedcache.store import digests as digests_module
from embedcache.store import index as index_module
from embedcache.store import store as store_module
from embedcache.store.digests import FileNotes
from embedcache.testing import example_batch, example_contract

CONTRACT = example_contract()


def open_store(folder: Path) -> ShardStore:
    notes = FileNotes(folder / "index" / "checked.bin")
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


def received(folder: Path) -> Path:
    """Copy the store in ``folder`` as somebody else gets it, and return where it is."""
    copy = folder.with_name(f"{folder.name}-received")
    shutil.copytree(folder, copy)
    return copy


def test_a_strangers_index_that_is_right_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(tmp_path / "theirs")
    store.put(example_batch([*texts(0, 10), "one more"], seed=9))
    store.finish()
    folder = received(tmp_path / "theirs")
    monkeypatch.setattr(index_module, "_write", lambda *arguments: pytest.fail("the index was made again"))
    assert len(open_store(folder)) == 101
    # It is compared once only.
    monkeypatch.setattr(index_module.StoreIndex, "fits", lambda *_: pytest.fail("it was compared again"))
    assert len(open_store(folder)) == 101


def without_one(buckets: Any) -> Any:
    return [(bucket, (first[1:], second[1:], places[1:])) for bucket, (first, second, places) in buckets]


def with_a_later_place(buckets: Any) -> Any:
    # Of the key that stands twice, the second row; nothing else about it is wrong.
    return [
        (bucket, (first, second, np.where(places == 0, 100, places)))
        for bucket, (first, second, places) in buckets
    ]


def in_disorder(buckets: Any) -> Any:
    return [(bucket, tuple(column[::-1] for column in columns)) for bucket, columns in buckets]


@pytest.mark.parametrize("lie", [without_one, with_a_later_place, in_disorder])
def test_a_strangers_index_that_lies_is_found_out_before_it_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: Any
) -> None:
    honest = index_module._passes
    keys = [key_array(texts(0, 100)), key_array(texts(0, 1))]
    names = ["0" * 64, "1" * 64]
    with monkeypatch.context() as patch:
        patch.setattr(index_module, "_passes", lambda *arguments: map(lie, honest(*arguments)))
        liar = index_module.open_index(tmp_path, names, keys, FileNotes())
    with suppress(CorruptCacheError):
        assert not liar.fits(keys)
    found = index_module.open_index(tmp_path, names, keys, FileNotes())
    assert found.fits(keys)
    assert found.path != liar.path
    assert not liar.path.exists()


def test_a_cache_that_cannot_be_written_is_read_once_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path / "theirs")
    folder = received(tmp_path / "theirs")
    (folder / "index" / "checked.bin").unlink()

    def refuse(*arguments: object) -> None:
        raise StorageError("read-only")

    monkeypatch.setattr(digests_module, "write_noted", refuse)
    monkeypatch.setattr(index_module, "_write", lambda *arguments: pytest.fail("the index was made again"))
    assert_answers(folder)
    assert not (folder / "index" / "checked.bin").exists()
    with monkeypatch.context() as patch:
        for module in (digests_module, index_module):
            patch.setattr(module, "sha256_file", lambda path: pytest.fail(f"{path} was read again"))
        assert_answers(folder)
    # What is another file by now is not taken for the one that was read.
    shard = next((folder / "shards").iterdir())
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    time.sleep(0.02)
    shard.write_bytes(data)
    with pytest.raises(CorruptCacheError, match="its bytes are not those"):
        open_store(folder)


def test_an_index_that_lies_where_nothing_can_be_deleted_is_not_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path)
    store = open_store(tmp_path)
    assert len(store) == 100

    def refuse(path: Path, **options: object) -> None:
        raise PermissionError(str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    honest = index_module.StoreIndex.locate
    first_answer = [True]

    def lies_once(index: Any, keys: Any) -> Any:
        answer = honest(index, keys)
        return answer[::-1] if first_answer and first_answer.pop() else answer

    monkeypatch.setattr(index_module.StoreIndex, "locate", lies_once)
    keys = key_array(texts(0, 100))
    everything = np.concatenate([shard.keys for shard in store.shards])
    assert (everything[store.locate(keys)] == keys).all()


def test_an_index_that_another_process_may_have_open_is_not_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path)
    (theirs,) = index_files(tmp_path)
    monkeypatch.setattr(index_module, "_written_here", set())
    for number in range(3):
        store = open_store(tmp_path)
        store.put(example_batch([f"more {number}"]))
        store.finish()
        # Its own of the last round is gone.
        assert len(index_files(tmp_path)) == 2
        assert theirs in index_files(tmp_path)


def test_notes_of_two_processes_are_kept_together(tmp_path: Path) -> None:
    note, files = tmp_path / "checked.bin", [tmp_path / name for name in "abc"]
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


def test_threads_that_write_indexes_do_not_disturb_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = {tmp_path / "others" / str(number) for number in range(2_000)}
    monkeypatch.setattr(index_module, "_written_here", others)
    is_over = threading.Event()

    def write() -> None:
        while not is_over.is_set():
            others.add(tmp_path / "more")
            others.discard(tmp_path / "more")

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for number in range(20):
            index_module._delete_superseded(tmp_path / str(number), FileNotes())
    finally:
        is_over.set()
        thread.join()
    assert tmp_path / "19" in others
    assert tmp_path / "18" not in others
