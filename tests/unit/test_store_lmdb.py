"""What is LMDB's own: the seal, killed writers, forked readers, and buffers that outlive removal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from embedcache.errors import CorruptCacheError, InputError
from embedcache.fsio import read_sealed_json, sha256_file
from embedcache.store import LmdbShards, ShardStore
from embedcache.store.checked import CheckedFiles
from embedcache.store.containers.lmdb import SEAL
from embedcache.testing import example_batch, example_contract

CONTRACT = example_contract()


def open_store(folder: Path, checked: CheckedFiles | None = None) -> ShardStore:
    return ShardStore(LmdbShards(folder / "vectors.mdb", checked), CONTRACT, "float32")


def seal_of(folder: Path) -> dict[str, object] | None:
    return read_sealed_json(folder / SEAL) if (folder / SEAL).exists() else None


def test_a_seal_tells_of_the_file_as_it_is_or_is_not_there(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.put(example_batch(["a"]))
    assert seal_of(tmp_path) is None
    store.finish()
    file = tmp_path / "vectors.mdb"
    (shard,) = store.shards
    sizes = {shard.name: shard.bytes}
    assert seal_of(tmp_path) == {"bytes": file.stat().st_size, "digest": sha256_file(file), "shards": sizes}
    store.put(example_batch(["b"]))
    assert seal_of(tmp_path) is None
    store.finish()
    store.container.remove(shard.name)
    assert seal_of(tmp_path) is None
    store.container.finish()
    left = seal_of(tmp_path)
    assert left is not None
    assert left["digest"] == sha256_file(file)
    assert left["shards"] == {store.shards[1].name: store.shards[1].bytes}


def test_a_writer_that_adds_nothing_reads_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_store(tmp_path).put(example_batch(["a"]))
    open_store(tmp_path).finish()
    before = (tmp_path / "vectors.mdb").read_bytes(), (tmp_path / SEAL).stat()
    refused = lambda *arguments: pytest.fail("the file was read as a whole")  # noqa: E731
    monkeypatch.setattr("embedcache.store.containers.lmdb.sha256_file", refused)
    open_store(tmp_path).finish()
    assert ((tmp_path / "vectors.mdb").read_bytes(), (tmp_path / SEAL).stat()) == before


def test_what_cannot_be_written_is_read_and_not_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = example_batch(["a", "b"])
    open_store(tmp_path).put(batch)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    store = open_store(tmp_path)
    store.finish()
    assert store.vectors(store.locate(batch.keys)).tobytes() == batch.vectors.tobytes()
    assert seal_of(tmp_path) is None


def test_an_empty_file_of_a_killed_writer_is_no_damage(tmp_path: Path) -> None:
    (tmp_path / "vectors.mdb").touch()
    store = open_store(tmp_path)
    assert len(store) == 0
    store.finish()
    assert seal_of(tmp_path) is None
    store.put(example_batch(["a"]))
    assert len(open_store(tmp_path)) == 1
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "vectors.mdb").write_bytes(b"\0" * 100)
    with pytest.raises(CorruptCacheError, match="no sound LMDB file"):
        open_store(tmp_path / "torn")


def test_vectors_stay_as_they_are_when_their_shard_is_removed_and_others_come(tmp_path: Path) -> None:
    batch = example_batch([f"text {number}" for number in range(2000)])
    store = open_store(tmp_path)
    store.put(batch)
    positions = store.locate(batch.keys)
    writer = LmdbShards(tmp_path / "vectors.mdb")
    writer.remove(store.shards[0].name)
    for number in range(5):
        open_store(tmp_path).put(example_batch([f"{number} {n}" for n in range(2000)], seed=number + 1))
    assert store.vectors(positions).tobytes() == batch.vectors.tobytes()


def test_a_shard_larger_than_lmdb_keeps_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedcache.store.containers.lmdb._MOST_SHARD_BYTES", 100)
    with pytest.raises(InputError, match=r"LMDB keeps at most 100 in one value; lower --shard-rows"):
        open_store(tmp_path).put(example_batch(["a"]))


FORKING = """
import os, sys
from pathlib import Path
from embedcache.cache import Cache
from embedcache.testing import example_batch, example_contract

contract = example_contract()
batch = example_batch([f"text {number}" for number in range(300)])
cache = Cache.create(sys.argv[1])
cache.register_teacher("tiny", contract, {})
store = cache.store(contract, "float32", sys.argv[2])
store.put(batch)
store.finish()
positions = store.locate(batch.keys)
child = os.fork()
if child == 0:
    own = Cache(sys.argv[1]).store(contract)
    read = [store.vectors(positions), own.vectors(own.locate(batch.keys))]
    own.put(example_batch(["of the child"]))
    good = all(vectors.tobytes() == batch.vectors.tobytes() for vectors in read)
    os._exit(0 if good else 1)
assert os.waitpid(child, 0)[1] == 0, "the child failed"
assert store.vectors(store.locate(batch.keys)).tobytes() == batch.vectors.tobytes()
store.put(example_batch(["of the parent"]))
assert len(cache.store(contract)) == 302
"""


@pytest.mark.parametrize("kind", ["arrow", "lmdb"])
def test_a_forked_child_reads_and_writes_what_its_parent_has_open(tmp_path: Path, kind: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKING, str(tmp_path / "cache"), kind],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
