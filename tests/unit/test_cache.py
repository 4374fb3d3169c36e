"""A cache says what it holds, mixes nothing up, and two caches merge by copying."""

from __future__ import annotations

import inspect
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
    cache.store(contract).put(example_batch(texts))
    return cache


def contract_file(cache: Cache, contract: Contract) -> Path:
    return cache.folder / "teachers" / contract.id / "contract.json"


def test_a_cache_is_created_once_and_opened_again(tmp_path: Path) -> None:
    created = Cache.create(tmp_path / "a" / "cache")
    assert Cache.create(created.folder).folder == created.folder
    opened = embedcache.open(str(created.folder))
    assert isinstance(opened, embedcache.Cache)
    assert opened.result is None
    assert (opened.corpora(), opened.teachers()) == ([], [])


def test_a_folder_of_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(CacheFormatError, match=r"thesis\.tex"):
        Cache.create(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_folder_that_is_not_a_cache_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CacheFormatError, match=r"cache\.json"):
        Cache(tmp_path)
    (tmp_path / "file").touch()
    for name in ("missing", "file"):
        with pytest.raises(MissingInputError, match=name):
            Cache(tmp_path / name)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", "null", "3", "flipped", "spaced"])
def test_a_damaged_marker_is_refused(tmp_path: Path, content: str) -> None:
    marker = Cache.create(tmp_path).folder / "cache.json"
    whole = marker.read_text()
    changed = {"flipped": whole.replace(": 2", ": 3"), "spaced": whole.replace("\n", " ", 1)}
    marker.write_text(changed.get(content, content))
    with pytest.raises(CacheFormatError, match=r"damaged .*embedcache repair"):
        Cache(tmp_path)


@pytest.mark.parametrize(
    "marker", [{"version": 3}, {"version": 1}, {"version": "2"}, {**CACHE_MARKER, "more": 1}]
)
def test_a_cache_of_another_version_is_refused(tmp_path: Path, marker: dict[str, object]) -> None:
    write_sealed_json(tmp_path / "cache.json", marker)
    with pytest.raises(CacheFormatError, match=r"version.*upgrade"):
        Cache(tmp_path)


LINKS = {
    "cache.json": "open",
    "corpora": "open",
    "corpora/words": "open",
    "corpora/words/corpus.json": "corpus",
    "corpora/words/{part}.arrow": "corpus",
    "derived": "open",
    "derived/index": "open",
    "derived/index/{id}": "open",
    "teachers": "open",
    "teachers/{id}": "open",
    "teachers/{id}/contract.json": "lookup",
    "teachers/{id}/names": "lookup",
    "teachers/{id}/names/mean.json": "lookup",
    "teachers/{id}/codebooks": "lookup",
    "teachers/{id}/shards": "lookup",
    "teachers/{id}/shards/{shard}.arrow": "lookup",
    "teachers/{id}/vectors.mdb": "lmdb",
    "teachers/{id}/vectors.mdb-lock": "lmdb",
}


@pytest.mark.parametrize("place", LINKS)
@pytest.mark.parametrize("target", ["what was there", "nowhere"])
def test_a_link_in_a_cache_is_refused_where_it_would_be_followed(
    tmp_path: Path, place: str, target: str
) -> None:
    use, folder = LINKS[place], tmp_path / "cache"
    cache = Cache.create(folder)
    corpus, _ = store_corpus(cache.corpora_folder, "words", [RowBatch(["a", "b"], None, None)], ReadReport())
    cache.register_teacher("mean", MEAN, {})
    store = cache.store(MEAN, kind="lmdb" if use == "lmdb" else "arrow")
    store.put(example_batch(["a", "b"]))
    store.finish()
    (shard,) = store.shards
    (cache.teacher_folder(MEAN) / "codebooks").mkdir()
    place = place.format(id=MEAN.id, shard=shard.name, part=corpus.parts[0].sha256)
    del store, shard
    (folder / place).rename(tmp_path / "outside")
    (folder / place).symlink_to(tmp_path / ("outside" if target == "what was there" else target))
    uses = {"open": Cache, "corpus": lambda folder: Cache(folder).corpus("words").texts()}
    look_up = uses.get(use, lambda folder: Cache(folder).lookup(["a"]))
    with pytest.raises(EmbedCacheError):
        look_up(folder)
    if use not in ("open", "corpus"):
        assert Cache(folder).corpus("words").texts() == ["a", "b"]


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


def test_a_store_whose_file_is_gone_is_not_begun_anew(tmp_path: Path) -> None:
    cache = Cache.create(tmp_path)
    store = cache.store(MEAN, kind="lmdb")
    store.put(example_batch(["a"]))
    store.finish()
    (cache.teacher_folder(MEAN) / "vectors.mdb").unlink()
    with pytest.raises(CorruptCacheError, match=r"vectors\.mdb is missing"):
        Cache(tmp_path).store(MEAN)


def test_a_teacher_is_the_only_one_beside_its_own_logits_and_projections(tmp_path: Path) -> None:
    cache = filled(tmp_path, "news", ["a"], "tiny", MEAN)
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


def test_of_several_one_has_to_be_named(tmp_path: Path) -> None:
    cache = Cache.create(tmp_path)
    for find in (cache.corpus, cache.teacher):
        with pytest.raises(InputError, match="no "):
            find()
    filled(tmp_path, "news", ["a"], "tiny", MEAN)
    assert cache.corpus().name == cache.corpus("news").name == "news"
    assert cache.teacher().contract == cache.teacher("tiny").contract == MEAN
    filled(tmp_path, "mail", ["b"], "other", CLS)
    for find in (cache.corpus, cache.teacher, lambda: cache.lookup(["a"])):
        with pytest.raises(InputError, match="several"):
            find()
    for find, held in ((cache.corpus, "mail, news"), (cache.teacher, "other, tiny")):
        with pytest.raises(InputError, match=f"'unknown' .*: it holds {held}"):
            find("unknown")
    assert [corpus.name for corpus in cache.corpora()] == ["mail", "news"]
    assert [teacher.name for teacher in cache.teachers()] == ["other", "tiny"]
    for word in ("news", "mail", "tiny", "other"):
        assert word in repr(cache)


def test_a_teacher_is_found_by_the_beginning_of_its_contract(tmp_path: Path) -> None:
    cache = filled(tmp_path, "news", ["a"], "tiny", MEAN)
    assert cache.teacher(MEAN.id).contract == cache.teacher(MEAN.id[:6]).contract == MEAN
    for unknown in (MEAN.id[:5], CLS.id[:12]):
        with pytest.raises(InputError):
            cache.teacher(unknown)


def test_lookup_gives_vectors_in_the_order_asked(tmp_path: Path) -> None:
    texts = [f"text {number}" for number in range(20)]
    cache = filled(tmp_path, "news", texts, "tiny", MEAN)
    order = np.random.default_rng(0).permutation(20)
    found = cache.lookup([texts[i] for i in order])
    assert found.dtype == np.float32
    assert np.array_equal(found, example_batch(texts).vectors[order].astype(np.float16))
    assert cache.lookup([]).shape == (0, 8)


def test_lookup_names_the_missing_texts_and_only_those(tmp_path: Path) -> None:
    cache = filled(tmp_path, "news", ["here"], "tiny", MEAN)
    with pytest.raises(MissingVectorsError, match=r"6 of 7 .*'missing 0'") as caught:
        cache.lookup(["here", *(f"missing {n}" for n in range(5)), "x" * 99])
    assert "'here'" not in str(caught.value)


def test_lookup_opens_the_store_again_only_if_its_shards_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = filled(tmp_path, "news", ["old"], "tiny", MEAN)
    opened, store = [], Cache.store
    monkeypatch.setattr(Cache, "store", lambda *arguments: opened.append(arguments) or store(*arguments))
    for _ in range(2):
        cache.lookup(["old"])
    assert len(opened) == 1
    other = store(Cache(tmp_path), MEAN)
    other.container.remove(other.shards[0].name)
    other.put(example_batch(["old", "new"], seed=1))
    assert cache.lookup(["new", "old"]).shape == (2, 8)
    assert len(opened) == 2


def test_a_name_belongs_to_one_contract_which_may_have_several(tmp_path: Path) -> None:
    cache = filled(tmp_path, "news", ["a"], "tiny", MEAN)
    with pytest.raises(ContractMismatchError, match=r"pooling 'mean' -> 'cls'") as caught:
        cache.register_teacher("tiny", CLS, {})
    assert caught.value.differences == {"pooling": ("mean", "cls")}
    assert not contract_file(cache, CLS).exists()
    cache.register_teacher("tiny", MEAN, {})
    assert cache.teacher("tiny").origin == {"spec": "tiny"}
    cache.register_teacher("same", MEAN, {})
    assert [teacher.name for teacher in cache.teachers()] == ["same", "tiny"]
    assert cache.teacher().contract == MEAN


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
    assert len(merged.store(MEAN)) == 3
    assert merged.lookup(["x", "y", "z"], "tiny").shape == (3, 8)
    assert merged.lookup(["z", "y"], "other").shape == (2, 8)
    with pytest.raises(MissingVectorsError, match="1 of 2 texts"):
        merged.lookup(["x", "y"], "other")


def test_two_teachers_of_one_name_after_a_merge_are_told_apart(tmp_path: Path) -> None:
    filled(tmp_path / "a", "news", ["x"], "tiny", MEAN)
    filled(tmp_path / "b", "mail", ["z"], "tiny", CLS)
    shutil.copytree(tmp_path / "b", tmp_path / "a", dirs_exist_ok=True)
    merged = Cache(tmp_path / "a")
    with pytest.raises(InputError, match="two teachers are called 'tiny'") as caught:
        merged.teacher("tiny")
    assert MEAN.id[:12] in str(caught.value)
    assert CLS.id[:12] in str(caught.value)
    assert merged.lookup(["z"], CLS.id[:12]).shape == (1, 8)
    with pytest.raises(MissingVectorsError):
        merged.lookup(["z"], MEAN.id[:12])


OTHER = json.dumps(CLS.to_json())


@pytest.mark.parametrize("content", ["", "{", "3", "null", "[{}]", "{}", OTHER], ids=range(7))
@pytest.mark.parametrize("name", ["contract.json", "names/tiny.json"])
def test_a_damaged_document_of_a_teacher_is_refused(tmp_path: Path, content: str, name: str) -> None:
    cache = filled(tmp_path, "news", ["a"], "tiny", MEAN)
    (cache.teacher_folder(MEAN) / name).write_text(content)
    with pytest.raises(CorruptCacheError, match=name):
        cache.teachers()


def test_the_place_of_a_model_is_noted_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_one_string_is_no_list_of_texts(tmp_path: Path) -> None:
    cache = filled(tmp_path, "words", ["a", "b"], "mean", MEAN)
    for call in (cache.lookup, cache.encode):
        with pytest.raises(InputError, match="one string"):
            call("ab")


def test_scan_gives_rows_with_their_vectors_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedcache.scan.BATCH_ROWS", 2)
    cache, texts = Cache.create(tmp_path), ["a", "b", "c", "d", "e"]
    rows = RowBatch(texts, [f"id {text}" for text in texts], [1, 2, 3, 4, 5])
    store_corpus(cache.corpora_folder, "words", [rows], ReadReport())
    cache.register_teacher("mean", MEAN, {})
    cache.store(MEAN).put(example_batch(texts))
    batches = list(cache.scan())
    assert [len(batch) for batch in batches] == [2, 2, 1]
    table = cache.scan(teacher="mean", corpus="words").read_all()
    assert table.column_names == ["text", "id", "label", "vector"]
    assert table["text"].to_pylist() == texts
    assert table["label"].to_pylist() == [1, 2, 3, 4, 5]
    found = np.stack(table["vector"].to_numpy())
    np.testing.assert_array_equal(found, cache.lookup(texts))


def test_scan_names_the_first_row_without_a_vector(tmp_path: Path) -> None:
    cache = filled(tmp_path, "words", ["a", "b"], "mean", MEAN)
    store_corpus(cache.corpora_folder, "more", [RowBatch(["b", "x"], None, None)], ReadReport())
    with pytest.raises(MissingVectorsError, match=r"'more': 1 of 2 texts from row 1"):
        cache.scan(corpus="more").read_all()


def test_encode_builds_what_is_missing(tmp_path: Path) -> None:
    encoder = FakeEncoder(fake_teacher(8))
    cache = embedcache.build(["a", "b"], teacher=encoder, cache=tmp_path)
    vectors = cache.encode(["c", "a", "c"], encoder)
    assert encoder.rows_encoded == 3
    np.testing.assert_array_equal(vectors, Cache(tmp_path).lookup(["c", "a", "c"]))
    assert cache.encode(["c"]).shape == (1, 8)  # needs no model
    assert cache.corpus_names() == ["corpus"]


def test_the_package_shows_what_it_has() -> None:
    assert {"build", "open", "Cache", "push", "pull", "copy", "query"} <= set(dir(embedcache))
    assert "teacher" in inspect.signature(embedcache.build).parameters
