"""Stores in every container: vectors come back, reading order, and refusals."""

from __future__ import annotations

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

from embedcache.errors import CorruptCacheError
from embedcache.fsio import read_sealed_json, sha256_file
from embedcache.keys import key_array
from embedcache.store import LmdbShards, MemoryShards, ShardStore
from embedcache.store.lmdb_shards import SEAL
from embedcache.testing import example_batch

Make = Callable[..., ShardStore]


@pytest.fixture(params=["arrow", "lmdb", "memory"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Return a function that opens the store called ``name``, with what was put into it before."""
    memory = defaultdict[str, MemoryShards](MemoryShards)

    def opened(name: str = "store", codec: str | None = None) -> ShardStore:
        if request.param != "memory":
            return open_store(tmp_path / name, codec, kind=request.param)
        return ShardStore(memory[name], CONTRACT, codec)

    return opened


def test_rows_come_back_in_the_order_asked(make: Make) -> None:
    """Several batches survive the object that wrote them; an empty or a repeated one changes nothing."""
    writer = make(codec="float32")
    batches = [example_batch([f"{n} {i}" for i in range(25)], seed=n) for n in range(3)]
    numbers = np.arange(25, dtype=np.int32)
    batches[1] = replace(batches[1], tokens=numbers, truncated=numbers % 3 == 0)
    writer.put(batches[0])
    early = writer.locate(batches[0].keys)
    for batch in [*batches[1:], batches[0], example_batch([])]:
        writer.put(batch)
    assert writer.vectors(early).tobytes() == batches[0].vectors.tobytes()
    keys, vectors, tokens, truncated = (
        np.concatenate([getattr(batch, name) for batch in batches])
        for name in ("keys", "vectors", "tokens", "truncated")
    )
    order = np.random.default_rng(1).integers(0, 75, 500)
    for store in (writer, make()):
        assert (len(store.shards), len(store)) == (3, 75)
        positions = store.locate(keys[order])
        assert store.vectors(positions).tobytes() == vectors[order].tobytes()
        assert store.keys_at(positions).tobytes() == keys[order].tobytes()
        assert np.array_equal(store.seen(positions), (tokens[order], truncated[order]))
        assert store.gather(positions[:0]).shape == (0, 8)
        assert store.locate(key_array(["elsewhere"])).tolist() == [-1]
        for outside in (-1, 75):
            with pytest.raises(IndexError):
                store.gather(np.array([0, outside]))


def test_the_same_of_two_vectors_of_a_key_is_read_in_any_order(make: Make) -> None:
    found, batches = [], [example_batch(["same"], seed=seed) for seed in range(4)]
    for name, order in (("forth", batches), ("back", batches[::-1])):
        for batch in order:
            make(name).put(batch)
        reader = make(name)
        assert len(reader) == 1
        found.append(reader.vectors(reader.locate(batches[0].keys)).tobytes())
    assert found[0] == found[1]


@pytest.mark.parametrize(("fine", "coarse"), [("float32", "float16"), ("float16", "int8"), ("int8", "pq")])
def test_of_several_rows_the_finest_is_read(tmp_path: Path, fine: str, coarse: str) -> None:
    batch, both = example_batch(texts(0, 300)), tmp_path / "both"
    for codec in (coarse, fine):
        writer = open_store(tmp_path / codec, codec)
        writer.put(batch)
        shutil.copytree(tmp_path / codec, both, dirs_exist_ok=True)
    expected = writer.vectors(writer.locate(batch.keys))
    for _ in range(2):  # without an index, and with one
        store = open_store(both)
        assert store.vectors(store.locate(batch.keys)).tobytes() == expected.tobytes()
        assert (len(store), store.codec_name) == (300, fine)


def test_a_store_sees_additions_of_others(tmp_path: Path) -> None:
    store, _ = filled(tmp_path, shards=2)
    store.put(example_batch(["mine"]))
    assert store.is_current
    open_store(tmp_path).put(example_batch(["theirs"]))
    assert not store.is_current
    assert store.open_new() == 1
    assert store.is_current
    assert (store.locate(key_array(["mine", "theirs"])) >= 0).all()


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="maps are listed on Linux alone")
@pytest.mark.parametrize("kind", ["arrow", "lmdb"])
def test_a_dropped_store_keeps_no_file_open(tmp_path: Path, kind: str) -> None:
    filled(tmp_path, kind=kind)
    in_use = []
    for _ in range(3):
        store = open_store(tmp_path, kind=kind)
        assert store.vectors(store.locate(key_array(texts(0, 50)))).shape == (50, 8)
        del store
        gc.collect()
        maps = Path("/proc/self/maps").read_text().splitlines()
        descriptors = list(Path("/proc/self/fd").iterdir())
        in_use.append((len(descriptors), sum(str(tmp_path) in line for line in maps)))
    assert in_use[1:] == in_use[:-1]


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
def test_a_forked_child_reads_and_writes_the_open_store_of_its_parent(tmp_path: Path, kind: str) -> None:
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    command, environment = [sys.executable, "-c", FORKING, str(tmp_path), kind], {"PYTHONPATH": path}
    subprocess.run(command, env={**os.environ, **environment}, check=True)


def test_a_shard_that_is_gone_has_no_rows(tmp_path: Path) -> None:
    _, everything = filled(tmp_path)
    shard_files(tmp_path)[0].unlink()
    (tmp_path / "shards" / ".tmp-0123-shard.arrow").write_bytes(b"left by a crash")
    store = open_store(tmp_path)
    assert (store.locate(everything.keys) >= 0).sum() == len(store) == 75


# LMDB


def seal_of(folder: Path) -> dict[str, object] | None:
    return read_sealed_json(folder / SEAL) if (folder / SEAL).exists() else None


def test_a_seal_describes_the_file_beside_it_or_is_missing(tmp_path: Path) -> None:
    store, file = open_store(tmp_path, kind="lmdb"), tmp_path / "vectors.mdb"
    changes = (
        lambda: store.put(example_batch(["a"])),
        lambda: store.put(example_batch(["b"])),
        lambda: store.container.remove(store.container.names()[0]),
    )
    for change in changes:
        change()
        assert seal_of(tmp_path) is None
        store.container.finish()
        sizes = {name: store.container.open(name).size for name in store.container.names()}
        expected = {"bytes": file.stat().st_size, "digest": sha256_file(file), "shards": sizes}
        assert seal_of(tmp_path) == expected
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


def test_an_empty_file_of_a_killed_writer_is_not_damage_but_a_torn_one_is(tmp_path: Path) -> None:
    (tmp_path / "vectors.mdb").touch()
    store = open_store(tmp_path, kind="lmdb")
    store.finish()
    assert (len(store), seal_of(tmp_path)) == (0, None)
    store.put(example_batch(["a"]))
    assert len(open_store(tmp_path, kind="lmdb")) == 1
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "vectors.mdb").write_bytes(b"\0" * 100)
    with pytest.raises(CorruptCacheError, match="not a sound LMDB file"):
        open_store(tmp_path / "torn", kind="lmdb")


def test_vectors_stay_as_they_are_when_their_shard_is_removed_and_others_come(tmp_path: Path) -> None:
    store, everything = filled(tmp_path, shards=1, rows=2000, kind="lmdb")
    positions = store.locate(everything.keys)
    LmdbShards(tmp_path / "vectors.mdb").remove(store.shards[0].name)
    for number in range(1, 6):
        other = example_batch(texts(number * 2000, (number + 1) * 2000), seed=number)
        open_store(tmp_path, kind="lmdb").put(other)
    assert store.vectors(positions).tobytes() == everything.vectors.tobytes()
