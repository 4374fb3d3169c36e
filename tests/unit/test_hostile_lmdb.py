"""LMDB files from a stranger: stores, indexes that lie, and notes that vouch for them."""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from damage import flip_middle
from hostile_helpers import EVERYTHING, VECTORS, judge, one, received

from embedcache.fsio import sha256_file
from embedcache.store.digests import NotedFiles, write_noted

# The index, and the notes on what was checked

Entries = dict[bytes, bytes]


def without_header(entries: Entries) -> None:
    del entries[b"header"]


def all_distinct_lost(entries: Entries) -> None:
    rows, bits, _ = np.frombuffer(entries[b"header"], np.int64)
    entries[b"header"] = np.array([rows, bits, 7], np.int64).tobytes()


def absurd_bits(entries: Entries) -> None:
    entries[b"header"] = np.array([300, 60, 300], np.int64).tobytes()


def absurd_rows(entries: Entries) -> None:
    entries[b"header"] = np.array([2**62, 50, 2**62], np.int64).tobytes()


def places(change: Callable[[Any], Any]) -> Callable[[Entries], None]:
    def changed(entries: Entries) -> None:
        for name, value in entries.items():
            if name != b"header":
                words = np.frombuffer(value, np.int64)
                count = len(words) // 3
                entries[name] = words[: 2 * count].tobytes() + change(words[2 * count :]).tobytes()

    return changed


def keys_of_nobody(entries: Entries) -> None:
    for name, value in entries.items():
        if name != b"header":
            entries[name] = bytes(len(value))


def half_a_row(entries: Entries) -> None:
    for name, value in entries.items():
        if name != b"header":
            entries[name] = value[:-12]


LIES = {
    "no-header": without_header,
    "count": all_distinct_lost,
    "bits": absurd_bits,
    "rows": absurd_rows,
    "outside": places(lambda found: found + 2**40),
    "negative": places(lambda found: -found - 2),
    "swapped": places(lambda found: found[::-1]),
    "missing": places(lambda found: np.full_like(found, -1)),
    "keys": keys_of_nobody,
    "half": half_a_row,
    "empty": Entries.clear,
}


def forged(index: Path, change: Callable[[Entries], object]) -> Path:
    """Write an index with ``change`` to its entries, under the digest that it has, and return its path."""
    with lmdb.open(str(index), subdir=False, readonly=True, lock=False) as env, env.begin() as transaction:
        entries = {bytes(name): bytes(value) for name, value in transaction.cursor()}
    change(entries)
    index.unlink()
    made = index.with_name("made")
    with lmdb.open(str(made), subdir=False, lock=False) as env, env.begin(write=True) as transaction:
        for name, value in entries.items():
            transaction.put(name, value)
    shards = index.name.partition("-")[0]
    return made.rename(made.with_name(f"{shards}-{sha256_file(made)}.mdb"))


def noted(path: Path, **changes: int) -> None:
    """Note the file ``path`` as one that was found sound, with ``changes`` to what is noted."""
    found = path.stat()
    state = {
        "size": found.st_size,
        "mtime": found.st_mtime_ns,
        "ctime": found.st_ctime_ns,
        "device": found.st_dev,
        "inode": found.st_ino,
    }
    noted = NotedFiles.of({path.name: list({**state, **changes}.values())})
    write_noted(path.with_name("checked.bin"), noted)


@pytest.mark.parametrize("lie", LIES)
def test_an_index_that_lies_is_made_anew(tmp_path: Path, lie: str) -> None:
    cache = received(tmp_path)
    index = forged(one(cache, "derived/index/*/*.mdb"), LIES[lie])
    judge(cache).assert_unharmed()
    assert not index.exists()


@pytest.mark.parametrize("lie", LIES)
def test_verify_finds_an_index_that_lies(tmp_path: Path, lie: str) -> None:
    cache = received(tmp_path)
    index = forged(one(cache, "derived/index/*/*.mdb"), LIES[lie])
    (line,) = judge(cache, {"verify"}).damage
    assert index.name in line


def test_a_note_of_this_machine_would_vouch_for_an_index(tmp_path: Path) -> None:
    # Else the tests below, where it does not, would prove nothing.
    cache = received(tmp_path)
    index = forged(one(cache, "derived/index/*/*.mdb"), all_distinct_lost)
    noted(index)
    judge(cache, {"info"}).assert_refused(())
    assert index.exists()


@pytest.mark.parametrize("field", ["ctime", "inode", "device"])
def test_a_note_that_came_along_vouches_for_nothing(tmp_path: Path, field: str) -> None:
    cache = received(tmp_path)
    index = forged(one(cache, "derived/index/*/*.mdb"), all_distinct_lost)
    noted(index, **{field: 12345})
    judge(cache).assert_unharmed()
    assert not index.exists()


@pytest.mark.parametrize("field", ["ctime", "inode", "device"])
def test_a_note_that_came_along_vouches_for_no_shard(tmp_path: Path, field: str) -> None:
    cache = received(tmp_path)
    shard = one(cache, "teachers/*/shards/*")
    flip_middle(shard)
    noted(shard, **{field: 12345})
    shard.with_name("checked.bin").rename(one(cache, "derived/index/*") / "checked.bin")
    judge(cache).assert_refused(VECTORS, "its bytes are not those its name is the sha256 of", "repair")


# LMDB stores


@contextmanager
def store_of(cache: Path, **options: Any) -> Iterator[lmdb.Environment]:
    """Open the LMDB file of a cache as whoever made it could."""
    path = one(cache, "teachers/*/vectors.mdb")
    # Who changes the file would seal it again; without a seal every value is looked at.
    path.with_name("vectors.seal.json").unlink()
    with lmdb.open(str(path), subdir=False, lock=False, map_size=1 << 30, **options) as environment:
        yield environment


def test_values_that_are_no_shards_are_not_read(tmp_path: Path) -> None:
    cache = received(tmp_path, "lmdb")
    with store_of(cache) as env, env.begin(write=True) as transaction:
        for name in (b"../../x", b"/etc/passwd", b"\xff", b"F" * 64):
            transaction.put(name, pickle.dumps(["a pickle"]))
    judgement = judge(cache)
    judgement.assert_refused(())
    assert len(judgement.damage) == 4
    assert all("it is no shard" in line for line in judgement.damage)


def test_a_value_whose_name_lies_is_refused(tmp_path: Path) -> None:
    cache = received(tmp_path, "lmdb")
    with store_of(cache) as env, env.begin(write=True) as transaction:
        transaction.put(b"0" * 64, b"")
        transaction.put(b"1" * 64, pickle.dumps(["a pickle"]))
    judgement = judge(cache, EVERYTHING)
    judgement.assert_refused(VECTORS, "its bytes are not those its name is the sha256 of", "repair")
    assert len(judgement.damage) == 2


def test_an_empty_value_under_its_own_digest_is_refused(tmp_path: Path) -> None:
    cache = received(tmp_path, "lmdb")
    with store_of(cache) as env, env.begin(write=True) as transaction:
        transaction.put(hashlib.sha256(b"").hexdigest().encode(), b"")
    judge(cache).assert_refused(VECTORS, "it is no Arrow file", "repair")


def test_a_database_in_the_place_of_a_shard_is_refused(tmp_path: Path) -> None:
    cache = received(tmp_path, "lmdb")
    with store_of(cache, max_dbs=1) as env:
        env.open_db(b"0" * 64)
    judge(cache, EVERYTHING).assert_refused(VECTORS, "vectors.mdb", "is damaged", "repair")


# Where the flags of the main database lie in the two pages that LMDB begins with.
FLAGS_AT = (92, 4096 + 92)


@pytest.mark.parametrize("flags", [0x02, 0x04, 0x08, 0x14, 0x40, 0xFFFF])
def test_flags_that_make_lmdb_compare_keys_in_other_ways_are_refused(tmp_path: Path, flags: int) -> None:
    cache = received(tmp_path, "lmdb")
    path = one(cache, "teachers/*/vectors.mdb")
    data = bytearray(path.read_bytes())
    for place in FLAGS_AT:
        data[place : place + 2] = flags.to_bytes(2, "little")
    path.write_bytes(data)
    judge(cache).assert_refused(VECTORS, "vectors.mdb", "repair")


@pytest.mark.parametrize("content", [b"", b"\xff" * 8192, b"\0" * 100, b"\xde\xc0\xef\xbe" * 50_000])
def test_a_lock_that_came_along_is_taken_for_nothing(tmp_path: Path, content: bytes) -> None:
    cache = received(tmp_path, "lmdb")
    one(cache, "teachers/*/vectors.mdb-lock").write_bytes(content)
    judge(cache).assert_unharmed()


@pytest.mark.parametrize("place", ["teachers/*/vectors.mdb", "derived/index/*/*.mdb"])
def test_a_file_that_pretends_to_be_large_takes_no_memory(tmp_path: Path, place: str) -> None:
    cache = received(tmp_path, "lmdb")
    os.truncate(one(cache, place), 1 << 28)
    judge(cache, {"lookup", "verify"}).assert_refused(())
