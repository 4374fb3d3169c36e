"""Splitting: a part of a cache that stands for itself; merging the parts gives the whole."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from catalog_helpers import add_corpus, add_view
from damage import flip_middle
from hypothesis import given, settings
from hypothesis import strategies as st
from kill_helpers import cut_off_at
from merge_helpers import CONTRACT, TEXTS, cache_of, files, other_vectors, shard_names, vectors_of

from embedcache.cache import Cache
from embedcache.check import verify
from embedcache.derived import extend, write_derived
from embedcache.errors import CorruptCacheError, InputError
from embedcache.keys import key_array
from embedcache.merge import merge_caches
from embedcache.split import split_cache
from embedcache.testing import example_contract
from embedcache.token_table import TokenTable, table_path

OTHER = example_contract(8, prompt="query: ")


@pytest.fixture
def whole(tmp_path: Path) -> Cache:
    """Two corpora, of which one has labels and a view, and two teachers; vectors of neither corpus too."""
    batches = [vectors_of(TEXTS[start : start + 50]) for start in range(0, 200, 50)]
    cache = cache_of(tmp_path / "whole", batches, corpus=("plain", TEXTS[100:150]))
    news = add_corpus(cache, "news", TEXTS[:90], ids=True, labels=[row % 3 for row in range(90)])
    add_view(news, "crop")
    cache.register_teacher("other", OTHER, {"spec": "other"})
    store = cache.store(OTHER)
    store.put(other_vectors(TEXTS[:60]))
    store.finish()
    return cache


def keys_in(cache: Cache) -> set[bytes]:
    return {bytes(key) for shard in cache.store(CONTRACT).shards for key in shard.keys}


def test_a_corpus_goes_with_the_vectors_of_its_texts(tmp_path: Path, whole: Cache) -> None:
    before = files(whole.folder)
    done = split_cache(whole.folder, tmp_path / "part", corpora=["news"])
    part = Cache(tmp_path / "part")
    assert part.corpus_names() == ["news"]
    assert part.corpus().info == whole.corpus("news").info
    assert part.corpus().view("crop").texts() == whole.corpus("news").view("crop").texts()
    assert keys_in(part) == {bytes(key) for key in key_array(TEXTS[:90])}
    assert np.array_equal(part.lookup(TEXTS[:90], "tiny"), whole.lookup(TEXTS[:90], "tiny"))
    assert np.array_equal(part.lookup(TEXTS[:60], "other"), whole.lookup(TEXTS[:60], "other"))
    tiny = next(one for one in done.teachers if one.names == ("tiny",))
    # The first fifty texts fill a shard that is taken as it is.
    assert (tiny.shards.whole, tiny.shards.cut, tiny.shards.left) == (1, 1, 2)
    assert len(set(shard_names(part)) & set(shard_names(whole))) == 1
    assert (tiny.rows, tiny.rows_before) == (90, 200)
    assert verify(part.folder).damage == []
    assert files(whole.folder) == before


def test_nothing_chosen_is_all_of_it(tmp_path: Path, whole: Cache) -> None:
    split_cache(whole.folder, tmp_path / "part")
    assert files(tmp_path / "part") == files(whole.folder)


def test_a_teacher_goes_with_all_corpora_and_vectors(tmp_path: Path, whole: Cache) -> None:
    split_cache(whole.folder, tmp_path / "part", teachers=["other"])
    part = Cache(tmp_path / "part")
    assert [one.name for one in part.teachers()] == ["other"]
    assert part.corpus_names() == ["news", "plain"]
    assert shard_names(part, OTHER) == shard_names(whole, OTHER)


def test_all_vectors_can_go_with_one_corpus(tmp_path: Path, whole: Cache) -> None:
    split_cache(whole.folder, tmp_path / "part", corpora=["plain"], all_vectors=True)
    part = Cache(tmp_path / "part")
    assert part.corpus_names() == ["plain"]
    assert shard_names(part) == shard_names(whole)


def test_vectors_of_views_go_with_their_corpus(tmp_path: Path, whole: Cache) -> None:
    texts = whole.corpus("news").view("crop").texts()
    store = whole.store(CONTRACT)
    store.put(other_vectors(texts))
    store.finish()
    split_cache(whole.folder, tmp_path / "part", corpora=["news"], first=10)
    part = Cache(tmp_path / "part")
    cropped = part.corpus().view("crop").texts()
    assert cropped == texts[:10]
    assert np.array_equal(part.lookup(cropped, "tiny"), whole.lookup(texts[:10], "tiny"))
    assert keys_in(part) == {bytes(key) for key in key_array([*TEXTS[:10], *texts[:10]])}


def test_rows_by_number_and_by_condition(tmp_path: Path, whole: Cache) -> None:
    done = split_cache(
        whole.folder, tmp_path / "part", corpora=["news"], first=5, where="label = 1", name="ones"
    )
    part = Cache(tmp_path / "part")
    assert part.corpus_names() == ["ones"]
    assert part.corpus().texts() == TEXTS[1:15:3]
    assert part.corpus().labels() == [1] * 5
    assert [(one.rows, one.rows_before) for one in done.corpora] == [(5, 90)]
    assert keys_in(part) == {bytes(key) for key in key_array(TEXTS[1:15:3])}
    assert verify(part.folder).damage == []


def test_the_number_of_rows_counts_for_every_corpus(tmp_path: Path, whole: Cache) -> None:
    split_cache(whole.folder, tmp_path / "part", first=70)
    part = Cache(tmp_path / "part")
    assert {corpus.name: len(corpus) for corpus in part.corpora()} == {"news-first-70": 70, "plain": 50}
    assert part.corpus("plain").info == whole.corpus("plain").info


def test_parts_of_a_corpus_have_names_of_their_own_and_can_be_merged(tmp_path: Path, whole: Cache) -> None:
    first = split_cache(whole.folder, tmp_path / "first", corpora=["news"], first=30)
    ones = split_cache(whole.folder, tmp_path / "ones", corpora=["news"], where="label = 1")
    assert [one.name for one in first.corpora] == ["news-first-30"]
    (name,) = [one.name for one in ones.corpora]
    assert name.startswith("news-where-label-1-")
    done = merge_caches([tmp_path / "first", tmp_path / "ones"], tmp_path / "both")
    assert done.conflicts == ()
    assert Cache(tmp_path / "both").corpus_names() == ["news-first-30", name]


def test_a_whole_corpus_can_be_called_otherwise(tmp_path: Path, whole: Cache) -> None:
    split_cache(whole.folder, tmp_path / "part", corpora=["news"], name="old")
    part = Cache(tmp_path / "part").corpus("old")
    assert part.info.digest == whole.corpus("news").info.digest
    assert part.view_names() == ["crop"]
    assert verify(tmp_path / "part").damage == []


def test_lmdb_and_product_quantisation_are_split_too(tmp_path: Path) -> None:
    whole = cache_of(
        tmp_path / "whole", [vectors_of(TEXTS[:300])], corpus=("a", TEXTS[:100]), codec="pq", kind="lmdb"
    )
    split_cache(whole.folder, tmp_path / "part", corpora=["a"])
    part = Cache(tmp_path / "part")
    assert (part.store(CONTRACT).kind, part.store(CONTRACT).codec_name) == ("lmdb", "pq")
    assert np.array_equal(part.lookup(TEXTS[:100]), whole.lookup(TEXTS[:100]))
    assert len(part.store(CONTRACT)) == 100
    assert verify(part.folder).damage == []


def test_of_a_key_in_two_shards_the_row_that_was_read_is_read(tmp_path: Path) -> None:
    # Cut shards get other names, and names decide: try both orders.
    for seed in range(6):
        whole = cache_of(
            tmp_path / f"whole-{seed}",
            [vectors_of(TEXTS[:40]), other_vectors(TEXTS[:30], seed=seed)],
            corpus=("a", TEXTS[:20]),
        )
        split_cache(whole.folder, tmp_path / f"part-{seed}", corpora=["a"])
        part = Cache(tmp_path / f"part-{seed}")
        assert np.array_equal(part.lookup(TEXTS[:20]), whole.lookup(TEXTS[:20]))
        assert sum(map(len, part.store(CONTRACT).shards)) == 20


def test_tables_and_notes_come_along(tmp_path: Path, whole: Cache) -> None:
    word = np.ones((3, 4), dtype=np.float32)
    TokenTable(word, ("a", "b", "c")).write(table_path(whole.folder, CONTRACT), CONTRACT)
    whole.remember_model(CONTRACT, "/models/tiny")
    split_cache(whole.folder, tmp_path / "part", teachers=["tiny"], corpora=["plain"])
    part = Cache(tmp_path / "part")
    assert np.array_equal(part.token_table(part.teacher()).word, word)
    assert part.model_source(part.teacher()) == "/models/tiny"


def test_a_projection_without_its_base_is_told_of(tmp_path: Path, whole: Cache) -> None:
    small = write_derived(whole, whole.teacher("tiny"), "small", np.eye(3, 8, dtype=np.float32), "by hand")
    for _ in extend(whole, small, whole.corpus("plain")):
        pass
    done = split_cache(whole.folder, tmp_path / "part", teachers=["small"], corpora=["plain"])
    assert any("'small' is a projection" in line for line in done.told)
    part = Cache(tmp_path / "part")
    assert np.array_equal(part.lookup(TEXTS[100:150]), whole.lookup(TEXTS[100:150], "small"))
    both = split_cache(whole.folder, tmp_path / "both", teachers=["small", "tiny"], corpora=["plain"])
    assert both.told == ()


def test_a_teacher_that_has_none_of_the_texts_is_told_of(tmp_path: Path, whole: Cache) -> None:
    done = split_cache(whole.folder, tmp_path / "part", corpora=["plain"])
    assert done.told == ("teacher 'other' has no vector of the texts that were taken: its contract alone is",)
    assert Cache(tmp_path / "part").teacher("other").contract == OTHER


def test_links_share_the_disk(tmp_path: Path, whole: Cache) -> None:
    split_cache(whole.folder, tmp_path / "part", link=True)
    for name in shard_names(whole):
        inside = f"teachers/{CONTRACT.id}/shards/{name}.arrow"
        assert (tmp_path / "part" / inside).samefile(whole.folder / inside)


def test_a_second_time_nothing_is_written_and_another_part_is_refused(tmp_path: Path, whole: Cache) -> None:
    split_cache(whole.folder, tmp_path / "part", corpora=["news"], first=20)
    before = files(tmp_path / "part")
    split_cache(whole.folder, tmp_path / "part", corpora=["news"], first=20)
    assert files(tmp_path / "part") == before
    with pytest.raises(InputError, match="corpus 'news-first-20', which is not of this part"):
        split_cache(whole.folder, tmp_path / "part", corpora=["plain"])
    with pytest.raises(InputError, match="corpus 'news-first-20', which is not of this part"):
        split_cache(whole.folder, tmp_path / "part", corpora=["news"], first=30)
    with pytest.raises(InputError, match=r"that are not of this part \(1\)"):
        split_cache(whole.folder, tmp_path / "part", corpora=["news"], first=30, name="news-first-20")
    assert before.items() <= files(tmp_path / "part").items()


def test_what_cannot_be_split(tmp_path: Path, whole: Cache) -> None:
    with pytest.raises(InputError, match="no teacher 'none'"):
        split_cache(whole.folder, tmp_path / "part", teachers=["none"])
    with pytest.raises(InputError, match="no corpus 'none'"):
        split_cache(whole.folder, tmp_path / "part", corpora=["none"])
    with pytest.raises(InputError, match="--as one: 2 corpora were chosen"):
        split_cache(whole.folder, tmp_path / "part", name="one")
    with pytest.raises(InputError, match=r"'a name' cannot name a corpus.*choose one with --as"):
        split_cache(whole.folder, tmp_path / "part", corpora=["news"], name="a name")
    with pytest.raises(InputError, match="is no condition on rows"):
        split_cache(whole.folder, tmp_path / "part", where="label = 1")
    with pytest.raises(InputError, match="holds for none of the 90 rows"):
        split_cache(whole.folder, tmp_path / "part", corpora=["news"], where="label = 8")
    for inside in (whole.folder, whole.folder / "part"):
        with pytest.raises(InputError, match="one lies in the other"):
            split_cache(whole.folder, inside)
    bare = cache_of(tmp_path / "bare", [vectors_of(TEXTS[:3])])
    with pytest.raises(InputError, match="holds no corpus to take rows of"):
        split_cache(bare.folder, tmp_path / "part", first=3)
    assert not (tmp_path / "part").exists()


def test_a_damaged_shard_is_refused(tmp_path: Path, whole: Cache) -> None:
    shard = whole.teacher_folder(CONTRACT) / "shards" / f"{shard_names(whole)[0]}.arrow"
    flip_middle(shard)
    with pytest.raises(CorruptCacheError, match="damaged"):
        split_cache(whole.folder, tmp_path / "part")


def test_killed_at_any_step_the_same_call_ends_it(tmp_path: Path, whole: Cache) -> None:
    def make(name: str) -> dict[str, bytes]:
        split_cache(whole.folder, tmp_path / name, corpora=["news"], first=60)
        return files(tmp_path / name)

    clean, kills = make("clean"), 0
    for step in range(1, 2000, 23):
        with cut_off_at(step) as steps:
            make(f"killed-{step}")
        if len(steps) < step:
            break
        kills += 1
        assert make(f"killed-{step}") == clean, step
    assert kills > 1


def check_there_and_back(
    folder: Path, shards: list[tuple[int, int, bool]], edge: int, overlap: int, kind: str
) -> None:
    """Split a cache by corpora, merge the parts, and compare every lookup.

    Args:
        folder: an empty one.
        shards: of each, the first text, how many there are, and whether the vectors are others.
        edge: the row where the second corpus begins.
        overlap: how many of its rows the first corpus has as well.
        kind: the store.
    """
    batches = [
        (other_vectors if odd else vectors_of)(TEXTS[first : first + count]) for first, count, odd in shards
    ]
    whole = cache_of(folder / "whole", batches, kind=kind)
    add_corpus(whole, "front", TEXTS[: edge + overlap])
    add_corpus(whole, "back", TEXTS[edge:100])
    places = whole.store(CONTRACT).locate(key_array(TEXTS))
    held = [text for text, place in zip(TEXTS, places.tolist(), strict=True) if place >= 0]
    read = whole.lookup(held)
    split_cache(whole.folder, folder / "one", corpora=["front"])
    split_cache(whole.folder, folder / "two", corpora=["back"])
    # Parts of one cache agree, so there is nothing to decide.
    done = merge_caches([folder / "one", folder / "two"], folder / "all")
    merged = Cache(folder / "all")
    assert done.conflicts == ()
    assert np.array_equal(merged.lookup(held), read)
    assert len(merged.store(CONTRACT)) == len(held)
    assert merged.corpus_names() == ["back", "front"]
    for name in ("front", "back"):
        assert merged.corpus(name).info == whole.corpus(name).info


def test_split_and_merged_again_every_lookup_is_as_before(tmp_path: Path) -> None:
    check_there_and_back(tmp_path, [(0, 40, False), (30, 40, True), (70, 30, False)], 50, 10, "arrow")


@pytest.mark.slow
@settings(max_examples=25)
@given(
    shards=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 40), st.booleans()), min_size=1, max_size=4),
    edge=st.integers(1, 99),
    overlap=st.integers(0, 30),
    kind=st.sampled_from(["arrow", "lmdb"]),
)
def test_whatever_is_split_and_merged_again_is_as_before(
    shards: list[tuple[int, int, bool]], edge: int, overlap: int, kind: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check_there_and_back(Path(folder), shards, edge, overlap, kind)
