"""Stores: conformance of every container, reading order, and what a store refuses."""

from __future__ import annotations

import errno
import gc
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from embedcache.contract import Contract
from embedcache.errors import ContractMismatchError, CorruptCacheError, InputError, StorageError
from embedcache.fsio import sha256_file
from embedcache.keys import key_array
from embedcache.store import FolderShards, LmdbShards, MemoryShards, ShardStore, VectorBatch, VectorStore
from embedcache.store.checked import CheckedFiles
from embedcache.testing import VectorStoreConformance, example_batch, example_contract

CONTRACT = example_contract()


def open_store(
    folder: Path, codec: str | None = None, contract: Contract = CONTRACT, kind: str = "arrow"
) -> ShardStore:
    """Open a store with its derived files, as a cache does."""
    checked = CheckedFiles(folder / "index" / "checked.bin")
    places = {"arrow": lambda: FolderShards(folder / "shards", checked)}
    container = places.get(kind, lambda: LmdbShards(folder / "vectors.mdb", checked))()
    books, index = folder / "codebooks", (folder / "index", checked)
    return ShardStore(container, contract, codec, codebooks=books, index=index)


class TestFolderConforms(VectorStoreConformance):
    def make(self, folder: Path, contract: Contract, codec: str | None = None) -> VectorStore:
        return open_store(folder, codec, contract)


class TestLmdbConforms(VectorStoreConformance):
    def make(self, folder: Path, contract: Contract, codec: str | None = None) -> VectorStore:
        return open_store(folder, codec, contract, "lmdb")


class TestMemoryConforms(VectorStoreConformance):
    _containers: ClassVar[dict[Path, MemoryShards]] = {}

    def make(self, folder: Path, contract: Contract, codec: str | None = None) -> VectorStore:
        container = self._containers.setdefault(folder, MemoryShards())
        return ShardStore(container, contract, codec, codebooks=folder / "codebooks")


def texts(first: int, last: int) -> list[str]:
    return [f"text {number}" for number in range(first, last)]


def filled(folder: Path, shards: int = 7, rows: int = 11) -> tuple[ShardStore, VectorBatch]:
    """Return a float32 store of several shards, and everything in it as one batch."""
    store = open_store(folder, "float32")
    batches = [
        example_batch(texts(number * rows, (number + 1) * rows), seed=number) for number in range(shards)
    ]
    for batch in batches:
        store.put(batch)
    return store, VectorBatch(
        np.concatenate([batch.keys for batch in batches]),
        np.concatenate([batch.vectors for batch in batches]),
        np.concatenate([batch.tokens for batch in batches]),
        np.concatenate([batch.truncated for batch in batches]),
    )


def shard_files(folder: Path) -> list[Path]:
    return sorted((folder / "shards").iterdir())


def test_rows_of_many_shards_come_in_the_order_asked(tmp_path: Path) -> None:
    _, everything = filled(tmp_path)
    store = open_store(tmp_path)
    assert (len(store.shards), len(store)) == (7, 77)
    rows = np.random.default_rng(0).integers(0, 77, size=500)
    found = store.gather(store.locate(everything.keys[rows]))
    assert found.tobytes() == everything.vectors[rows].tobytes()
    assert store.gather(store.locate(key_array([]))).shape == (0, 8)


@pytest.mark.parametrize("shards", [1, 3])
def test_a_position_outside_the_store_is_an_error(tmp_path: Path, shards: int) -> None:
    store, _ = filled(tmp_path, shards=shards)
    for outside in (-1, -2, shards * 11):
        with pytest.raises(IndexError, match="outside the store"):
            store.gather(np.array([0, outside]))


def test_shards_are_named_by_their_bytes_and_never_change(tmp_path: Path) -> None:
    store, _ = filled(tmp_path)
    files = {path: path.read_bytes() for path in shard_files(tmp_path)}
    assert [path.stem for path in files] == [sha256_file(path) for path in files]
    assert store.bytes_on_disk == sum(map(len, files.values()))
    store.put(example_batch(["new"]))
    store.finish()
    assert all(path.read_bytes() == data for path, data in files.items())


def test_each_key_has_one_row_of_its_own(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for seed in range(5):
        store.put(example_batch(["same", f"own {seed}", f"other {seed}"], seed=seed))
    # As it is after writing, and as the next reader finds it: in another order.
    for one in (store, open_store(tmp_path)):
        assert one.repeats_keys
        masks = [own for _, own in one.own_rows()]
        assert sum(int(own.sum()) for own in masks) == len(one) == 11
        positions = np.flatnonzero(np.concatenate(masks))
        keys = np.concatenate([shard.keys for shard, _ in one.own_rows()])[positions]
        assert (one.locate(keys) == positions).all()
    assert not filled(tmp_path / "distinct")[0].repeats_keys


@pytest.mark.parametrize(("fine", "coarse"), [("float32", "float16"), ("float16", "int8"), ("int8", "pq")])
@pytest.mark.parametrize("fine_first", [True, False])
def test_of_several_rows_the_finest_is_read(tmp_path: Path, fine: str, coarse: str, fine_first: bool) -> None:
    batch = example_batch(texts(0, 300))
    writers = {codec: open_store(tmp_path / codec, codec) for codec in (fine, coarse)}
    expected = {}
    for codec, writer in writers.items():
        writer.put(batch)
        expected[codec] = writer.vectors(writer.locate(batch.keys))
    both = tmp_path / "both"
    if coarse == "pq":
        shutil.copytree(tmp_path / coarse / "codebooks", both / "codebooks")
    (both / "shards").mkdir(parents=True)
    stores = []
    for codec in (fine, coarse) if fine_first else (coarse, fine):
        (shard,) = writers[codec].shards
        shutil.copy(shard.where, both / "shards")
        stores.append(open_store(both))
        stores[-1].finish()
    stores[0].open_new()
    for store in (*stores, open_store(both)):
        assert store.vectors(store.locate(batch.keys)).tobytes() == expected[fine].tobytes()
        assert len(store) == 300
    assert stores[1].codec_name == fine


def test_of_one_codec_the_first_name_is_read_however_shards_came(tmp_path: Path) -> None:
    found = []
    for name, seeds in (("forth", range(6)), ("back", range(5, -1, -1))):
        for seed in seeds:
            writer = open_store(tmp_path / name)
            writer.put(example_batch(["same"], seed=seed))
            writer.finish()
        store = open_store(tmp_path / name)
        assert len(store) == 1
        found.append(store.gather(store.locate(key_array(["same"]))).tobytes())
        first = min(store.shards, key=lambda shard: shard.name)
        assert found[-1] == first.stored.vector.tobytes()
    assert found[0] == found[1]


def memory_maps() -> int:
    return len(Path("/proc/self/maps").read_text().splitlines())


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="maps are listed on Linux alone")
@pytest.mark.parametrize("kind", ["arrow", "lmdb"])
def test_a_dropped_store_keeps_no_file_open(tmp_path: Path, kind: str) -> None:
    rows = texts(0, 50)

    def use() -> None:
        store = open_store(tmp_path, kind=kind)
        assert store.vectors(store.locate(key_array(rows))).shape == (50, 8)

    writer = open_store(tmp_path, kind=kind)
    for start in range(0, 50, 10):
        writer.put(example_batch(rows[start : start + 10]))
    del writer
    use()
    gc.collect()
    gc.disable()
    try:
        files, maps = len(list(Path("/proc/self/fd").iterdir())), memory_maps()
        for _ in range(100):
            use()
        assert len(list(Path("/proc/self/fd").iterdir())) == files
        # Allocators may map a little meanwhile.
        assert memory_maps() < maps + 20
    finally:
        gc.enable()


def test_a_shard_of_another_teacher_is_refused_by_field_and_values(tmp_path: Path) -> None:
    filled(tmp_path / "mean", shards=1)
    other = example_contract(pooling="cls", max_length=32)
    open_store(tmp_path / "cls", contract=other).put(example_batch(["x"]))
    (stranger,) = shard_files(tmp_path / "cls")
    shutil.copy(stranger, tmp_path / "mean" / "shards")
    with pytest.raises(ContractMismatchError, match=stranger.name) as caught:
        open_store(tmp_path / "mean")
    assert caught.value.differences == {"pooling": ("mean", "cls"), "max_length": (64, 32)}


def test_the_codec_is_that_of_the_shards(tmp_path: Path) -> None:
    filled(tmp_path, shards=1)
    assert open_store(tmp_path).codec_name == "float32"
    assert open_store(tmp_path / "new").codec_name == "float16"
    with pytest.raises(InputError, match="float32, not as float16"):
        open_store(tmp_path, "float16")


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "link", "folder"])
def test_a_damaged_shard_is_refused_before_a_row_of_it_is_read(
    tmp_path: Path, damage: str, finished: bool
) -> None:
    store, everything = filled(tmp_path, shards=2)
    if finished:
        store.finish()
    victim = shard_files(tmp_path)[0]
    data = bytearray(victim.read_bytes())
    victim.rename(tmp_path / "aside")
    if damage == "flip":
        data[len(data) // 2] ^= 1
        victim.write_bytes(data)
    elif damage == "cut":
        victim.write_bytes(data[:-20])
    elif damage == "link":
        victim.symlink_to(tmp_path / "aside")
    elif damage == "folder":
        victim.mkdir()
    if damage == "gone":
        assert (open_store(tmp_path).locate(everything.keys) >= 0).sum() == 11
        return
    with pytest.raises(CorruptCacheError, match=victim.name):
        open_store(tmp_path).locate(everything.keys)


def test_shards_that_are_replaced_while_a_store_is_opened_are_no_damage(tmp_path: Path) -> None:
    filled(tmp_path / "before", shards=3)
    replaced = filled(tmp_path / "after", shards=1, rows=33)[0]

    class Replaced(FolderShards):
        def find_corrupt(self, names: Sequence[str]) -> list[str]:
            if len(names) == 3:
                for name in names:
                    self.remove(name)
                shutil.copytree(tmp_path / "after" / "shards", self.folder, dirs_exist_ok=True)
            return super().find_corrupt(names)

    store = ShardStore(Replaced(tmp_path / "before" / "shards"), CONTRACT)
    assert [shard.name for shard in store.shards] == [shard.name for shard in replaced.shards]


def test_a_store_sees_what_others_add(tmp_path: Path) -> None:
    store, _ = filled(tmp_path, shards=2)
    store.put(example_batch(["mine"]))
    assert store.is_current
    open_store(tmp_path).put(example_batch(["theirs"]))
    assert not store.is_current
    assert store.open_new() == 1
    assert store.is_current
    assert (store.locate(key_array(["mine", "theirs"])) >= 0).all()


def test_a_damaged_codebook_is_named(tmp_path: Path) -> None:
    open_store(tmp_path, "pq").put(example_batch(texts(0, 300)))
    (book,) = (tmp_path / "codebooks").iterdir()
    book.write_bytes(book.read_bytes()[:-1] + b"!")
    with pytest.raises(CorruptCacheError, match=book.name):
        open_store(tmp_path)


def test_what_a_crash_left_is_no_shard(tmp_path: Path) -> None:
    filled(tmp_path, shards=1)
    (tmp_path / "shards" / ".tmp-0123-shard.arrow").write_bytes(b"half")
    assert len(open_store(tmp_path)) == 11


def test_a_full_disk_leaves_the_store_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, everything = filled(tmp_path, shards=2)
    before = shard_files(tmp_path)

    def full(*paths: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(StorageError, match="full"):
            store.put(example_batch(["new"]))
    assert shard_files(tmp_path) == before
    store.put(example_batch(["new"]))
    assert len(store) == 23
    assert store.gather(store.locate(everything.keys)).tobytes() == everything.vectors.tobytes()
