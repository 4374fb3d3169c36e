"""Derived files of a store: sorted keys, and the note of checked files."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedcache.errors import CorruptCacheError
from embedcache.fsio import sha256_file, write_bytes
from embedcache.keys import KEY_DTYPE, KeyArray, key_array
from embedcache.store import FolderShards, ShardStore
from embedcache.store import checked as checked_module
from embedcache.store import index as index_module
from embedcache.store.checked import CHECKED, CHECKED_DTYPE, CheckedFiles, read_checked
from embedcache.store.index import IndexFolder, SortedKeys
from embedcache.testing import example_batch, example_contract

CONTRACT = example_contract()
KEYS = st.lists(st.lists(st.sampled_from([0, 1, 200, 255]), min_size=16, max_size=16).map(bytes), max_size=30)


def keys_of(stored: list[bytes]) -> KeyArray:
    return np.frombuffer(b"".join(stored), KEY_DTYPE)


def words_of(key: bytes) -> tuple[int, int]:
    return int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")


def texts(first: int, last: int) -> list[str]:
    return [f"text {number}" for number in range(first, last)]


def open_store(folder: Path) -> ShardStore:
    checked = CheckedFiles(folder / "index" / CHECKED)
    return ShardStore(FolderShards(folder / "shards", checked), CONTRACT, index=(folder / "index", checked))


def filled(folder: Path, shards: int = 4, rows: int = 25) -> ShardStore:
    store = open_store(folder)
    for number in range(shards):
        store.put(example_batch(texts(number * rows, (number + 1) * rows), seed=number))
    store.finish()
    return store


def index_files(folder: Path) -> list[Path]:
    return sorted((folder / "index").glob("*.npy"))


def assert_answers(folder: Path, rows: int = 100) -> ShardStore:
    store = open_store(folder)
    keys = key_array(texts(0, rows))
    positions = store.locate(keys)
    assert len(store) == rows
    everything = np.concatenate([shard.keys for shard in store.shards])
    assert (everything[positions] == keys).all()
    assert store.locate(key_array(["never stored"])).tolist() == [-1]
    return store


def other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what this process knows of files."""
    monkeypatch.setattr(checked_module, "_sound", {})


# Sorted keys


@given(stored=KEYS, asked=KEYS, cut=st.integers(0, 30))
def test_sorted_keys_agree_with_a_dictionary(stored: list[bytes], asked: list[bytes], cut: int) -> None:
    expected: dict[bytes, int] = {}
    for place, key in enumerate(stored):
        expected.setdefault(key, place)
    parts = [keys_of(stored[:cut]), keys_of(stored[cut:])]
    keys = SortedKeys.of(parts)
    assert keys.locate(keys_of(asked)).tolist() == [expected.get(key, -1) for key in asked]
    assert keys.locate(keys_of(stored)).tolist() == [expected[key] for key in stored]
    assert [key for block in keys.distinct() for key in block.tolist()] == sorted(expected, key=words_of)


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [key_array(texts(0, 700)), key_array(texts(300, 900))]
    whole = SortedKeys.of(parts)
    monkeypatch.setattr(index_module, "_ROWS_A_BLOCK", 16)
    blocks = SortedKeys.of(parts)
    asked = key_array(texts(-5, 905))
    assert blocks.locate(asked).tolist() == whole.locate(asked).tolist()
    assert (
        np.concatenate(list(blocks.distinct())).tobytes() == np.concatenate(list(whole.distinct())).tobytes()
    )


# Index files


def test_an_index_answers_without_opening_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path)
    opened = []
    honest = FolderShards.open
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
    (path,) = index_files(tmp_path)
    assert path.stem == sha256_file(path)
    shutil.rmtree(tmp_path / "index")
    assert_answers(tmp_path)
    assert index_files(tmp_path) == [path]


def test_more_shards_get_an_index_of_their_own_until_it_pays_to_merge(tmp_path: Path) -> None:
    filled(tmp_path)
    (large,) = index_files(tmp_path)
    for number in range(40):
        store = open_store(tmp_path)
        store.put(example_batch([f"text {100 + number}"], seed=number))
        store.finish()
        assert len(store.index_files) < 8
    used = assert_answers(tmp_path, rows=140).index_files
    assert large in used
    store = open_store(tmp_path)
    store.put(example_batch(texts(140, 240), seed=99))
    store.finish()
    assert len(store.index_files) == 1
    assert_answers(tmp_path, rows=240)


def test_an_index_of_shards_that_are_gone_is_not_used(tmp_path: Path) -> None:
    store = filled(tmp_path)
    gone = store.shards[0]
    Path(gone.where).unlink()
    found = open_store(tmp_path)
    assert (found.locate(gone.keys) == -1).all()
    assert len(found) == 75


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "flip": lambda data: data[:-100] + bytes([data[-100] ^ 64]) + data[-99:],
    "cut": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "text": lambda data: b"hello",
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
    positions = store.locate(keys)
    everything = np.concatenate([shard.keys for shard in store.shards])
    assert (everything[positions[positions >= 0]] == keys[positions >= 0]).all()
    if not is_noted:
        assert_answers(tmp_path)


def test_an_index_with_a_wrong_table_is_an_error_once(tmp_path: Path) -> None:
    store = filled(tmp_path)
    (path,) = index_files(tmp_path)
    path.unlink()
    checked = CheckedFiles(tmp_path / "index" / CHECKED)
    shards = sorted(store.shards, key=lambda shard: shard.name)
    rows = [(shard.name, "float32", len(shard)) for shard in shards]
    IndexFolder(tmp_path / "index", checked).write(rows, [shard.keys for shard in shards], [])
    with pytest.raises(CorruptCacheError, match="run the command again"):
        open_store(tmp_path).locate(key_array(texts(0, 100)))
    assert_answers(tmp_path)


def test_an_index_that_came_along_is_not_used(tmp_path: Path) -> None:
    filled(tmp_path / "theirs")
    shutil.copytree(tmp_path / "theirs", tmp_path / "mine")
    (path,) = index_files(tmp_path / "mine")
    before = path.stat().st_ino
    assert_answers(tmp_path / "mine")
    assert path.stat().st_ino != before  # written again, under the same name


def test_beside_a_read_only_cache_the_index_is_in_a_file_without_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path)
    shutil.rmtree(tmp_path / "index")
    (tmp_path / "index").write_text("no folder")
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    assert_answers(tmp_path)
    assert list((tmp_path / "scratch").iterdir()) == []


def test_an_index_of_another_process_is_left_to_gc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path)
    (old,) = index_files(tmp_path)
    monkeypatch.setattr(index_module, "_written_here", set())
    store = open_store(tmp_path)
    store.put(example_batch(texts(100, 300), seed=9))
    store.finish()
    assert old.exists()
    (used,) = store.index_files
    assert used != old
    # Its own it deletes.
    store.put(example_batch(texts(300, 600), seed=10))
    store.finish()
    assert not used.exists()


# Checked files


def test_a_file_is_read_once_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path)
    read: list[Path] = []
    monkeypatch.setattr(checked_module, "sha256_file", lambda path: read.append(path) or sha256_file(path))
    other_process(monkeypatch)
    shutil.rmtree(tmp_path / "index")
    assert_answers(tmp_path)
    assert len(read) == 4
    other_process(monkeypatch)
    assert_answers(tmp_path)
    assert len(read) == 4


def test_a_note_that_cannot_be_written_lasts_as_long_as_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path)
    shutil.rmtree(tmp_path / "index")
    (tmp_path / "index").write_text("no folder")
    other_process(monkeypatch)
    assert_answers(tmp_path)
    monkeypatch.setattr(checked_module, "sha256_file", lambda path: pytest.fail("it was read again"))
    assert_answers(tmp_path)


@pytest.mark.parametrize("field", range(5))
def test_a_note_with_another_state_vouches_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: int
) -> None:
    store = filled(tmp_path, shards=1)
    path, note = Path(store.shards[0].where), tmp_path / "index" / CHECKED
    noted = np.array(read_checked(note))
    noted["state"][noted["name"] == path.name.encode(), field] += 1
    write_bytes(note, checked_module.hashlib.sha256(noted.tobytes()).digest(), noted.tobytes())
    other_process(monkeypatch)
    assert not CheckedFiles(note).knows(path)


def test_notes_of_two_processes_are_kept_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / name for name in ("a", "b", "c")]
    for path in paths:
        path.write_text(path.name)
    one, two = CheckedFiles(tmp_path / CHECKED), CheckedFiles(tmp_path / CHECKED)
    assert not one.knows(paths[0])
    assert not two.knows(paths[1])
    one.add(paths[0], tmp_path / "missing")
    one.save()
    two.add(paths[1])
    two.save()
    one.add(paths[2])
    one.save()
    one.forget("a")
    one.save()
    other_process(monkeypatch)
    assert [CheckedFiles(tmp_path / CHECKED).knows(path) for path in paths] == [False, True, True]


def test_any_flipped_or_missing_byte_makes_a_note_none(tmp_path: Path) -> None:
    filled(tmp_path, shards=1)
    note = tmp_path / "index" / CHECKED
    whole = note.read_bytes()
    for place in range(len(whole)):
        note.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(ValueError, match="digest"):
            read_checked(note)
    for size in (0, 31, 32 + CHECKED_DTYPE.itemsize - 1, len(whole) - 1):
        note.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r".+"):
            read_checked(note)
        assert_answers(tmp_path, rows=25)


def test_a_note_that_is_a_link_or_a_pipe_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path, shards=1)
    note = tmp_path / "index" / CHECKED
    note.rename(tmp_path / "aside")
    note.symlink_to(tmp_path / "aside")
    with pytest.raises(ValueError, match="link"):
        read_checked(note)
    note.unlink()
    os.mkfifo(note)
    other_process(monkeypatch)
    assert_answers(tmp_path, rows=25)
    assert stat.S_ISREG(note.stat().st_mode)
