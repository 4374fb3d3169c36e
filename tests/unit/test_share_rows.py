"""Rows of a remote: indexes find them, ranges bring them, and nothing comes that was not indexed."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from damage import flip_middle
from share_helpers import (
    content,
    files_of,
    make_cache,
    manifest_of,
    put_manifest,
    put_object,
    without_indexes,
)

from embedcache.cache import Cache
from embedcache.check import verify
from embedcache.errors import InputError, RemoteError
from embedcache.keys import key_array
from embedcache.share import PullChoice, pull, push
from embedcache.share.places.base import RangesNotServedError
from embedcache.share.places.folder import FolderPlace
from embedcache.share.pulling.take_rows import TakenRows, plan_rows, take_rows
from embedcache.share.remote.manifest import Stock
from embedcache.share.remote.open_stock import open_stock
from embedcache.share.remote.remote import Remote
from embedcache.share.remotes import location_of
from embedcache.share.rows.remote_keys import RemoteKeys
from embedcache.share.rows.row_ranges import GAP_BLOCKS, put_rows, ranges_of
from embedcache.share.rows.shard_index import BLOCK_BYTES, HEADER_BYTES, ShardIndex, index_bytes
from embedcache.share.rows.whole_fetches import no_index_notes
from embedcache.store.base import TAKEN_AS
from embedcache.testing import fake_teacher, sentences

pytestmark = pytest.mark.usefixtures("no_pauses")


TEACHER = fake_teacher(256)
TEXTS = sentences(1200, seed=5)
KEYS = key_array(TEXTS)
SHARD_ROWS = 400


def theirs_of(folder: Path, **settings: Any) -> Cache:
    return make_cache(folder, TEXTS, **{"teacher": TEACHER, "shard_rows": SHARD_ROWS, **settings})


def mine_at(folder: Path) -> Cache:
    """Return a cache that knows the teacher and has no vectors of it."""
    cache = Cache.create(folder)
    cache.register_teacher("fake", TEACHER.contract, {"spec": "fake"})
    return cache


def keys_of(remote: Path, cache: Cache | None, place: Any = None, **settings: Any) -> RemoteKeys:
    source = Remote(location_of(str(remote)), place)
    return RemoteKeys(source, cache, Stock(source.survey().manifests), TEACHER.contract.id, **settings)


def taken(
    cache: Cache,
    remote: Path,
    texts: list[str],
    place: Any = None,
    codec: str | None = None,
    **settings: Any,
) -> TakenRows:
    store, there = cache.store(TEACHER.contract), keys_of(remote, cache, place)
    found = take_rows(store, there, plan_rows(store, there, key_array(texts), codec=codec), **settings)
    store.finish()
    return found


# Indexes


@pytest.mark.parametrize("store", ["arrow", "lmdb"])
@pytest.mark.parametrize("codec", ["float32", "float16", "int8", "pq"])
def test_an_index_is_the_shard_without_its_vectors(tmp_path: Path, codec: str, store: str) -> None:
    cache = theirs_of(tmp_path / "cache", codec=codec, store=store)
    opened = cache.store(TEACHER.contract)
    for shard in opened.shards:
        data = opened.container.open(shard.name)
        made = index_bytes(data, shard.name)
        index = ShardIndex.from_bytes(pa.py_buffer(made), shard.name, data.size, len(shard))
        assert index.keys.tobytes() == shard.keys.tobytes()
        assert np.array_equal(index.tokens, shard.tokens)
        assert np.array_equal(index.truncated, shard.truncated)
        assert (index.scale is None) == (shard.stored.scale is None)
        assert index.scale is None or np.array_equal(index.scale, shard.stored.scale)
        assert index.header == shard.header
        assert index.row_bytes == shard.stored.vector.itemsize * shard.stored.vector.shape[1]
        vectors = memoryview(data)[index.start : index.end]
        assert bytes(vectors) == shard.stored.vector.tobytes()
        blocks = [bytes(vectors[at : at + BLOCK_BYTES]) for at in range(0, len(vectors), BLOCK_BYTES)]
        assert [index.is_block(number, block) for number, block in enumerate(blocks)] == [True] * index.blocks
        assert not index.is_block(0, bytes(len(blocks[0])))
        assert len(made) == HEADER_BYTES + data.size - len(vectors) + 32 * index.blocks
        assert bytes(made) == bytes(index_bytes(data, shard.name))


def _index(tmp_path: Path) -> tuple[bytes, str, int]:
    shard = theirs_of(tmp_path / "cache").store(TEACHER.contract).shards[0]
    data = Path(shard.where).read_bytes()
    return index_bytes(pa.py_buffer(data), shard.name), shard.name, len(data)


def _said(data: bytes, **changes: object) -> bytes:
    said = {**json.loads(data[:HEADER_BYTES]), **changes}
    header = json.dumps(said, sort_keys=True, separators=(",", ":")).encode()
    return header.ljust(HEADER_BYTES - 1) + b"\n" + data[HEADER_BYTES:]


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: b"",
        lambda data: data[:HEADER_BYTES],
        lambda data: bytes(len(data)),
        lambda data: b"[" * len(data),
        lambda data: _said(data, version=2),
        lambda data: _said(data, version="1"),
        lambda data: _said(data, shard="0" * 64),
        lambda data: _said(data, more=1),
        lambda data: _said(data, start=-1),
        lambda data: _said(data, start=0),
        lambda data: _said(data, end=1 << 62),
        lambda data: _said(data, start=True),
        lambda data: _said(data, block=1),
        lambda data: _said(data, bytes=1 << 40),
        lambda data: _said(data, start=json.loads(data[:HEADER_BYTES])["start"] + 8),
        lambda data: data.replace(b'"version":1', b'"version": 1', 1),
        lambda data: data[:HEADER_BYTES] + bytes(len(data) - HEADER_BYTES),
    ],
)
def test_what_is_no_index_is_refused(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    data, name, size = _index(tmp_path)
    ShardIndex.from_bytes(pa.py_buffer(data), name, size, SHARD_ROWS)
    with pytest.raises(ValueError, match=r"."):
        ShardIndex.from_bytes(pa.py_buffer(change(data)), name, size, SHARD_ROWS)


def test_an_index_of_another_shard_or_other_rows_is_refused(tmp_path: Path) -> None:
    data, name, size = _index(tmp_path)
    with pytest.raises(ValueError, match="another shard"):
        ShardIndex.from_bytes(pa.py_buffer(data), "0" * 64, size, SHARD_ROWS)
    with pytest.raises(ValueError, match="rows"):
        ShardIndex.from_bytes(pa.py_buffer(data), name, size, SHARD_ROWS + 1)
    with pytest.raises(ValueError, match=r"shard|spelled|bytes"):
        ShardIndex.from_bytes(pa.py_buffer(data), name, size + 1, SHARD_ROWS)


def test_every_changed_byte_of_an_index_is_noticed_or_changes_nothing_but_rows(tmp_path: Path) -> None:
    data, name, size = _index(tmp_path)
    generator = np.random.default_rng(3)
    for at in generator.choice(len(data), 300, replace=False).tolist():
        changed = bytearray(data)
        changed[at] ^= 1 << int(generator.integers(8))
        try:
            index = ShardIndex.from_bytes(pa.py_buffer(bytes(changed)), name, size, SHARD_ROWS)
        except ValueError:
            continue
        assert len(index) == SHARD_ROWS
        assert index.header.contract == TEACHER.contract or at < len(data)


# Ranges


def test_ranges_cover_the_rows_and_little_else() -> None:
    index = _Shape(row_bytes=768, rows=16384)
    generator = np.random.default_rng(0)
    vectors = generator.integers(0, 256, (16384, 768), dtype=np.uint8)
    everything = vectors.tobytes()
    for count in (1, 2, 60, 3000, 16384):
        rows = np.sort(generator.choice(16384, count, replace=False))
        out = np.zeros((count, 768), dtype=np.uint8)
        spans = list(ranges_of(index, rows))  # type: ignore[arg-type]
        for span in spans:
            begin = span.first * BLOCK_BYTES
            data = everything[begin : begin + span.size]
            assert len(data) == span.size
            assert span.blocks == -(-span.size // BLOCK_BYTES)
            put_rows(index, span, data, rows, out)  # type: ignore[arg-type]
        assert np.array_equal(out, vectors[rows])
        assert [span.rows.start for span in spans] == [0, *(span.rows.stop for span in spans[:-1])]
        most = (count * (2 + GAP_BLOCKS) + len(spans)) * BLOCK_BYTES
        assert sum(span.size for span in spans) <= min(most, len(everything) + len(spans) * BLOCK_BYTES)


class _Shape:
    """As much of an index as ranges need."""

    def __init__(self, row_bytes: int, rows: int) -> None:
        self.row_bytes, self.start, self.end = row_bytes, 1000, 1000 + row_bytes * rows


# Keys


def test_keys_are_found_as_a_store_finds_them(tmp_path: Path) -> None:
    theirs = theirs_of(tmp_path / "theirs")
    # Keys of other shards again, in a shard of another cut.
    again = make_cache(tmp_path / "again", TEXTS[100:900], teacher=TEACHER, shard_rows=300, name="again")
    remote = tmp_path / "remote"
    push(theirs, str(remote))
    push(again, str(remote))
    pull(tmp_path / "both", str(remote), PullChoice(text=False))
    store = Cache(tmp_path / "both").store(TEACHER.contract)
    texts = [*TEXTS, "nowhere", *TEXTS[:3], "nowhere"]
    expected = store.locate(key_array(texts))
    starts = np.cumsum([0, *map(len, store.shards)])
    for cache in (None, mine_at(tmp_path / "mine"), Cache(tmp_path / "mine")):
        keys = keys_of(remote, cache)
        assert not keys.whole_to_load()
        keys.load()
        assert [shard.sha256 for shard in keys.shards] == [shard.name for shard in store.shards]
        assert len(keys) == sum(map(len, store.shards))
        shards, rows = keys.locate(key_array(texts))
        assert np.array_equal(np.where(shards < 0, -1, starts[shards] + rows), expected)
        assert (rows < 0).sum() == 2
    empty = keys.locate(key_array([]))
    assert empty[0].shape == empty[1].shape == (0,)


def test_indexes_are_fetched_once(tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    push(theirs_of(tmp_path / "theirs"), str(remote))
    cache = mine_at(tmp_path / "mine")
    first, second = _Counting(remote), _Counting(remote)
    keys_of(remote, cache, first).load()
    assert sum("objects/" in path for path in first.read) == 3
    keys_of(remote, cache, second).load()
    assert not any("objects/" in path for path in second.read)
    # What came with somebody else's cache is found out.
    (kept, *_) = (cache.derived_folder / "remotes").rglob("*.index")
    kept.write_bytes(bytes(kept.stat().st_size))
    assert [finding.kind for finding in verify(cache.folder).damage] == ["row index of a remote's shard"]
    third = _Counting(remote)
    keys_of(remote, cache, third).load()
    assert sum("objects/" in path for path in third.read) == 1
    assert not verify(cache.folder).findings


class _Counting(FolderPlace):
    """Counts what is read."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.read: list[str] = []
        self.ranges: list[tuple[str, int, int]] = []

    def blocks(self, path: str, size: int) -> Iterator[memoryview]:
        self.read.append(path)
        return super().blocks(path, size)

    def read_range(self, path: str, start: int, length: int) -> bytes:
        self.ranges.append((path, start, length))
        return super().read_range(path, start, length)


def test_without_indexes_shards_are_read_whole_and_that_is_said(tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    theirs = theirs_of(tmp_path / "theirs")
    push(theirs, str(remote))
    without_indexes(remote)
    cache = mine_at(tmp_path / "mine")
    keys, counting = keys_of(remote, cache), _Counting(remote)
    (told,) = no_index_notes([keys])
    size = sum(shard.bytes for shard in keys.shards)
    assert told.startswith(f"3 shards of {remote} without a row index: fetched whole to read the keys")
    assert f", {size:,} bytes; 'embedcache push'" in told
    keys.load()
    assert not no_index_notes([keys])
    # What was made is kept, but no shard.
    again = keys_of(remote, cache, counting)
    assert not no_index_notes([again])
    again.load()
    assert not any("objects/" in path for path in counting.read)
    assert not list(cache.folder.rglob("*.arrow"))
    assert not verify(cache.folder).findings
    assert taken(cache, remote, TEXTS[:30]).rows == 30
    assert np.array_equal(cache.lookup(TEXTS[:30]), theirs.lookup(TEXTS[:30]))
    # Notes that were copied vouch for nothing.
    shutil.copytree(cache.folder, tmp_path / "copy")
    assert len(keys_of(remote, Cache(tmp_path / "copy")).whole_to_load()) == 3
    # The next push names them.
    assert push(theirs, str(remote)).manifest
    assert all(shard.index for shard in keys_of(remote, None).shards)


def test_two_indexes_of_one_shard_are_none(tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    push(theirs_of(tmp_path / "theirs"), str(remote))
    value = manifest_of(remote)
    before = files_of(remote, "manifests")
    shard = next(file for file in value["files"] if "index" in file)
    other = put_object(remote, bytes(5000))
    shard["index"] = {"sha256": other, "bytes": 5000}
    put_manifest(remote, value)
    with pytest.raises(RemoteError, match=r"row index of teachers/.* is refused"):
        keys_of(remote, None).load()
    for name, data in before.items():
        (remote / "manifests" / name).write_bytes(data)
    keys = keys_of(remote, None)
    assert [file.sha256 for file in keys.whole_to_load()] == [shard["sha256"]]
    assert (keys.locate(KEYS)[0] >= 0).all()


@pytest.mark.parametrize(
    "index",
    [
        None,
        [],
        {"sha256": "0" * 64},
        {"sha256": "0" * 63, "bytes": 600},
        {"sha256": "0" * 64, "bytes": 0},
        {"sha256": "0" * 64, "bytes": True},
        {"sha256": "0" * 64, "bytes": 1 << 40},
        {"sha256": "0" * 64, "bytes": 600, "more": 1},
    ],
)
def test_a_manifest_with_what_is_no_index_is_refused(tmp_path: Path, index: object) -> None:
    remote = tmp_path / "remote"
    push(theirs_of(tmp_path / "theirs"), str(remote))
    value = manifest_of(remote)
    next(file for file in value["files"] if "index" in file)["index"] = index
    put_manifest(remote, value)
    with pytest.raises(RemoteError, match=r"manifests/.*refused"):
        open_stock(str(remote), None)


def test_other_files_than_shards_have_no_index(tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    push(theirs_of(tmp_path / "theirs"), str(remote))
    value = manifest_of(remote)
    value["files"][0]["index"] = {"sha256": "0" * 64, "bytes": 600}
    put_manifest(remote, value)
    with pytest.raises(RemoteError, match="no shard"):
        open_stock(str(remote), None)


# Taking


@pytest.mark.parametrize("kind", ["arrow", "lmdb"])
@pytest.mark.parametrize("codec", ["float32", "float16", "int8", "pq"])
def test_rows_come_as_they_were_pushed(tmp_path: Path, codec: str, kind: str) -> None:
    theirs = theirs_of(tmp_path / "theirs", codec=codec)
    remote = tmp_path / "remote"
    push(theirs, str(remote))
    cache = mine_at(tmp_path / "mine")
    wanted = [*TEXTS[10:40], *TEXTS[405:480], "nowhere", *TEXTS[10:12]]
    store = cache.store(TEACHER.contract, kind=kind)
    there = keys_of(remote, cache)
    found = take_rows(store, there, plan_rows(store, there, key_array(wanted)))
    store.finish()
    assert (found.rows, found.whole_shards) == (105, 0)
    texts = wanted[:105]
    assert np.array_equal(cache.lookup(texts), theirs.lookup(texts))
    opened = cache.store(TEACHER.contract)
    assert len(opened) == 105
    (shard,) = opened.shards
    (source, *_) = theirs.store(TEACHER.contract).shards
    assert shard.header.provenance == {**source.header.provenance, TAKEN_AS: codec}
    assert shard.header.codec == codec
    theirs_store = theirs.store(TEACHER.contract)
    for mine, their in zip(
        opened.seen(opened.locate(key_array(texts))),
        theirs_store.seen(theirs_store.locate(key_array(texts))),
        strict=True,
    ):
        assert np.array_equal(mine, their)
    assert not verify(cache.folder).damage


def test_shards_that_are_mostly_wanted_come_whole_and_stay_what_they_are(tmp_path: Path) -> None:
    theirs = theirs_of(tmp_path / "theirs")
    remote = tmp_path / "remote"
    push(theirs, str(remote))
    cache = mine_at(tmp_path / "mine")
    # Of the first shard half, of the second all but a bit less than half, of the third nothing.
    place = _Counting(remote)
    found = taken(cache, remote, TEXTS[:200] + TEXTS[400:599], place)
    assert (found.rows, found.whole_shards) == (399, 1)
    own = content(theirs.folder)
    shards = [path for path in content(cache.folder) if "/shards/" in path]
    assert len(shards) == 2
    assert len([path for path in shards if path in own]) == 1
    assert len(cache.store(TEACHER.contract)) == 599
    assert found.bytes < sum(shard.bytes for shard in theirs.store(TEACHER.contract).shards) * 0.6
    assert not verify(cache.folder).damage
    # Nothing is left to take.
    again = _Counting(remote)
    assert taken(cache, remote, TEXTS[:200] + TEXTS[400:599], again) == TakenRows()
    assert not again.ranges


def test_only_what_is_missing_comes(tmp_path: Path) -> None:
    theirs = theirs_of(tmp_path / "theirs")
    remote = tmp_path / "remote"
    push(theirs, str(remote))
    cache = make_cache(tmp_path / "mine", TEXTS[:150], teacher=TEACHER)
    before = content(cache.folder)
    assert taken(cache, remote, TEXTS[:180]).rows == 30
    assert before.items() <= content(cache.folder).items()
    assert len(cache.store(TEACHER.contract)) == 180


@pytest.mark.parametrize("codec", ["float16", "int8"])
def test_rows_can_be_kept_in_fewer_bytes(tmp_path: Path, codec: str) -> None:
    theirs = theirs_of(tmp_path / "theirs", codec="float32")
    remote = tmp_path / "remote"
    push(theirs, str(remote))
    cache = mine_at(tmp_path / "mine")
    found = taken(cache, remote, TEXTS[:500], codec=codec)
    # Even of a shard that is wanted whole.
    assert (found.rows, found.whole_shards) == (500, 0)
    opened = cache.store(TEACHER.contract)
    assert {shard.header.codec for shard in opened.shards} == {codec}
    assert {shard.header.provenance[TAKEN_AS] for shard in opened.shards} == {"float32"}
    assert np.abs(cache.lookup(TEXTS[:500]) - theirs.lookup(TEXTS[:500])).max() < 0.01
    assert all(0.99 < shard.header.error["worst_cosine"] < 1 for shard in opened.shards)


def test_rows_that_keep_less_stay_as_they_are(tmp_path: Path) -> None:
    theirs = theirs_of(tmp_path / "theirs", codec="int8")
    remote = tmp_path / "remote"
    push(theirs, str(remote))
    cache = mine_at(tmp_path / "mine")
    assert taken(cache, remote, TEXTS[:450], codec="float16").whole_shards == 1
    assert {shard.header.codec for shard in cache.store(TEACHER.contract).shards} == {"int8"}
    with pytest.raises(InputError, match="pq"):
        taken(cache, remote, TEXTS, codec="pq")


def test_shards_of_several_codecs_are_not_mixed(tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    for number, codec in enumerate(["float32", "float16", "int8", "pq"]):
        some = TEXTS[300 * number :][:300]
        push(
            make_cache(tmp_path / codec, some, teacher=TEACHER, codec=codec, name=codec, shard_rows=300),
            str(remote),
        )
    cache = mine_at(tmp_path / "mine")
    wanted = TEXTS[::4]
    assert taken(cache, remote, wanted).rows == 300
    opened = cache.store(TEACHER.contract)
    assert sorted(shard.header.codec for shard in opened.shards) == ["float16", "float32", "int8", "pq"]
    expected = {
        text: vector
        for codec in ("float32", "float16", "int8", "pq")
        for text, vector in _vectors(Cache(tmp_path / codec)).items()
    }
    assert np.array_equal(cache.lookup(wanted), np.stack([expected[text] for text in wanted]))
    assert not verify(cache.folder).damage
    some = keys_of(remote, cache).of_codecs({"float32", "int8"})
    assert [some.header(shard).codec for shard in some.shards].count("int8") == 1
    assert len(some.shards) == 2


def test_the_header_of_an_index_is_read_once_and_lookups_open_each_index_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = theirs_of(tmp_path / "theirs")
    push(theirs, str(tmp_path / "remote"))
    opened: list[str] = []
    from_bytes = ShardIndex.from_bytes

    def counted(data: pa.Buffer, shard: str, size: int, rows: int) -> ShardIndex:
        opened.append(shard)
        return from_bytes(data, shard, size, rows)

    monkeypatch.setattr(ShardIndex, "from_bytes", counted)
    keys = keys_of(tmp_path / "remote", mine_at(tmp_path / "mine"))
    names = [shard.sha256 for shard in keys.shards]
    assert [keys.header(shard).codec for shard in keys.shards] == ["float16"] * 3
    assert opened == names
    assert (keys.locate(KEYS)[0] >= 0).all()
    assert sorted(opened) == sorted(names * 2)


def test_selections_of_the_same_shards_fetch_each_index_once(tmp_path: Path) -> None:
    push(theirs_of(tmp_path / "theirs"), str(tmp_path / "remote"))
    fetched: list[str] = []

    class Watched(FolderPlace):
        def blocks(self, path: str, size: int) -> Iterator[memoryview]:
            fetched.append(path)
            return super().blocks(path, size)

    keys = keys_of(tmp_path / "remote", None, Watched(tmp_path / "remote"))
    fetched.clear()
    aside = keys.into(mine_at(tmp_path / "aside"))
    aside.load()
    some = keys.of_codecs({"float16"})
    home = keys.kept_in(mine_at(tmp_path / "home"))
    for selection in (keys, aside, some, home):
        assert not selection.bytes_to_load()
        assert (selection.locate(KEYS)[0] >= 0).all()
    assert len(fetched) == len(set(fetched)) == 3
    # The one that is kept has them in its cache from now on, the other has no part in them.
    assert len(list((tmp_path / "home" / "derived").rglob("*.index"))) == 3
    assert not list((tmp_path / "aside").rglob("*.index"))


def _vectors(cache: Cache) -> dict[str, Any]:
    texts = cache.corpus().texts()
    return dict(zip(texts, cache.lookup(texts), strict=True))


def test_a_server_that_gives_no_parts_is_read_whole(tmp_path: Path) -> None:
    theirs = theirs_of(tmp_path / "theirs")
    remote = tmp_path / "remote"
    push(theirs, str(remote))

    class Whole(FolderPlace):
        def read_range(self, path: str, start: int, length: int) -> bytes:
            raise RangesNotServedError("whole files alone")

    cache = mine_at(tmp_path / "mine")
    found = taken(cache, remote, TEXTS[10:30] + TEXTS[500:520], Whole(remote))
    assert (found.rows, found.unranged_shards) == (40, 2)
    assert np.array_equal(cache.lookup(TEXTS[10:30]), theirs.lookup(TEXTS[10:30]))


def test_a_size_is_checked_before_shards_are_read_whole(tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    push(theirs_of(tmp_path / "theirs"), str(remote))
    downloads: list[str] = []

    class Whole(FolderPlace):
        def read_range(self, path: str, start: int, length: int) -> bytes:
            raise RangesNotServedError("whole files alone")

        def blocks(self, path: str, size: int) -> Iterator[memoryview]:
            downloads.append(path)
            return super().blocks(path, size)

    cache = mine_at(tmp_path / "mine")
    shards = [shard for shard in manifest_of(remote)["files"] if "/shards/" in shard["path"]]
    sizes: list[int] = []

    def refuse(size: int) -> None:
        sizes.append(size)
        raise InputError("too much")

    wanted = TEXTS[10:30] + TEXTS[500:520]
    keys = keys_of(remote, cache, Whole(remote))
    keys.load()
    downloads.clear()
    store = cache.store(TEACHER.contract)
    plan = plan_rows(store, keys, key_array(wanted))
    with pytest.raises(InputError, match="too much"):
        take_rows(store, keys, plan, shard_rows=10, check_size=refuse)
    assert not downloads
    # What is cut into four shards reads each of theirs more than once.
    (size,) = sizes
    assert taken(cache, remote, wanted, Whole(remote), shard_rows=10).bytes == size
    assert size > max(shard["bytes"] for shard in shards)


def test_a_run_that_was_stopped_is_finished_by_the_next(tmp_path: Path) -> None:
    theirs = theirs_of(tmp_path / "theirs")
    remote = tmp_path / "remote"
    push(theirs, str(remote))
    wanted = TEXTS[:170] + TEXTS[400:800] + TEXTS[1000:1050]
    whole = mine_at(tmp_path / "whole")
    taken(whole, remote, wanted, shard_rows=50)
    expected = content(whole.folder)
    for stop in range(1, 9):

        class Dropping(_Counting):
            def read_range(self, path: str, start: int, length: int) -> bytes:
                if len(self.ranges) >= stop:  # noqa: B023 - used up within the loop
                    raise PermissionError("no more")
                return super().read_range(path, start, length)

        cache = mine_at(tmp_path / f"stopped-{stop}")
        place = Dropping(remote)
        try:
            taken(cache, remote, wanted, place, shard_rows=50, jobs=1)
        except RemoteError:
            assert content(cache.folder).items() < expected.items()
        taken(cache, remote, wanted, shard_rows=50)
        assert content(cache.folder) == expected


# Trust


def _manifest_with_index(remote: Path, shard: dict[str, Any], data: bytes) -> None:
    value = manifest_of(remote)
    for file in value["files"]:
        if file["sha256"] == shard["sha256"]:
            file["index"] = {"sha256": put_object(remote, data), "bytes": len(data)}
    put_manifest(remote, value)


def _shards(remote: Path) -> list[dict[str, Any]]:
    return [file for file in manifest_of(remote)["files"] if "/shards/" in file["path"]]


def test_rows_that_are_not_those_that_were_indexed_never_arrive(tmp_path: Path) -> None:
    theirs = theirs_of(tmp_path / "theirs")
    remote = tmp_path / "remote"
    push(theirs, str(remote))
    for shard in _shards(remote):
        place = remote / "objects" / shard["sha256"][:2] / shard["sha256"]
        flip_middle(place)
    cache = mine_at(tmp_path / "mine")
    # What lies in the middle of a shard is damaged, its beginning is not.
    (first, *_) = theirs.store(TEACHER.contract).shards
    texts = [text for text in TEXTS if key_array([text])[0].tobytes() in set(map(bytes, first.keys[:5]))]
    assert taken(cache, remote, texts).rows == 5
    with pytest.raises(RemoteError, match="other bytes arrived than its row index says"):
        taken(cache, remote, TEXTS[100:299])
    with pytest.raises(RemoteError, match="other bytes"):
        taken(cache, remote, TEXTS)
    assert len(cache.store(TEACHER.contract)) == 5
    assert np.array_equal(cache.lookup(texts), theirs.lookup(texts))


def test_indexes_of_others_are_refused(tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    theirs = theirs_of(tmp_path / "theirs")
    push(theirs, str(remote))
    first, second, _ = _shards(remote)
    container = theirs.container(TEACHER.contract)
    cache = mine_at(tmp_path / "mine")
    _manifest_with_index(remote, first, index_bytes(container.open(second["sha256"]), second["sha256"]))
    with pytest.raises(RemoteError, match="another shard"):
        taken(cache, remote, TEXTS)
    other = make_cache(tmp_path / "other", TEXTS[:400], teacher=fake_teacher(256, seed=9), shard_rows=400)
    (stranger,) = other.store(fake_teacher(256, seed=9).contract).shards
    data = index_bytes(pa.py_buffer(Path(stranger.where).read_bytes()), stranger.name)
    value = manifest_of(remote)
    for file in value["files"]:
        if file["sha256"] == first["sha256"]:
            file.update(
                path=f"{file['path'].rpartition('/')[0]}/{stranger.name}.arrow",
                sha256=stranger.name,
                bytes=stranger.bytes,
                index={"sha256": put_object(remote, data), "bytes": len(data)},
            )
    value["files"].sort(key=lambda file: file["path"])
    put_manifest(remote, value)
    with pytest.raises(RemoteError, match="belongs to the teacher"):
        taken(cache, remote, TEXTS)
    assert not list(cache.folder.rglob("*.arrow"))


def test_an_index_that_lies_about_digests_brings_nothing(tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    theirs = theirs_of(tmp_path / "theirs")
    push(theirs, str(remote))
    for shard in _shards(remote):
        made = index_bytes(theirs.container(TEACHER.contract).open(shard["sha256"]), shard["sha256"])
        _manifest_with_index(remote, shard, made[:-416] + bytes(416))
    cache = mine_at(tmp_path / "mine")
    with pytest.raises(RemoteError, match="row index"):
        taken(cache, remote, TEXTS[100:299])
    # Whole shards are vouched for by their names.
    assert taken(cache, remote, TEXTS).whole_shards == 3
    assert np.array_equal(cache.lookup(TEXTS), theirs.lookup(TEXTS))


def test_index_objects_are_sound_wherever_they_came_from(tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    push(theirs_of(tmp_path / "theirs"), str(remote))
    for file in _shards(remote):
        place = remote / "objects" / file["index"]["sha256"][:2] / file["index"]["sha256"]
        assert hashlib.sha256(place.read_bytes()).hexdigest() == file["index"]["sha256"]
        place.write_bytes(place.read_bytes()[:-1] + b"\0\0")
    with pytest.raises(RemoteError, match="arrived"):
        keys_of(remote, None).load()
