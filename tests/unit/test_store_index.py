"""Derived files of a store: sorted keys, and the note of checked files."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_helpers import filled, index_files, open_store, shard_files, texts

from embedcache.errors import CorruptCacheError
from embedcache.keys import KEY_DTYPE, KeyArray, key_array
from embedcache.store import FolderShards, ShardStore
from embedcache.store import checked as checked_module
from embedcache.store import index as index_module
from embedcache.store.checked import CHECKED, CheckedFiles
from embedcache.store.index import sort_keys
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


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return a list of the files whose digest is taken from here on."""
    found, honest = [], checked_module._has_digest
    monkeypatch.setattr(checked_module, "_has_digest", lambda *args: found.append(args[0]) or honest(*args))
    return found


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
        keys = sort_keys(lambda: [keys_of(stored[:cut]), keys_of(stored[cut:])], len(stored))
        distinct = [key for block in keys.distinct() for key in block.tolist()]
    assert keys.locate(keys_of(asked + stored)).tolist() == [expected.get(key, -1) for key in asked + stored]
    assert keys.in_order().tobytes() == b"".join(stored)
    assert sorted(distinct) == sorted(expected)


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


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "flip": lambda data: data[:-100] + bytes([data[-100] ^ 64]) + data[-99:],
    "table": lambda data: data.replace(b"float32", b"float16"),
    "cut": lambda data: data[: len(data) // 2],
    "shifted": lambda data: data[:-800] + (np.frombuffer(data[-800:], "<u8") + 1).tobytes(),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_index_gives_no_wrong_row_even_if_it_was_noted_as_checked(
    tmp_path: Path, damage: str
) -> None:
    filled(tmp_path)
    (path,) = index_files(tmp_path)
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    checked = CheckedFiles(tmp_path / "index" / CHECKED)
    checked.add(path)
    checked.save()
    store, keys = open_store(tmp_path), key_array(texts(0, 100))
    try:
        positions = store.locate(keys)
    except CorruptCacheError:
        assert_answers(tmp_path)  # it is deleted
    else:
        is_there = positions >= 0
        assert store.keys_at(positions[is_there]).tobytes() == keys[is_there].tobytes()


def test_an_index_that_came_along_is_not_used(tmp_path: Path) -> None:
    filled(tmp_path / "theirs")
    shutil.copytree(tmp_path / "theirs", tmp_path / "mine")
    (path,) = index_files(tmp_path / "mine")
    before = path.stat().st_ino
    assert_answers(tmp_path / "mine")
    assert path.stat().st_ino != before  # written again, under the same name


# Checked files


def test_a_file_is_read_once_a_machine(
    tmp_path: Path, read: list[Path], other_process: Callable[[], None]
) -> None:
    filled(tmp_path)
    shutil.rmtree(tmp_path / "index")
    for _ in range(2):
        other_process()
        assert_answers(tmp_path)
        assert len(read) == 4


def test_beside_a_read_only_cache_a_file_is_read_once_a_process(
    tmp_path: Path, read: list[Path], monkeypatch: pytest.MonkeyPatch, other_process: Callable[[], None]
) -> None:
    filled(tmp_path)
    shutil.rmtree(tmp_path / "index")
    (tmp_path / "index").write_text("no folder")
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    other_process()
    for _ in range(2):
        assert_answers(tmp_path)
        assert len(read) == 4
    assert list((tmp_path / "scratch").iterdir()) == []


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
