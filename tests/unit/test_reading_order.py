"""Of a text in several shards the finest is read, whoever reads; of one codec that whose name comes first."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from check_helpers import TEACHER, flip, mended, outcomes

from embedcache.builder import build
from embedcache.cache import Cache
from embedcache.catalog import query
from embedcache.check import verify
from embedcache.check.repair.mending import IDENTICAL
from embedcache.check.verify import Verification
from embedcache.copying import CopyOptions, copy
from embedcache.housekeeping import collect_garbage
from embedcache.keys import key_array
from embedcache.store import FolderShards, MemoryShards, Shard, ShardStore
from embedcache.store.digests import FileNotes
from embedcache.store.index import made_of, may_be_made_of, open_index
from embedcache.testing import FakeEncoder, example_batch, example_contract, sentences

CONTRACT = TEACHER.contract
TEXTS = sentences(320, seed=21)
"""Enough to learn a codebook from."""


def alone(folder: Path, codec: str, texts: Sequence[str] = TEXTS, name: str = "corpus") -> Cache:
    """Return a cache of one codec."""
    source = folder / f"{codec}.txt"
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    encoder, rows = FakeEncoder(TEACHER), 320 if codec == "pq" else 40
    place = folder / codec
    return build(
        source, teacher=TEACHER, encoder=encoder, cache=place, name=name, codec=codec, shard_rows=rows
    )


def together(folder: Path, *caches: Cache) -> Cache:
    """Return a cache with all shards of others, as somebody has who copies files."""
    for cache in caches:
        for part in ("corpora", "teachers", "cache.json"):
            source = cache.folder / part
            if source.is_dir():
                shutil.copytree(source, folder / part, dirs_exist_ok=True)
            else:
                folder.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, folder / part)
    return Cache(folder)


def first_by_name(store: ShardStore, texts: Sequence[str]) -> list[str]:
    """Return the codec of the shard whose name comes first, for each text."""
    found: dict[bytes, str] = {}
    for shard in sorted(store.shards, key=lambda shard: shard.name):
        for key in shard.keys.tolist():
            found.setdefault(key, shard.header.codec)
    return [found[key] for key in key_array(texts).tolist()]


def sound(checked: Verification) -> bool:
    return not checked.damage


@pytest.fixture(scope="module")
def finer(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    """Not to be changed."""
    return alone(tmp_path_factory.mktemp("finer"), "float32")


@pytest.fixture(scope="module")
def coarser(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    """The same texts; not to be changed."""
    return alone(tmp_path_factory.mktemp("coarser"), "int8")


@pytest.fixture
def both(tmp_path: Path, finer: Cache, coarser: Cache) -> Cache:
    return together(tmp_path / "both", coarser, finer)


@pytest.mark.parametrize(
    ("codec", "other"),
    [("float32", "float16"), ("float32", "pq"), ("float16", "int8"), ("int8", "pq")],
)
@pytest.mark.parametrize("kind", ["arrow", "lmdb"])
def test_the_finer_codec_is_read_whatever_the_names(
    tmp_path: Path, codec: str, other: str, kind: str
) -> None:
    right = alone(tmp_path, codec)
    mixed = together(tmp_path / "both", alone(tmp_path, other), right)
    if kind == "lmdb":
        copy([mixed.folder], tmp_path / "lmdb", CopyOptions(store="lmdb"))
        mixed = Cache(tmp_path / "lmdb")
    store = mixed.store(CONTRACT)
    assert store.kind == kind
    # By name some rows would be those of the other codec.
    assert set(first_by_name(store, TEXTS)) >= {other}
    assert np.array_equal(mixed.lookup(TEXTS), right.lookup(TEXTS))
    assert not np.array_equal(mixed.lookup(TEXTS), Cache(tmp_path / other).lookup(TEXTS))
    assert {shard.header.codec: bool(own.any()) for shard, own in store.own_rows()} == {
        codec: True,
        other: False,
    }
    # Once more, with the index that was made.
    assert np.array_equal(Cache(mixed.folder).lookup(TEXTS), right.lookup(TEXTS))
    assert sound(verify(mixed.folder))


def test_a_text_that_only_coarser_shards_have_is_read_there(tmp_path: Path, finer: Cache) -> None:
    more = sentences(60, seed=4)
    mixed = together(tmp_path / "both", finer, alone(tmp_path, "int8", [*TEXTS[:60], *more]))
    assert np.array_equal(mixed.lookup(TEXTS), finer.lookup(TEXTS))
    assert np.array_equal(mixed.lookup(more), Cache(tmp_path / "int8").lookup(more))


def test_what_comes_into_an_open_store_counts_as_what_was_there(both: Cache, finer: Cache) -> None:
    place = FolderShards(both.teacher_folder(CONTRACT) / "shards")
    there = {name: place.open(name) for name in finer.container(CONTRACT).names()}
    for name in there:
        place.remove(name)
    store = both.store(CONTRACT)
    coarse = store.vectors(store.locate(key_array(TEXTS)))
    for name, data in there.items():
        store.put_raw(name, data)
    found = store.vectors(store.locate(key_array(TEXTS)))
    assert np.array_equal(found, finer.lookup(TEXTS))
    assert not np.array_equal(found, coarse)


def test_of_one_codec_the_first_by_name_is_read_and_its_index_is_what_it_was(tmp_path: Path) -> None:
    contract, texts = example_contract(), [f"text {number}" for number in range(60)]
    notes = FileNotes(tmp_path / "index" / "checked.bin")
    container = FolderShards(tmp_path / "shards", notes)
    store = ShardStore(container, contract, index=(tmp_path / "index", notes))
    for seed in range(4):
        store.put(example_batch(texts[10 * seed :], seed=seed))
    memory = ShardStore(MemoryShards(), contract)
    for name in container.names():
        memory.put_raw(name, container.open(name))
    store.finish()
    by_name: list[Shard] = sorted(store.shards, key=lambda shard: shard.name)
    keys = key_array(texts)
    rows: dict[bytes, np.ndarray] = {}
    for shard in reversed(by_name):
        rows |= zip(shard.keys.tolist(), shard.stored.vector, strict=True)
    expected = np.stack([rows[key] for key in keys.tolist()])
    for one in (store, memory, ShardStore(container, contract, index=(tmp_path / "index", notes))):
        assert np.array_equal(one.gather(one.locate(keys)), expected)
    # Made of the names in their order, and byte for byte as long as there was one codec.
    (file,) = (tmp_path / "index").glob("*.mdb")
    names = [shard.name for shard in by_name]
    made = open_index(tmp_path / "elsewhere", names, [shard.keys for shard in by_name], FileNotes()).path
    assert file.name == made.name
    assert file.name.startswith(hashlib.sha256("\n".join(names).encode()).hexdigest()[:32])


def test_an_index_is_named_by_the_set_of_shards_and_by_whether_they_are_read_by_name() -> None:
    names = ["0" * 64, "1" * 64, "2" * 64]
    by_name, finer_first = may_be_made_of(names[::-1])
    assert by_name != finer_first
    assert made_of(names) == by_name
    assert made_of(names[::-1]) == made_of([names[1], names[0], names[2]]) == finer_first
    assert not {by_name, finer_first} & set(may_be_made_of(names[:2]))


def older_index(cache: Cache) -> Path:
    """Put an index into a cache as older versions made them, and have it known as one that was made here."""
    folder = cache.derived_folder / "index" / CONTRACT.id
    by_name = sorted(cache.store(CONTRACT).shards, key=lambda shard: shard.name)
    names, keys = [one.name for one in by_name], [one.keys for one in by_name]
    # Elsewhere first: what a process has written itself it deletes itself.
    made = open_index(cache.folder.parent / "aside", names, keys, FileNotes()).path
    folder.mkdir(parents=True, exist_ok=True)
    path = Path(shutil.copy(made, folder))
    os.utime(path, (1_700_000_000, 1_700_000_000))
    notes = FileNotes(folder / "checked.bin")
    notes.remember([path])
    assert notes.knows(path)
    return path


def test_an_index_of_the_older_rule_is_not_asked(both: Cache, finer: Cache) -> None:
    older = older_index(both)
    assert np.array_equal(both.lookup(TEXTS), finer.lookup(TEXTS))
    assert sound(verify(both.folder))
    newer = set(older.parent.glob("*.mdb")) - {older}
    assert len(newer) == 1
    # It goes as any that another has replaced.
    os.utime(*newer, (1_700_000_000, 1_700_000_000))
    assert [Path(one.path) for one in collect_garbage(both)] == [older]
    assert newer == set(older.parent.glob("*.mdb"))


def test_a_wrong_index_of_several_codecs_is_found(both: Cache) -> None:
    both.lookup(TEXTS[:1])
    (index,) = (both.derived_folder / "index" / CONTRACT.id).glob("*.mdb")
    others = both.folder.parent / "other"
    shards = both.store(CONTRACT).shards
    wrong = open_index(others, [one.name for one in shards], [one.keys for one in shards], FileNotes()).path
    shards_of = index.name.partition("-")[0]
    index.unlink()
    shutil.copy(wrong, index.with_name(f"{shards_of}-{wrong.name.partition('-')[2]}"))
    (found,) = verify(both.folder).damage
    assert "it gives wrong places" in found.found


@pytest.mark.parametrize("codec", ["float32", "int8"])
@pytest.mark.parametrize("how", ["gone", "emptied"])
def test_a_shard_that_is_lost_beside_those_of_another_codec_comes_back(
    both: Cache, finer: Cache, codec: str, how: str
) -> None:
    # Of a key in two shards the index knows one: of the coarser only rows that no finer one has.
    more = alone(both.folder.parent, codec, sentences(40, seed=33))
    cache = together(both.folder, more)
    cache.lookup(TEXTS[:1])
    (name,) = more.container(CONTRACT).names()
    path = cache.teacher_folder(CONTRACT) / "shards" / f"{name}.arrow"
    content = path.read_bytes()
    path.unlink() if how == "gone" else path.write_bytes(b"")
    assert not sound(verify(cache.folder))
    assert outcomes(mended(cache.folder)) == {IDENTICAL}
    assert path.read_bytes() == content


def gone(path: Path) -> None:
    path.unlink()


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def rotten(path: Path) -> None:
    """Its header and its keys can still be read."""
    flip(path, path.stat().st_size - 300, 1)


@pytest.mark.parametrize(
    ("finer_is", "coarser_is"),
    [(gone, gone), (emptied, emptied), (rotten, gone), (gone, rotten), (emptied, gone)],
)
def test_lost_shards_of_several_codecs_are_seen_and_come_back(
    both: Cache, finer_is: Callable[[Path], None], coarser_is: Callable[[Path], None]
) -> None:
    # Of different lengths, and all that there is of their corpora: only the index tells what they held.
    texts = {"float32": sentences(40, seed=33), "int8": sentences(30, seed=34)}
    folder = both.folder.parent / "more"
    more = [alone(folder, codec, mine, name=codec) for codec, mine in texts.items()]
    cache = together(both.folder, *more)
    cache.lookup(TEXTS[:1])
    shards = cache.teacher_folder(CONTRACT) / "shards"
    paths = [shards / f"{name}.arrow" for one in more for name in one.container(CONTRACT).names()]
    before = [path.read_bytes() for path in paths]
    for path, damage in zip(paths, (finer_is, coarser_is), strict=True):
        damage(path)
    assert {found.path for found in verify(cache.folder).damage} == {
        path.relative_to(cache.folder).as_posix() for path in paths
    }
    done = mended(cache.folder)
    assert outcomes(done) == {IDENTICAL}
    assert len(done.mends) == 2
    assert [path.read_bytes() for path in paths] == before
    assert sound(verify(cache.folder))


def test_more_lost_shards_than_codecs_are_guessed_for_are_seen(both: Cache) -> None:
    both.lookup(TEXTS[:1])
    shards = both.store(CONTRACT).shards
    lost = [one for one in shards if one.header.codec == "float32"][:4]
    lost += [one for one in shards if one.header.codec == "int8"][:4]
    paths = [both.teacher_folder(CONTRACT) / "shards" / f"{one.name}.arrow" for one in lost]
    for path in paths:
        path.unlink()
    found = {found.path for found in verify(both.folder).damage}
    assert found == {path.relative_to(both.folder).as_posix() for path in paths}


def test_sql_shows_the_finer_row(both: Cache) -> None:
    with query(both, "SELECT DISTINCT codec, count(*) OVER () AS rows FROM vectors") as found:
        (batch,) = found
        assert batch.to_pylist() == [{"codec": "float32", "rows": len(TEXTS)}]


@pytest.mark.parametrize("codec", ["float16", "int8"])
def test_a_conversion_reads_what_was_read_before(tmp_path: Path, codec: str) -> None:
    """In one codec, names decide: what int8 had lost would come first in some shards, were it there still."""
    fine, coarse = (alone(tmp_path, one) for one in ("float32", "int8"))
    both = together(tmp_path / "both", fine, coarse)
    copy([both.folder], tmp_path / "out", CopyOptions(codec=codec))
    copy([fine.folder], tmp_path / "fine", CopyOptions(codec=codec))
    found, wanted = (Cache(tmp_path / name).lookup(TEXTS) for name in ("out", "fine"))
    if codec == "float16":
        np.testing.assert_array_equal(found, wanted)
        assert len(Cache(tmp_path / "out").store(CONTRACT)) == len(TEXTS)
    lost = np.abs(coarse.lookup(TEXTS) - fine.lookup(TEXTS)).max()
    assert np.abs(found - fine.lookup(TEXTS)).max() <= lost
