"""A cache lists its content, mixes nothing up, and merges with another by copying."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import embedcache
from embedcache.cache import Cache
from embedcache.cache_documents import CACHE_MARKER
from embedcache.contract import Contract
from embedcache.corpus.readers import ReadReport, RowBatch
from embedcache.corpus.store import store_corpus
from embedcache.errors import (
    CacheFormatError,
    ContractMismatchError,
    CorruptCacheError,
    EmbedCacheError,
    InputError,
    MissingInputError,
    MissingVectorsError,
)
from embedcache.fsio import write_sealed_json
from embedcache.store import FolderShards, LmdbShards, ShardStore
from embedcache.testing import FakeEncoder, example_batch, example_contract, fake_teacher

MEAN, CLS = example_contract(), example_contract(pooling="cls")


def filled(folder: Path, corpus: str, texts: list[str], teacher: str, contract: Contract) -> Cache:
    cache = Cache.create(folder)
    store_corpus(cache.corpora_folder, corpus, [RowBatch(texts, None, None)], ReadReport())
    cache.register_teacher(teacher, contract, {"spec": teacher})
    store = cache.store(contract)
    store.put(example_batch(texts))
    store.finish()
    return cache


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    """Return a cache of the corpus ``news`` of three texts, and their vectors by the teacher ``tiny``."""
    return filled(tmp_path / "cache", "news", ["a", "b", "c"], "tiny", MEAN)


# Opening


def test_a_folder_without_a_cache_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(CacheFormatError, match=r"thesis\.tex"):
        Cache.create(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(CacheFormatError, match=r"cache\.json"):
        Cache(tmp_path)
    for name in ("missing", "thesis.tex"):
        with pytest.raises(MissingInputError, match=name):
            Cache(tmp_path / name)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": 2}'])
def test_a_damaged_marker_is_refused(cache: Cache, content: str) -> None:
    (cache.folder / "cache.json").write_text(content)
    with pytest.raises(CacheFormatError, match=r"damaged .*embedcache repair"):
        Cache(cache.folder)


@pytest.mark.parametrize("marker", [{"version": 3}, {"version": "2"}, {**CACHE_MARKER, "more": 1}])
def test_a_cache_of_another_version_is_refused(tmp_path: Path, marker: dict[str, object]) -> None:
    write_sealed_json(tmp_path / "cache.json", marker)
    with pytest.raises(CacheFormatError, match=r"version.*upgrade"):
        Cache(tmp_path)


@pytest.mark.parametrize(
    "place",
    ["corpora", "derived", "derived/index/{id}", "teachers/{id}", "teachers/{id}/names",
     "teachers/{id}/names/tiny.json", "teachers/{id}/codebooks", "teachers/{id}/shards"],
)  # fmt: skip
def test_a_link_in_a_cache_is_refused_where_it_would_be_followed(
    tmp_path: Path, cache: Cache, place: str
) -> None:
    (cache.teacher_folder(MEAN) / "codebooks").mkdir()
    path = cache.folder / place.format(id=MEAN.id)
    path.rename(tmp_path / "outside")
    path.symlink_to(tmp_path / "outside")
    with pytest.raises(EmbedCacheError):
        Cache(cache.folder).lookup(["a"])


@pytest.mark.parametrize("content", ["", "[{}]", "{}", json.dumps(CLS.to_json())], ids=range(4))
@pytest.mark.parametrize("name", ["contract.json", "names/tiny.json"])
def test_a_damaged_document_of_a_teacher_is_refused(cache: Cache, content: str, name: str) -> None:
    (cache.teacher_folder(MEAN) / name).write_text(content)
    with pytest.raises(CorruptCacheError, match=name):
        cache.teachers()


# Corpora, teachers and stores


def test_of_several_one_has_to_be_named(tmp_path: Path, cache: Cache) -> None:
    empty = Cache.create(tmp_path / "empty")
    for find in (empty.corpus, empty.teacher):
        with pytest.raises(InputError, match="no "):
            find()
    assert cache.corpus().name == cache.corpus("news").name == "news"
    assert cache.teacher().contract == cache.teacher("tiny").contract == MEAN
    filled(cache.folder, "mail", ["b"], "other", CLS)
    for find in (cache.corpus, cache.teacher, lambda: cache.lookup(["a"])):
        with pytest.raises(InputError, match="several"):
            find()
    for find, held in ((cache.corpus, "mail, news"), (cache.teacher, "other, tiny")):
        with pytest.raises(InputError, match=f"'unknown' .*: it holds {held}"):
            find("unknown")
    for word in ("news", "mail", "tiny", "other"):
        assert word in repr(cache)
    # A teacher goes by the beginning of its contract, too.
    assert cache.teacher(CLS.id).contract == cache.teacher(CLS.id[:6]).contract == CLS
    with pytest.raises(InputError):
        cache.teacher(CLS.id[:5])


def test_a_teacher_is_the_only_one_beside_its_own_logits_and_projections(
    cache: Cache, tmp_path: Path
) -> None:
    logits, projected = replace(MEAN, output="logits"), replace(MEAN, output="projection")
    cache.register_teacher("a.logits", logits, {})
    cache.register_teacher("a.projected", projected, {})
    assert cache.teacher().contract == MEAN
    assert cache.teacher("a.logits").contract == logits
    bare = Cache.create(tmp_path / "bare")
    bare.register_teacher("a.logits", logits, {})
    assert bare.teacher().contract == logits
    bare.register_teacher("a.projected", projected, {})
    with pytest.raises(InputError, match="several teachers"):
        bare.teacher()


def test_a_name_belongs_to_one_contract_which_may_have_several(cache: Cache) -> None:
    with pytest.raises(ContractMismatchError, match=r"pooling 'mean' -> 'cls'") as caught:
        cache.register_teacher("tiny", CLS, {})
    assert caught.value.differences == {"pooling": ("mean", "cls")}
    assert not cache.teacher_folder(CLS).exists()
    cache.register_teacher("tiny", MEAN, {})
    assert cache.teacher("tiny").origin == {"spec": "tiny"}
    cache.register_teacher("same", MEAN, {})
    assert [teacher.name for teacher in cache.teachers()] == ["same", "tiny"]
    assert cache.teacher().contract == MEAN


@pytest.mark.parametrize("kind", ["arrow", "lmdb"])
def test_a_store_stays_of_its_kind(tmp_path: Path, kind: str) -> None:
    cache = Cache.create(tmp_path)
    cache.store(MEAN, kind=kind).put(example_batch(["a"]))
    assert cache.store(MEAN).kind == kind
    other = {"arrow": "lmdb", "lmdb": "arrow"}[kind]
    for wrong in (other, "pickle"):
        with pytest.raises(InputError, match=wrong):
            cache.store(MEAN, kind=wrong)
    folder = cache.teacher_folder(MEAN)
    container = FolderShards(folder / "shards") if kind == "lmdb" else LmdbShards(folder / "vectors.mdb")
    ShardStore(container, MEAN).put(example_batch(["b"]))
    with pytest.raises(InputError, match="both"):
        cache.store(MEAN)


def test_a_store_whose_file_is_gone_is_not_started_again(tmp_path: Path) -> None:
    cache = Cache.create(tmp_path)
    store = cache.store(MEAN, kind="lmdb")
    store.put(example_batch(["a"]))
    store.finish()
    (cache.teacher_folder(MEAN) / "vectors.mdb").unlink()
    with pytest.raises(CorruptCacheError, match=r"vectors\.mdb is missing"):
        Cache(tmp_path).store(MEAN)


def test_the_place_of_a_model_is_noted_on_this_machine(tmp_path: Path) -> None:
    cache = Cache.create(tmp_path)
    teacher = cache.register_teacher("tiny", MEAN, {"spec": "org/tiny", "revision": "abc"})
    pinned = cache.register_teacher("pinned", CLS, {"spec": "org/tiny@def", "revision": "def"})
    assert [cache.model_source(one) for one in (teacher, pinned)] == ["org/tiny@abc", "org/tiny@def"]
    cache.remember_model(MEAN, "/models/tiny")
    assert cache.model_source(teacher) == "/models/tiny"
    shutil.rmtree(cache.derived_folder)
    cache.derived_folder.write_text("read-only")
    cache.remember_model(MEAN, "/models/tiny")
    assert cache.model_source(teacher) == "org/tiny@abc"


# Merged by copying


@pytest.mark.parametrize("direction", ["ab", "ba"])
def test_caches_are_merged_by_copying_their_files_over_each_other(tmp_path: Path, direction: str) -> None:
    filled(tmp_path / "a", "news", ["x", "y"], "tiny", MEAN)
    filled(tmp_path / "a", "news", ["x", "y"], "third", example_contract(prompt="query: "))
    filled(tmp_path / "b", "mail", ["y", "z"], "tiny", MEAN)
    filled(tmp_path / "b", "mail", ["y", "z"], "other", CLS)
    for name in direction:
        shutil.copytree(tmp_path / name, tmp_path / "merged", dirs_exist_ok=True)
    merged = Cache(tmp_path / "merged")
    assert [corpus.texts() for corpus in merged.corpora()] == [["y", "z"], ["x", "y"]]
    assert [teacher.name for teacher in merged.teachers()] == ["other", "third", "tiny"]
    assert merged.lookup(["x", "y", "z"], "tiny").shape == (3, 8)
    with pytest.raises(MissingVectorsError, match="1 of 2 texts"):
        merged.lookup(["x", "y"], "other")


def test_two_teachers_of_one_name_after_a_merge_are_distinguished(tmp_path: Path) -> None:
    filled(tmp_path / "a", "news", ["x"], "tiny", MEAN)
    filled(tmp_path / "b", "mail", ["z"], "tiny", CLS)
    shutil.copytree(tmp_path / "b", tmp_path / "a", dirs_exist_ok=True)
    merged = Cache(tmp_path / "a")
    with pytest.raises(InputError, match="two teachers are called 'tiny'") as caught:
        merged.teacher("tiny")
    assert all(contract.id[:12] in str(caught.value) for contract in (MEAN, CLS))
    assert merged.lookup(["z"], CLS.id[:12]).shape == (1, 8)
    with pytest.raises(MissingVectorsError):
        merged.lookup(["z"], MEAN.id[:12])


# Vectors


def test_lookup_gives_vectors_in_the_order_asked_and_names_missing_texts(cache: Cache) -> None:
    found = cache.lookup(["c", "a", "c"])
    assert found.dtype == np.float32
    expected = example_batch(["a", "b", "c"]).vectors.astype(np.float16)
    assert np.array_equal(found, expected[[2, 0, 2]])
    assert cache.lookup([]).shape == (0, 8)
    with pytest.raises(MissingVectorsError, match=r"6 of 7 .*'missing 0'") as caught:
        cache.lookup(["a", *(f"missing {n}" for n in range(5)), "x" * 99])
    assert "'a'" not in str(caught.value)
    for call in (cache.lookup, cache.encode):
        with pytest.raises(InputError, match="one string"):
            call("ab")


def test_lookup_sees_changes_of_others_to_the_store(cache: Cache) -> None:
    before = cache.lookup(["a"])
    other = Cache(cache.folder).store(MEAN)
    other.container.remove(other.shards[0].name)
    other.put(example_batch(["a", "new"], seed=1))
    assert cache.lookup(["new", "a"]).shape == (2, 8)
    assert not np.array_equal(cache.lookup(["a"]), before)


def test_scan_gives_rows_with_their_vectors_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedcache.scan.BATCH_ROWS", 2)
    cache, texts = filled(tmp_path, "plain", ["a", "b", "c", "d", "e"], "mean", MEAN), ["e", "c", "a"]
    rows = [RowBatch(texts, ["1", "2", "3"], [1, 2, 3]), RowBatch(["x"], ["4"], [4])]
    for name, count in (("words", 1), ("more", 2)):
        store_corpus(cache.corpora_folder, name, rows[:count], ReadReport())
    assert [len(batch) for batch in cache.scan(corpus="words")] == [2, 1]
    table = cache.scan(teacher="mean", corpus="words").read_all()
    assert table.column_names == ["text", "id", "label", "vector"]
    assert table["text"].to_pylist() == texts
    assert table["label"].to_pylist() == [1, 2, 3]
    np.testing.assert_array_equal(np.stack(table["vector"].to_numpy()), cache.lookup(texts))
    with pytest.raises(MissingVectorsError, match=r"row 3 of corpus 'more'"):
        cache.scan(corpus="more").read_all()


def test_encode_builds_missing_vectors(tmp_path: Path) -> None:
    encoder = FakeEncoder(fake_teacher(8))
    cache = embedcache.build(["a", "b"], teacher=encoder, cache=tmp_path)
    vectors = cache.encode(["c", "a", "c"], encoder)
    probes = 2 + 2  # what is stored is encoded again, together and one by one
    assert encoder.rows_encoded == 2 + probes + 1
    np.testing.assert_array_equal(vectors, Cache(tmp_path).lookup(["c", "a", "c"]))
    assert cache.encode(["c"]).shape == (1, 8)  # needs no model
    assert cache.corpus_names() == ["corpus"]
