"""Verify and repair of what a newer embedcache wrote: it is left as it is, and to upgrade is the advice."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from check_helpers import KINDS, TEACHER, MakeCopy, content_of, flip, mended, only

from embedcache.check import Repair, repair, verify
from embedcache.check.findings import UPGRADE
from embedcache.check.repair.mending import IDENTICAL, NOT_REPAIRED
from embedcache.fsio import canonical_json, read_sealed_json, sealed, spelled_json, write_sealed_json
from embedcache.store import LmdbShards

pytest_plugins = ["check_fixtures"]

MARKERS = [
    {"format": "embedcache", "version": 3},
    {"format": "embedcache", "version": 3, "made_by": {"name": "a later one"}},
]


def newer_shard(data: bytes) -> tuple[str, bytes]:
    """Return the name and bytes of a shard of version 3, which has a column more and two batches."""
    batch = pa.ipc.open_file(pa.BufferReader(data)).get_batch(0)
    header = {**json.loads(batch.schema.metadata[b"embedcache"]), "version": 3}
    batch = batch.append_column("more", pa.array([0] * batch.num_rows))
    batch = batch.replace_schema_metadata({b"embedcache": canonical_json(header)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
        writer.write_batch(batch)
    written = sink.getvalue().to_pybytes()
    return hashlib.sha256(written).hexdigest(), written


def replace_shard(cache: Path) -> str:
    """Put a shard of version 3 in the place of one; return how findings name it."""
    path = only(cache, "teachers/*/shards/*")
    name, data = newer_shard(path.read_bytes())
    path.unlink()
    path.with_name(f"{name}.arrow").write_bytes(data)
    return path.with_name(f"{name}.arrow").relative_to(cache).as_posix()


def replace_stored_shard(cache: Path) -> str:
    """Put a shard of version 3 in the place of one in an LMDB file; return how findings name it."""
    path = only(cache, "teachers/*/vectors.mdb")
    store = LmdbShards(path)
    old = store.names()[0]
    name, data = newer_shard(bytes(memoryview(store.open(old))))
    store.remove(old)
    store.add(name, pa.py_buffer(data))
    store.finish()
    store.close()
    return f"{path.relative_to(cache).as_posix()}#{name}"


def replace_description(cache: Path) -> str:
    """Make the description of the corpus one of version 3; return its path."""
    path = cache / "corpora" / "corpus" / "corpus.json"
    write_sealed_json(path, {**read_sealed_json(path), "version": 3})
    return path.relative_to(cache).as_posix()


def replace_contract(cache: Path) -> str:
    """Make the contract of the teacher one of version 2, with a field more; return its path."""
    folder = only(cache, "teachers/*")
    value = {**json.loads((folder / "contract.json").read_bytes()), "version": 2, "more": 1}
    (folder / "contract.json").write_bytes(spelled_json(value))
    folder = folder.rename(folder.with_name(hashlib.sha256(canonical_json(value)).hexdigest()))
    return (folder / "contract.json").relative_to(cache).as_posix()


def assert_left_alone(cache: Path, *, quarantine: bool = False) -> Repair:
    """Assert that repair changes nothing, in a dry run and otherwise, and only advises to upgrade."""
    before = content_of(cache)
    found = verify(cache)
    assert {one.way_out for one in found.damage} == {UPGRADE}
    assert not any("repair" in one.way_out for one in found.findings)
    assert all(one.detail == UPGRADE for one in repair(cache, dry_run=True, quarantine=quarantine).mends)
    done = mended(cache, quarantine=quarantine)
    assert {one.outcome for one in done.mends} == {NOT_REPAIRED}
    assert {one.detail for one in done.mends} == {UPGRADE}
    assert {one.path for one in done.left} == {one.path for one in found.damage}
    assert content_of(cache) == before
    return done


@pytest.mark.parametrize(
    "data",
    [
        spelled_json({**sealed(MARKERS[1]), "made_by": "somebody else"}),
        spelled_json(sealed(MARKERS[0]))[:-1],
        spelled_json(MARKERS[0]),
        spelled_json({"format": "embedcache", "version": "3"}),
        spelled_json({"format": "something else", "version": 3}),
        b"",
    ],
)
def test_a_damaged_marker_is_written_anew(fresh: MakeCopy, data: bytes) -> None:
    cache = fresh("arrow")
    right = (cache / "cache.json").read_bytes()
    (cache / "cache.json").write_bytes(data)
    (found,) = verify(cache).damage
    assert "upgrade" not in found.way_out
    (mend,) = mended(cache).mends
    assert (mend.path, mend.outcome) == ("cache.json", IDENTICAL)
    assert (cache / "cache.json").read_bytes() == right


def test_a_newer_corpus_is_not_written_over(fresh: MakeCopy) -> None:
    cache = fresh("arrow")
    path = replace_description(cache)
    (left,) = assert_left_alone(cache).left
    assert left.path == path


def test_of_a_newer_corpus_no_part_is_mended_but_teachers_are(
    fresh: MakeCopy, sound_caches: dict[str, Path]
) -> None:
    cache = fresh("arrow")
    path = replace_description(cache)
    part = only(cache, "corpora/*/*.arrow")
    flip(part, part.stat().st_size - 40, 1)
    broken = part.read_bytes()
    contract = only(cache, "teachers/*/contract.json")
    contract.unlink()
    done = mended(cache, quarantine=True)
    assert {one.path for one in done.left} == {path, part.relative_to(cache).as_posix()}
    assert {one.detail for one in done.left} == {UPGRADE}
    assert part.read_bytes() == broken
    assert contract.read_bytes() == only(sound_caches["arrow"], "teachers/*/contract.json").read_bytes()


@pytest.mark.parametrize("kind", ["arrow", "lmdb", "pq"])
def test_a_newer_shard_stays_and_with_it_the_teacher(fresh: MakeCopy, kind: str) -> None:
    cache = fresh(kind)
    path = replace_stored_shard(cache) if kind == "lmdb" else replace_shard(cache)
    done = assert_left_alone(cache, quarantine=True)
    assert path in {one.path for one in done.left}
    if kind != "lmdb":
        # What else is damaged there is not mended either: whose texts lack a vector cannot be told.
        for shard in [one for one in only(cache, "teachers/*/shards").iterdir() if one.name not in path][:1]:
            flip(shard, 3000, 1)
        assert len(assert_left_alone(cache, quarantine=True).left) >= 2
    assert not (cache / "quarantine").exists()


def test_a_damaged_lmdb_file_with_a_newer_shard_is_not_written_anew(fresh: MakeCopy) -> None:
    cache = fresh("lmdb")
    replace_stored_shard(cache)
    path = only(cache, "teachers/*/vectors.mdb")
    flip(path, 4096 + 20, 255)
    before = path.read_bytes()
    done = mended(cache)
    assert {one.detail for one in done.left} == {UPGRADE}
    assert [one.path for one in done.mends] == [path.relative_to(cache).as_posix()]
    assert path.read_bytes() == before
    assert not (cache / "quarantine").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_a_newer_contract_is_not_written_over(fresh: MakeCopy, kind: str) -> None:
    cache = fresh(kind)
    shutil.rmtree(cache / "derived")
    path = replace_contract(cache)
    done = assert_left_alone(cache)
    assert path in {one.path for one in done.left}


def test_other_teachers_are_mended(fresh: MakeCopy, sound_caches: dict[str, Path]) -> None:
    cache, other = fresh("arrow"), fresh("pq")
    shutil.rmtree(cache / "derived")
    replace_contract(other)
    stranger = only(other, "teachers/*")
    shutil.copytree(stranger, cache / "teachers" / stranger.name)
    flip(only(cache / "teachers" / TEACHER.contract.id, "shards/*"), 3000, 1)
    done = mended(cache)
    assert {one.path.split("/")[1] for one in done.left} == {stranger.name}
    whole = {path: digest for path, digest in content_of(cache).items() if stranger.name not in path}
    assert whole == content_of(sound_caches["arrow"])
