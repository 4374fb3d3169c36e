"""Stores in every container: what is put comes back, reading order, and what is refused."""

from __future__ import annotations

import errno
import gc
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from store_helpers import CONTRACT, filled, open_store, shard_files, texts

from embedcache.codecs import CODEC_NAMES
from embedcache.contract import Contract
from embedcache.errors import ContractMismatchError, CorruptCacheError, InputError, StorageError
from embedcache.fsio import read_sealed_json, sha256_file
from embedcache.keys import key_array
from embedcache.store import LmdbShards, MemoryShards, ShardStore
from embedcache.store.lmdb_shards import SEAL
from embedcache.testing import example_batch, example_contract

Make = Callable[..., ShardStore]


@pytest.fixture(params=["arrow", "lmdb", "memory"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Return a function that opens the store called ``name``, with what was put into it before."""
    memory = defaultdict[str, MemoryShards](MemoryShards)

    def opened(name: str = "store", codec: str | None = None, contract: Contract = CONTRACT) -> ShardStore:
        if request.param != "memory":
            return open_store(tmp_path / name, codec, contract, request.param)
        return ShardStore(memory[name], contract, codec, codebooks=tmp_path / name)

    return opened


def test_vectors_come_back_in_the_order_asked(make: Make) -> None:
    """Several batches survive the object that wrote them; an empty or a repeated one changes nothing."""
    writer = make(codec="float32")
    batches = [example_batch([f"{n} {i}" for i in range(25)], seed=n) for n in range(2)]
    for batch in [*batches, batches[0], example_batch([])]:
        writer.put(batch)
    keys, vectors = (np.concatenate([getattr(b, name) for b in batches]) for name in ("keys", "vectors"))
    order = np.random.default_rng(1).integers(0, 50, 500)
    for store in (writer, make()):
        assert (len(store.shards), len(store)) == (2, 50)
        positions = store.locate(keys[order])
        assert store.vectors(positions).tobytes() == vectors[order].tobytes()
        assert store.keys_at(positions).tobytes() == keys[order].tobytes()
        assert store.gather(store.locate(key_array([]))).shape == (0, 8)


def test_a_missing_key_is_minus_one_and_has_no_vector(make: Make) -> None:
    store = make()
    store.put(example_batch(["here"]))
    assert (store.locate(key_array(["here", "elsewhere"])) < 0).tolist() == [False, True]
    for outside in (-1, 1):
        with pytest.raises(IndexError):
            store.gather(np.array([0, outside]))


def test_every_codec_comes_back_to_its_precision(make: Make) -> None:
    batch, contract = example_batch([f"text {i}" for i in range(400)], 16), example_contract(16)
    lost = []
    for codec in CODEC_NAMES:
        make(codec, codec, contract).put(batch)
        reader = make(codec, contract=contract)
        assert reader.codec_name == codec
        found = reader.vectors(reader.locate(batch.keys))
        assert found.dtype == np.float32
        lost.append(float(np.linalg.norm(found - batch.vectors, axis=1).mean()))
    assert lost == sorted(lost)
    assert (np.array(lost) <= [0, 0.001, 0.01, 0.5]).all()


def test_tokens_and_truncation_belong_to_their_row(make: Make) -> None:
    store, tokens = make(), np.arange(20, dtype=np.int32)
    batch = replace(example_batch(texts(0, 20)), tokens=tokens, truncated=tokens % 3 == 0)
    store.put(batch)
    order = np.random.default_rng(2).permutation(20)
    found_tokens, found_truncated = store.seen(store.locate(batch.keys[order]))
    assert found_tokens.tolist() == order.tolist()
    assert found_truncated.tolist() == (order % 3 == 0).tolist()


def test_positions_keep_their_meaning_when_rows_are_added(make: Make) -> None:
    store, batch = make(codec="float32"), example_batch(["a", "b"])
    store.put(batch)
    positions = store.locate(batch.keys)
    for number in range(4):
        store.put(example_batch([f"later {number}"], seed=number))
    assert store.vectors(positions).tobytes() == batch.vectors.tobytes()


def test_one_of_two_vectors_of_a_key_is_read_however_they_came(make: Make) -> None:
    found, batches = [], [example_batch(["same"], seed=seed) for seed in range(4)]
    for name, order in (("forth", batches), ("back", batches[::-1])):
        writer = make(name)
        for batch in order:
            writer.put(batch)
        reader = make(name)
        assert len(reader) == 1
        found.append(reader.vectors(reader.locate(batches[0].keys)).tobytes())
    assert found[0] == found[1]


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
        masks = [own for _, own in one.own_rows()]
        assert sum(int(own.sum()) for own in masks) == len(one) == 11
        positions = np.flatnonzero(np.concatenate(masks))
        assert (one.locate(one.keys_at(positions)) == positions).all()


@pytest.mark.parametrize(("fine", "coarse"), [("float32", "float16"), ("float16", "int8"), ("int8", "pq")])
def test_of_several_rows_the_finest_is_read(tmp_path: Path, fine: str, coarse: str) -> None:
    batch, both = example_batch(texts(0, 300)), tmp_path / "both"
    (both / "shards").mkdir(parents=True)
    expected = {}
    for codec in (fine, coarse):
        writer = open_store(tmp_path / codec, codec)
        writer.put(batch)
        expected[codec] = writer.vectors(writer.locate(batch.keys))
        shutil.copy(writer.shards[0].where, both / "shards")
    if coarse == "pq":
        shutil.copytree(tmp_path / coarse / "codebooks", both / "codebooks")
    for _ in range(2):  # without an index, and with one
        store = open_store(both)
        assert store.vectors(store.locate(batch.keys)).tobytes() == expected[fine].tobytes()
        assert (len(store), store.codec_name) == (300, fine)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="maps are listed on Linux alone")
@pytest.mark.parametrize("kind", ["arrow", "lmdb"])
def test_a_dropped_store_keeps_no_file_open(tmp_path: Path, kind: str) -> None:
    def use() -> None:
        store = open_store(tmp_path, kind=kind)
        assert store.vectors(store.locate(key_array(texts(0, 50)))).shape == (50, 8)

    def in_use() -> tuple[int, int]:
        maps = Path("/proc/self/maps").read_text().splitlines()
        return len(list(Path("/proc/self/fd").iterdir())), sum(str(tmp_path) in line for line in maps)

    filled(tmp_path, kind=kind)
    gc.collect()
    gc.disable()
    try:
        use()
        before = in_use()
        for _ in range(20):
            use()
        assert in_use() == before
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


@pytest.mark.parametrize("is_indexed", [True, False])
@pytest.mark.parametrize("damage", ["flip", "cut", "link", "folder"])
def test_a_damaged_shard_is_refused_before_a_row_of_it_is_read(
    tmp_path: Path, damage: str, is_indexed: bool
) -> None:
    _, everything = filled(tmp_path, shards=2)
    if not is_indexed:
        shutil.rmtree(tmp_path / "index")
    victim = shard_files(tmp_path)[0]
    data = bytearray(victim.read_bytes())
    victim.rename(tmp_path / "aside")
    data[len(data) // 2] ^= 1
    make = {
        "flip": lambda: victim.write_bytes(data),
        "cut": lambda: victim.write_bytes(data[:-20]),
        "link": lambda: victim.symlink_to(tmp_path / "aside"),
        "folder": victim.mkdir,
    }
    make[damage]()
    with pytest.raises(CorruptCacheError, match=victim.name):
        open_store(tmp_path).locate(everything.keys)


def test_a_shard_that_is_gone_has_no_rows(tmp_path: Path) -> None:
    _, everything = filled(tmp_path)
    shard_files(tmp_path)[0].unlink()
    (tmp_path / "shards" / ".tmp-0123-shard.arrow").write_bytes(b"left by a crash")
    store = open_store(tmp_path)
    assert (store.locate(everything.keys) >= 0).sum() == len(store) == 75


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
    with pytest.raises(CorruptCacheError, match=book.stem):
        open_store(tmp_path)


def test_a_full_disk_leaves_the_store_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, everything = filled(tmp_path, shards=2)
    before = shard_files(tmp_path)

    def full(*paths: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(StorageError):
            store.put(example_batch(["new"]))
    assert shard_files(tmp_path) == before
    store.put(example_batch(["new"]))
    assert len(store) == 51
    assert store.gather(store.locate(everything.keys)).tobytes() == everything.vectors.tobytes()


# LMDB


def seal_of(folder: Path) -> dict[str, object] | None:
    return read_sealed_json(folder / SEAL) if (folder / SEAL).exists() else None


def test_a_seal_describes_the_file_beside_it_or_is_missing(tmp_path: Path) -> None:
    store, file = open_store(tmp_path, kind="lmdb"), tmp_path / "vectors.mdb"

    def described() -> dict[str, object]:
        sizes = {name: store.container.open(name).size for name in store.container.names()}
        return {"bytes": file.stat().st_size, "digest": sha256_file(file), "shards": sizes}

    changes = (
        lambda: store.put(example_batch(["a"])),
        lambda: store.put(example_batch(["b"])),
        lambda: store.container.remove(store.container.names()[0]),
    )
    for change in changes:
        change()
        assert seal_of(tmp_path) is None
        store.container.finish()
        assert seal_of(tmp_path) == described()
    before = (tmp_path / SEAL).stat()
    open_store(tmp_path, kind="lmdb").finish()
    assert (tmp_path / SEAL).stat() == before  # nothing was added


def test_a_file_that_cannot_be_written_is_read_and_not_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = example_batch(["a", "b"])
    open_store(tmp_path, "float32", kind="lmdb").put(batch)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    store = open_store(tmp_path, kind="lmdb")
    store.finish()
    assert store.vectors(store.locate(batch.keys)).tobytes() == batch.vectors.tobytes()
    assert seal_of(tmp_path) is None


def test_an_empty_file_of_a_killed_writer_is_no_damage_and_a_torn_one_is(tmp_path: Path) -> None:
    (tmp_path / "vectors.mdb").touch()
    store = open_store(tmp_path, kind="lmdb")
    store.finish()
    assert (len(store), seal_of(tmp_path)) == (0, None)
    store.put(example_batch(["a"]))
    assert len(open_store(tmp_path, kind="lmdb")) == 1
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "vectors.mdb").write_bytes(b"\0" * 100)
    with pytest.raises(CorruptCacheError, match="no sound LMDB file"):
        open_store(tmp_path / "torn", kind="lmdb")


def test_vectors_stay_as_they_are_when_their_shard_is_removed_and_others_come(tmp_path: Path) -> None:
    store, everything = filled(tmp_path, shards=1, rows=2000, kind="lmdb")
    positions = store.locate(everything.keys)
    LmdbShards(tmp_path / "vectors.mdb").remove(store.shards[0].name)
    for number in range(1, 6):
        other = example_batch(texts(number * 2000, (number + 1) * 2000), seed=number)
        open_store(tmp_path, kind="lmdb").put(other)
    assert store.vectors(positions).tobytes() == everything.vectors.tobytes()


FORKING = """
import os, sys
from pathlib import Path
from store_helpers import CONTRACT, example_batch, filled, open_store

folder, kind = Path(sys.argv[1]), sys.argv[2]
store, everything = filled(folder, kind=kind)
positions = store.locate(everything.keys)
child = os.fork()
if child == 0:
    own = open_store(folder, kind=kind)
    read = [store.vectors(positions), own.vectors(own.locate(everything.keys))]
    own.put(example_batch(["of the child"]))
    good = all(vectors.tobytes() == everything.vectors.tobytes() for vectors in read)
    os._exit(0 if good else 1)
assert os.waitpid(child, 0)[1] == 0, "the child failed"
assert store.vectors(store.locate(everything.keys)).tobytes() == everything.vectors.tobytes()
store.put(example_batch(["of the parent"]))
assert len(open_store(folder, kind=kind)) == 102
"""


@pytest.mark.parametrize("kind", ["arrow", "lmdb"])
def test_a_forked_child_reads_and_writes_what_its_parent_has_open(tmp_path: Path, kind: str) -> None:
    command = [sys.executable, "-c", FORKING, str(tmp_path), kind]
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
