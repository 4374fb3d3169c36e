"""The store: the conformance tests over every container and codec, and what is the folder's own."""

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
from embedcache.store import store as store_module
from embedcache.store.digests import FileNotes
from embedcache.testing import VectorStoreConformance, example_batch, example_contract

CONTRACT = example_contract()


def folder_store(folder: Path, contract: Contract = CONTRACT, codec: str | None = None) -> ShardStore:
    return ShardStore(FolderShards(folder), contract, codec, codebooks=folder / "codebooks")


class TestFolderConforms(VectorStoreConformance):
    def make(self, folder: Path, contract: Contract, codec: str | None = None) -> VectorStore:
        notes = FileNotes(folder / "index" / "checked.bin")
        return ShardStore(
            FolderShards(folder / "shards", notes),
            contract,
            codec,
            codebooks=folder / "codebooks",
            index=(folder / "index", notes),
        )


class TestLmdbConforms(VectorStoreConformance):
    def make(self, folder: Path, contract: Contract, codec: str | None = None) -> VectorStore:
        notes = FileNotes(folder / "index" / "checked.bin")
        return ShardStore(
            LmdbShards(folder / "vectors.mdb", notes),
            contract,
            codec,
            codebooks=folder / "codebooks",
            index=(folder / "index", notes),
        )


class TestMemoryConforms(VectorStoreConformance):
    _containers: ClassVar[dict[Path, MemoryShards]] = {}

    def make(self, folder: Path, contract: Contract, codec: str | None = None) -> VectorStore:
        container = self._containers.setdefault(folder, MemoryShards())
        return ShardStore(container, contract, codec, codebooks=folder / "codebooks")


def texts(first: int, last: int) -> list[str]:
    return [f"text {number}" for number in range(first, last)]


def filled(folder: Path, shards: int = 7, rows: int = 11) -> tuple[ShardStore, VectorBatch]:
    """Return a float32 store of several shards, and everything in it as one batch."""
    store = folder_store(folder, CONTRACT, "float32")
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


def test_rows_of_many_shards_come_in_the_order_asked(tmp_path: Path) -> None:
    _, everything = filled(tmp_path)
    store = folder_store(tmp_path, CONTRACT)
    assert len(store.shards) == 7
    assert len(store) == 77
    rows = np.random.default_rng(0).integers(0, 77, size=500)
    found = store.gather(store.locate(everything.keys[rows]))
    assert found.tobytes() == everything.vectors[rows].tobytes()


def test_nothing_asked_is_nothing_given(tmp_path: Path) -> None:
    store, _ = filled(tmp_path, shards=2)
    assert store.gather(store.locate(key_array([]))).shape == (0, 8)
    assert folder_store(tmp_path / "none", CONTRACT).gather(np.empty(0, np.int64)).shape == (0, 8)


@pytest.mark.parametrize("shards", [1, 3])
def test_a_position_outside_the_store_is_an_error(tmp_path: Path, shards: int) -> None:
    store, _ = filled(tmp_path, shards=shards)
    assert store.gather(np.array([shards * 11 - 1])).shape == (1, 8)
    for outside in (-1, -2, shards * 11):
        with pytest.raises(IndexError, match="outside the store"):
            store.gather(np.array([0, outside]))


def test_positions_keep_their_meaning_when_rows_are_added(tmp_path: Path) -> None:
    store, everything = filled(tmp_path, shards=2)
    positions = store.locate(everything.keys)
    for number in range(5):
        store.put(example_batch([f"later {number}"], seed=number))
    assert store.gather(positions).tobytes() == everything.vectors.tobytes()
    assert store.locate(everything.keys).tolist() == positions.tolist()


def test_shards_are_named_by_their_bytes(tmp_path: Path) -> None:
    store, _ = filled(tmp_path)
    paths = sorted(tmp_path.iterdir())
    assert [path.stem for path in paths] == [sha256_file(path) for path in paths]
    assert store.bytes_on_disk == sum(path.stat().st_size for path in paths)


def test_of_a_key_in_several_shards_the_choice_does_not_depend_on_the_order_of_writing(
    tmp_path: Path,
) -> None:
    batches = [example_batch(["same"], seed=seed) for seed in range(6)]
    found = []
    for name, order in (("forth", batches), ("back", batches[::-1])):
        for batch in order:
            folder_store(tmp_path / name, CONTRACT).put(batch)
        store = folder_store(tmp_path / name, CONTRACT)
        assert len(store) == 1
        assert len(store.shards) == 6
        found.append(store.gather(store.locate(key_array(["same"]))).tobytes())
    assert found[0] == found[1]


@pytest.mark.parametrize("block", [2, 1000])
def test_of_a_key_in_several_rows_one_is_the_stores_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(store_module, "_LOCATE_ROWS", block)
    store = folder_store(tmp_path)
    for seed in range(5):
        store.put(example_batch(["same", f"own {seed}", f"other {seed}"], seed=seed))
    # As it stands after writing, and as the next reader finds it: in another order.
    for one in (store, folder_store(tmp_path)):
        assert one.repeats_keys
        masks = [own for shard, own in one.own_rows() if len(own) == len(shard) == 3]
        assert sum(int(own.sum()) for own in masks) == len(one) == 11
        positions = np.flatnonzero(np.concatenate(masks))
        keys = np.concatenate([shard.keys for shard, _ in one.own_rows()])[positions]
        assert (one.locate(keys) == positions).all()


def test_without_repetition_every_row_is_the_stores_own(tmp_path: Path) -> None:
    store, _ = filled(tmp_path, shards=3, rows=4)
    assert not store.repeats_keys
    assert [own.tolist() for _, own in store.own_rows()] == [[True] * 4] * 3
    assert list(folder_store(tmp_path / "empty").own_rows()) == []


def memory_maps() -> int:
    return len(Path("/proc/self/maps").read_text().splitlines())


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="maps are listed on Linux alone")
@pytest.mark.parametrize("kind", ["arrow", "lmdb"])
def test_a_store_that_is_dropped_holds_on_to_no_file(tmp_path: Path, kind: str) -> None:
    conforming = {"arrow": TestFolderConforms, "lmdb": TestLmdbConforms}[kind]()
    rows = texts(0, 50)

    def use() -> None:
        store = conforming.make(tmp_path, CONTRACT)
        assert store.vectors(store.locate(key_array(rows))).shape == (50, 8)

    writer = conforming.make(tmp_path, CONTRACT)
    for start in range(0, 50, 10):
        writer.put(example_batch(rows[start : start + 10]))
    del writer
    use()
    # Not when the collector of cycles comes by, but at once.
    gc.collect()
    gc.disable()
    try:
        files, maps = len(list(Path("/proc/self/fd").iterdir())), memory_maps()
        for _ in range(100):
            use()
        assert len(list(Path("/proc/self/fd").iterdir())) == files
        # The allocators of others may map a little meanwhile.
        assert memory_maps() < maps + 20
    finally:
        gc.enable()


def test_positions_do_not_depend_on_how_the_file_system_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, everything = filled(tmp_path)
    glob, found = Path.glob, []
    for backwards in (False, True):
        monkeypatch.setattr(Path, "glob", lambda path, rule, b=backwards: sorted(glob(path, rule), reverse=b))
        store = folder_store(tmp_path, CONTRACT)
        found.append(([shard.name for shard in store.shards], store.locate(everything.keys).tolist()))
    assert found[0] == found[1]
    assert len(set(found[0][1])) == 77


def test_a_shard_of_another_teacher_is_refused_by_field_and_values(tmp_path: Path) -> None:
    filled(tmp_path / "mean", shards=1)
    folder_store(tmp_path / "cls", example_contract(pooling="cls", max_length=32)).put(example_batch(["x"]))
    (stranger,) = (tmp_path / "cls").iterdir()
    shutil.copy(stranger, tmp_path / "mean")
    with pytest.raises(
        ContractMismatchError, match=r"pooling 'mean' -> 'cls', max_length 64 -> 32"
    ) as caught:
        folder_store(tmp_path / "mean", CONTRACT)
    assert caught.value.differences == {"pooling": ("mean", "cls"), "max_length": (64, 32)}
    assert stranger.name in str(caught.value)
    (tmp_path / "mean" / stranger.name).unlink()
    assert len(folder_store(tmp_path / "mean", CONTRACT)) == 11


def test_the_codec_is_that_of_the_shards(tmp_path: Path) -> None:
    filled(tmp_path, shards=1)
    assert folder_store(tmp_path, CONTRACT).codec_name == "float32"
    assert folder_store(tmp_path, CONTRACT, "float32").codec_name == "float32"
    assert folder_store(tmp_path / "new", CONTRACT).codec_name == "float16"
    with pytest.raises(
        InputError, match="stores these vectors as float32, not as float16: leave --codec out"
    ):
        folder_store(tmp_path, CONTRACT, "float16")


def test_shards_of_both_codecs_lose_nothing(tmp_path: Path) -> None:
    fine, coarse = example_batch(texts(0, 4)), example_batch(texts(4, 9), seed=1)
    fine.vectors[0, 0] = 70_000.0
    folder_store(tmp_path / "a", CONTRACT, "float32").put(fine)
    folder_store(tmp_path / "b", CONTRACT, "float16").put(coarse)
    merged = tmp_path / "merged"
    shutil.copytree(tmp_path / "a", merged)
    shutil.copytree(tmp_path / "b", merged, dirs_exist_ok=True)
    store = folder_store(merged, CONTRACT)
    assert store.codec_name == "float32"
    assert store.gather(store.locate(fine.keys)).tobytes() == fine.vectors.tobytes()
    assert np.array_equal(store.gather(store.locate(coarse.keys)), coarse.vectors.astype(np.float16))


def test_a_damaged_shard_is_refused(tmp_path: Path) -> None:
    filled(tmp_path, shards=2)
    victim = min(tmp_path.iterdir())
    victim.write_bytes(victim.read_bytes()[:-20])
    with pytest.raises(CorruptCacheError, match=victim.name):
        folder_store(tmp_path, CONTRACT)


def test_shards_that_are_merged_while_a_store_is_opened_are_no_damage(tmp_path: Path) -> None:
    filled(tmp_path / "before", shards=3)
    merged = filled(tmp_path / "after", shards=1, rows=33)[0]

    class MergedMeanwhile(FolderShards):
        def find_liars(self, names: Sequence[str]) -> list[str]:
            if len(names) == 3:
                for name in names:
                    self.remove(name)
                shutil.copytree(tmp_path / "after", self.folder, dirs_exist_ok=True)
            return super().find_liars(names)

    store = ShardStore(MergedMeanwhile(tmp_path / "before"), CONTRACT)
    assert [shard.name for shard in store.shards] == [shard.name for shard in merged.shards]
    assert len(store) == 33


def test_a_shard_that_others_have_merged_is_no_error_to_its_writer(tmp_path: Path) -> None:
    notes = FileNotes()
    store = ShardStore(FolderShards(tmp_path, notes), CONTRACT)
    store.put(example_batch(["a"]))
    store.put(example_batch(["b"]))
    gone, kept = [Path(shard.where) for shard in store.shards]
    size = store.bytes_on_disk
    assert size == gone.stat().st_size + kept.stat().st_size
    gone.unlink()
    store.finish()
    assert notes.knows(kept)
    assert store.bytes_on_disk == size


def test_a_store_knows_whether_others_have_added_to_it(tmp_path: Path) -> None:
    store, _ = filled(tmp_path, shards=2)
    assert store.is_current
    store.put(example_batch(["mine"]))
    assert store.is_current
    folder_store(tmp_path).put(example_batch(["theirs"]))
    assert not store.is_current


def test_a_damaged_codebook_is_told_of_once_and_by_its_own_name(tmp_path: Path) -> None:
    folder_store(tmp_path, CONTRACT, "pq").put(example_batch(texts(0, 300)))
    (book,) = (tmp_path / "codebooks").iterdir()
    book.write_bytes(book.read_bytes()[:-1] + b"!")
    with pytest.raises(CorruptCacheError, match=rf"^the pq codebook {book} is damaged") as caught:
        folder_store(tmp_path, CONTRACT)
    assert "shard" not in str(caught.value).split(":")[0]


def test_what_a_crash_left_is_no_shard(tmp_path: Path) -> None:
    filled(tmp_path, shards=1)
    (tmp_path / ".tmp-0123-shard.arrow").write_bytes(b"half")
    assert len(folder_store(tmp_path, CONTRACT)) == 11


def test_a_full_disk_leaves_the_store_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, everything = filled(tmp_path, shards=2)
    before = sorted(tmp_path.iterdir())

    def full(*paths: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(StorageError, match="the disk is full"):
            store.put(example_batch(["new"]))
    assert sorted(tmp_path.iterdir()) == before
    assert len(store) == 22
    store.put(example_batch(["new"]))
    assert len(store) == 23
    assert store.gather(store.locate(everything.keys)).tobytes() == everything.vectors.tobytes()
