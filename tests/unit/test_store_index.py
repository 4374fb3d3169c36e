"""Derived files of a store: sorted keys, and the note of checked files."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_helpers import CONTRACT, filled, index_files, open_store, shard_files, texts

from embedcache.errors import CorruptCacheError
from embedcache.fsio import sha256_file
from embedcache.keys import KEY_DTYPE, KeyArray, key_array
from embedcache.store import FolderShards, ShardStore
from embedcache.store import checked as checked_module
from embedcache.store import index as index_module
from embedcache.store.checked import CHECKED, CheckedFiles
from embedcache.store.index import StoreIndex, sort_keys
from embedcache.testing import example_batch

KEYS = st.lists(st.lists(st.sampled_from([0, 1, 200, 255]), min_size=16, max_size=16).map(bytes), max_size=30)


def keys_of(stored: list[bytes]) -> KeyArray:
    return np.frombuffer(b"".join(stored), KEY_DTYPE)


def assert_answers(folder: Path, rows: int = 100) -> ShardStore:
    store, keys = open_store(folder), key_array(texts(0, rows))
    assert store.keys_at(store.locate(keys)).tobytes() == keys.tobytes()
    assert len(store) == rows
    assert store.locate(key_array(["never stored"])).tolist() == [-1]
    return store


@pytest.fixture
def other_process(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Forget what this process knows of files."""

    def forget() -> None:
        monkeypatch.setattr(checked_module, "_sound", {})
        monkeypatch.setattr(index_module, "_written_here", set())

    return forget


@given(stored=KEYS, asked=KEYS, cut=st.integers(0, 30), block=st.sampled_from([1, 3, 1 << 20]))
def test_sorted_keys_agree_with_a_dictionary(
    stored: list[bytes], asked: list[bytes], cut: int, block: int
) -> None:
    expected: dict[bytes, int] = {}
    for place, key in enumerate(stored):
        expected.setdefault(key, place)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("embedcache.keys.BLOCK_KEYS", block)
        patch.setattr(index_module, "BLOCK_KEYS", block)
        keys = sort_keys([keys_of(stored[:cut]), keys_of(stored[cut:])])
        distinct = [key for block in keys.distinct() for key in block.tolist()]
    assert keys.locate(keys_of(asked)).tolist() == [expected.get(key, -1) for key in asked]
    assert keys.locate(keys_of(stored)).tolist() == [expected[key] for key in stored]
    assert keys.in_order().tobytes() == b"".join(stored)
    assert len(distinct) == len(expected)
    assert set(distinct) == expected.keys()


# Index files


def test_an_index_answers_without_opening_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path)
    opened, honest = [], FolderShards.open
    monkeypatch.setattr(FolderShards, "open", lambda self, name: opened.append(name) or honest(self, name))
    store = open_store(tmp_path)
    assert store.locate(key_array(["never stored"])).tolist() == [-1]
    assert len(store) == 100
    assert opened == []
    store.vectors(store.locate(key_array(texts(0, 1))))
    assert len(opened) == 1
    assert store.index_files == index_files(tmp_path)


def test_index_files_are_named_by_their_bytes_and_made_again_alike(tmp_path: Path) -> None:
    filled(tmp_path)
    paths = index_files(tmp_path)
    assert [path.stem for path in paths] == [sha256_file(path) for path in paths]
    shutil.rmtree(tmp_path / "index")
    assert_answers(tmp_path)
    assert index_files(tmp_path) == paths


def test_more_shards_get_an_index_of_their_own_until_it_pays_to_merge(tmp_path: Path) -> None:
    filled(tmp_path)
    (large,) = index_files(tmp_path)
    for number in range(40):
        store = open_store(tmp_path)
        store.put(example_batch([f"text {100 + number}"], seed=number))
        store.finish()
        assert len(store.index_files) < 8
    assert large in assert_answers(tmp_path, rows=140).index_files
    store = open_store(tmp_path)
    store.put(example_batch(texts(140, 240), seed=99))
    store.finish()
    assert store.index_files == index_files(tmp_path)
    assert_answers(tmp_path, rows=240)


def test_an_index_of_another_process_is_left_to_gc(tmp_path: Path, other_process: Callable[[], None]) -> None:
    filled(tmp_path)
    (old,) = index_files(tmp_path)
    other_process()
    store = open_store(tmp_path)
    store.put(example_batch(texts(100, 300), seed=9))
    store.finish()
    assert store.index_files != [old]
    assert old.exists()


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "flip": lambda data: data[:-100] + bytes([data[-100] ^ 64]) + data[-99:],
    "table": lambda data: data.replace(b"float32", b"float16"),
    "cut": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "zeros": lambda data: bytes(len(data)),
    "shifted": lambda data: data[:-800] + (np.frombuffer(data[-800:], "<u8") + 1).tobytes(),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("is_noted", [True, False])
def test_a_damaged_index_gives_no_wrong_row(tmp_path: Path, damage: str, is_noted: bool) -> None:
    """Even one whose file was noted as checked: a key that was found is compared with the shard's."""
    filled(tmp_path)
    (path,) = index_files(tmp_path)
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    if is_noted:
        checked = CheckedFiles(tmp_path / "index" / CHECKED)
        checked.add(path)
        checked.save()
    store, keys = open_store(tmp_path), key_array(texts(0, 100))
    positions = None
    with suppress(CorruptCacheError):
        positions = store.locate(keys)
    if positions is None:
        assert is_noted
        assert_answers(tmp_path)  # it is deleted
    else:
        is_there = positions >= 0
        assert store.keys_at(positions[is_there]).tobytes() == keys[is_there].tobytes()
        assert is_noted or is_there.all()


def test_an_index_that_came_along_is_not_used(tmp_path: Path) -> None:
    filled(tmp_path / "theirs")
    shutil.copytree(tmp_path / "theirs", tmp_path / "mine")
    (path,) = index_files(tmp_path / "mine")
    before = path.stat().st_ino
    assert_answers(tmp_path / "mine")
    assert path.stat().st_ino != before  # written again, under the same name


def test_beside_a_read_only_cache_derived_state_lasts_as_long_as_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other_process: Callable[[], None]
) -> None:
    filled(tmp_path)
    shutil.rmtree(tmp_path / "index")
    (tmp_path / "index").write_text("no folder")
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    other_process()
    assert_answers(tmp_path)
    assert list((tmp_path / "scratch").iterdir()) == []
    monkeypatch.setattr(checked_module, "_has_digest", lambda *args: pytest.fail("it was read again"))
    assert_answers(tmp_path)


def test_a_store_may_be_opened_from_a_listing_of_its_keys(tmp_path: Path) -> None:
    _, everything = filled(tmp_path, shards=2)
    folder = FolderShards(tmp_path / "shards")
    keys = {shard.name: shard.keys for shard in open_store(tmp_path).shards}
    listed = StoreIndex.of([(name, "float32", 25) for name in keys], list(keys.values()))
    shard_files(tmp_path)[0].write_bytes(b"not fetched yet")
    store = ShardStore(folder, CONTRACT, index=listed)
    assert (store.locate(everything.keys) >= 0).all()


# Checked files


def test_a_file_is_read_once_a_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other_process: Callable[[], None]
) -> None:
    filled(tmp_path)
    read, honest = [], checked_module._has_digest
    monkeypatch.setattr(checked_module, "_has_digest", lambda *args: read.append(args) or honest(*args))
    shutil.rmtree(tmp_path / "index")
    for _ in range(2):
        other_process()
        assert_answers(tmp_path)
        assert len(read) == 4


@pytest.mark.parametrize("field", range(5))
def test_a_note_with_another_state_vouches_for_nothing(
    tmp_path: Path, other_process: Callable[[], None], field: int
) -> None:
    filled(tmp_path, shards=1)
    (path,), note = shard_files(tmp_path), tmp_path / "index" / CHECKED
    rows = np.frombuffer(note.read_bytes(), checked_module._ROW).copy()
    rows["state"][:, field] += 1
    note.write_bytes(rows.tobytes())
    other_process()
    assert not CheckedFiles(note).knows(path)


def test_notes_of_two_processes_are_kept_together(tmp_path: Path, other_process: Callable[[], None]) -> None:
    paths = [tmp_path / name for name in ("a", "b")]
    for path in paths:
        path.write_text(path.name)
    one, two = CheckedFiles(tmp_path / CHECKED), CheckedFiles(tmp_path / CHECKED)
    one.add(paths[0], tmp_path / "missing")
    one.save()
    two.add(paths[1])
    two.save()
    other_process()
    assert all(CheckedFiles(tmp_path / CHECKED).knows(path) for path in paths)


@pytest.mark.parametrize("kind", ["cut", "empty", "link", "pipe"])
def test_a_senseless_note_is_none(tmp_path: Path, other_process: Callable[[], None], kind: str) -> None:
    filled(tmp_path, shards=1)
    note = tmp_path / "index" / CHECKED
    whole = note.read_bytes()
    note.rename(tmp_path / "aside")
    make = {
        "cut": lambda: note.write_bytes(whole[:-1]),
        "empty": note.touch,
        "link": lambda: note.symlink_to(tmp_path / "aside"),
        "pipe": lambda: os.mkfifo(note),
    }
    make[kind]()
    other_process()
    assert not CheckedFiles(note).knows(shard_files(tmp_path)[0])
    assert_answers(tmp_path, rows=25)
    assert stat.S_ISREG(note.lstat().st_mode)
