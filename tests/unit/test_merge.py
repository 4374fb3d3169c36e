"""Merging: the union of caches, every conflict answered before anything is written, sources untouched."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from catalog_helpers import add_corpus, add_view
from damage import flip_middle
from kill_helpers import cut_off_at
from merge_helpers import CONTRACT, TEXTS, cache_of, files, other_vectors, shard_names, vectors_of

from embedcache.cache import Cache
from embedcache.check import verify
from embedcache.errors import CacheFormatError, CorruptCacheError, InputError
from embedcache.merge import MergeConflictError, merge_caches
from embedcache.testing import example_contract


@pytest.fixture
def apart(tmp_path: Path) -> list[Path]:
    """Two caches whose texts overlap; of these both have the same vectors."""
    first = cache_of(
        tmp_path / "a", [vectors_of(TEXTS[:60]), vectors_of(TEXTS[60:100])], corpus=("a", TEXTS[:100])
    )
    add_view(first.corpus(), "crop")
    cache_of(tmp_path / "b", [vectors_of(TEXTS[80:200])], corpus=("b", TEXTS[80:200]))
    return [tmp_path / "a", tmp_path / "b"]


@pytest.fixture
def at_odds(tmp_path: Path) -> list[Path]:
    """Two caches of which the second has other vectors for twenty texts of the first."""
    cache_of(tmp_path / "a", [vectors_of(TEXTS[:100])], corpus=("a", TEXTS[:100]))
    cache_of(tmp_path / "b", [vectors_of(TEXTS[100:120]), other_vectors(TEXTS[80:110])])
    return [tmp_path / "a", tmp_path / "b"]


def rows_with(cache: Cache, text: str) -> int:
    """Return in how many rows of shards a text stands, read or not."""
    from embedcache.keys import key

    return sum(int((shard.keys == np.void(key(text))).sum()) for shard in cache.store(CONTRACT).shards)


def test_the_union_has_everything_and_the_sources_stay(tmp_path: Path, apart: list[Path]) -> None:
    before = [files(one) for one in apart]
    done = merge_caches(apart, tmp_path / "all")
    merged = Cache(tmp_path / "all")
    assert merged.corpus_names() == ["a", "b"]
    assert merged.corpus("a").view("crop").texts() == Cache(apart[0]).corpus().view("crop").texts()
    assert np.array_equal(merged.lookup(TEXTS[:200]), vectors_of(TEXTS[:200]).vectors)
    # Whole files, bytes and names.
    assert files(merged.folder) == {**before[0], **before[1]}
    assert [files(one) for one in apart] == before
    assert done.conflicts == ()
    (teacher,) = done.teachers
    assert (teacher.same, teacher.near, teacher.lost) == (20, 0, 0)
    assert teacher.shards is not None
    assert (teacher.shards.whole, teacher.shards.cut) == (3, 0)
    assert verify(merged.folder).damage == []


def test_a_second_time_there_is_nothing_to_do(tmp_path: Path, apart: list[Path]) -> None:
    merge_caches(apart, tmp_path / "all")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "all").rglob("*")}
    again = merge_caches(apart, tmp_path / "all")
    assert (again.files, again.bytes) == (0, 0)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "all").rglob("*")} == before


def test_the_order_of_caches_without_conflicts_does_not_matter(tmp_path: Path, apart: list[Path]) -> None:
    merge_caches(apart, tmp_path / "one")
    merge_caches(apart[:1], tmp_path / "two")
    merge_caches(apart[1:], tmp_path / "two")
    merge_caches(apart[::-1], tmp_path / "three")
    assert files(tmp_path / "one") == files(tmp_path / "two") == files(tmp_path / "three")


def test_a_dry_run_writes_nothing(tmp_path: Path, apart: list[Path]) -> None:
    done = merge_caches(apart, tmp_path / "all", dry_run=True)
    assert not (tmp_path / "all").exists()
    assert not done.written
    assert done.teachers[0].rows == 220
    assert [one.name for one in done.corpora] == ["a", "b"]


@pytest.mark.parametrize("kinds", [("lmdb", "arrow"), ("arrow", "lmdb"), ("lmdb", "lmdb")])
def test_stores_of_either_kind_come_together(tmp_path: Path, kinds: tuple[str, str]) -> None:
    cache_of(tmp_path / "a", [vectors_of(TEXTS[:50])], kind=kinds[0])
    cache_of(tmp_path / "b", [vectors_of(TEXTS[50:80]), other_vectors(TEXTS[:5])], kind=kinds[1])
    merge_caches([tmp_path / "a", tmp_path / "b"], tmp_path / "all", prefer="first")
    merged = Cache(tmp_path / "all")
    assert merged.store(CONTRACT).kind == kinds[0]
    assert np.array_equal(merged.lookup(TEXTS[:80]), vectors_of(TEXTS[:80]).vectors)
    # The shard that lost all of its rows is not there at all.
    assert len(shard_names(merged)) == 2
    assert verify(merged.folder).damage == []


def test_noise_is_no_conflict_and_is_counted(tmp_path: Path) -> None:
    cache_of(tmp_path / "a", [vectors_of(TEXTS[:50])])
    cache_of(tmp_path / "b", [vectors_of(TEXTS[40:60], off=5e-4)])
    (teacher,) = merge_caches([tmp_path / "a", tmp_path / "b"], tmp_path / "all").teachers
    assert (teacher.same, teacher.near, teacher.lost) == (0, 10, 0)
    assert 0 < 1 - teacher.worst_near < 1e-6
    assert len(shard_names(Cache(tmp_path / "all"))) == 2


def test_a_coarser_compute_dtype_explains_more(tmp_path: Path) -> None:
    cache_of(tmp_path / "a", [vectors_of(TEXTS[:50])])
    cache_of(tmp_path / "b", [vectors_of(TEXTS[:50], off=0.02)])
    cache_of(tmp_path / "c", [vectors_of(TEXTS[:50], off=0.02, provenance={"compute_dtype": "bfloat16"})])
    with pytest.raises(MergeConflictError):
        merge_caches([tmp_path / "a", tmp_path / "b"], tmp_path / "all")
    (teacher,) = merge_caches([tmp_path / "a", tmp_path / "c"], tmp_path / "all").teachers
    assert teacher.near == 50


def test_the_bound_can_be_set(tmp_path: Path) -> None:
    cache_of(tmp_path / "a", [vectors_of(TEXTS[:50])])
    cache_of(tmp_path / "b", [vectors_of(TEXTS[:50], off=0.02)])
    (teacher,) = merge_caches([tmp_path / "a", tmp_path / "b"], tmp_path / "all", noise=5e-3).teachers
    assert teacher.near == 50
    with pytest.raises(MergeConflictError):
        merge_caches([tmp_path / "a", tmp_path / "b"], tmp_path / "none", noise=1e-9)
    with pytest.raises(InputError, match=r"--noise 3: expected 1 - cosine"):
        merge_caches([tmp_path / "a", tmp_path / "b"], tmp_path / "none", noise=3)


def test_vectors_of_another_length_are_other_vectors(tmp_path: Path) -> None:
    contract = example_contract(8, normalize=False)
    long = vectors_of(TEXTS[:9])
    long.vectors[:] *= 1.2
    cache_of(tmp_path / "a", [vectors_of(TEXTS[:9])], contract=contract)
    cache_of(tmp_path / "b", [long], contract=contract)
    with pytest.raises(MergeConflictError, match=r"9 texts with two, worst cosine 1\.000000"):
        merge_caches([tmp_path / "a", tmp_path / "b"], tmp_path / "all")


def test_a_conflict_of_vectors_is_refused_with_both_provenances(tmp_path: Path, at_odds: list[Path]) -> None:
    with pytest.raises(MergeConflictError, match=r"20 texts with two.*device broken.*--prefer") as raised:
        merge_caches(at_odds, tmp_path / "all")
    assert not (tmp_path / "all").exists()
    (conflict,) = raised.value.conflicts
    assert [side.cache for side in conflict.sides] == list(map(str, at_odds))
    assert conflict.sides[0].provenance == {"codec": "float32", "compute_dtype": "float32"}
    assert conflict.sides[1].provenance["device"] == "broken"
    # Texts where a corpus has them.
    assert conflict.examples == tuple(TEXTS[80:83])
    assert conflict.worst_cosine is not None
    assert conflict.expected_cosine is not None
    assert conflict.worst_cosine < 0.9 < conflict.expected_cosine
    assert "--keep-both" not in str(raised.value)
    # It speaks of names, not of vectors.
    with pytest.raises(MergeConflictError):
        merge_caches(at_odds, tmp_path / "all", keep_both=True)


def test_a_dry_run_lists_conflicts_without_an_answer(tmp_path: Path, at_odds: list[Path]) -> None:
    done = merge_caches(at_odds, tmp_path / "all", dry_run=True)
    assert done.undecided == done.conflicts
    assert done.conflicts[0].keys == 20
    decided = merge_caches(at_odds, tmp_path / "all", dry_run=True, prefer="first")
    assert decided.undecided == ()
    assert decided.conflicts[0].answer.startswith(f"those of {at_odds[0]} are taken (--prefer first)")


@pytest.mark.parametrize("prefer", ["first", "last", "path"])
def test_the_preferred_vectors_are_read_and_the_others_are_gone(
    tmp_path: Path, at_odds: list[Path], prefer: str
) -> None:
    before = [files(one) for one in at_odds]
    whose = str(at_odds[1]) if prefer == "path" else prefer
    merge_caches(at_odds, tmp_path / "all", prefer=whose)
    merged = Cache(tmp_path / "all")
    winner, loser = (Cache(one) for one in (at_odds if prefer == "first" else at_odds[::-1]))
    assert np.array_equal(merged.lookup(TEXTS[80:100]), winner.lookup(TEXTS[80:100]))
    assert not np.allclose(merged.lookup(TEXTS[80:100]), loser.lookup(TEXTS[80:100]), atol=1e-2)
    assert all(rows_with(merged, text) == 1 for text in TEXTS[:120])
    # What nobody disputes is taken from either.
    assert np.array_equal(merged.lookup(TEXTS[:80]), vectors_of(TEXTS[:80]).vectors)
    assert np.array_equal(merged.lookup(TEXTS[100:110]), Cache(at_odds[1]).lookup(TEXTS[100:110]))
    assert verify(merged.folder).damage == []
    assert [files(one) for one in at_odds] == before
    again = merge_caches(at_odds, tmp_path / "all", prefer=whose)
    assert again.files == 0


def test_a_cache_that_is_there_takes_part_and_can_lose(tmp_path: Path, at_odds: list[Path]) -> None:
    a, b = at_odds
    old = set(shard_names(Cache(a)))
    with pytest.raises(MergeConflictError):
        merge_caches([b], a)
    assert set(shard_names(Cache(a))) == old
    merge_caches([b], a, prefer="last")
    merged = Cache(a)
    assert not old & set(shard_names(merged))
    assert np.array_equal(merged.lookup(TEXTS[80:110]), Cache(b).lookup(TEXTS[80:110]))
    assert np.array_equal(merged.lookup(TEXTS[:80]), vectors_of(TEXTS[:80]).vectors)
    assert all(rows_with(merged, text) == 1 for text in TEXTS[:120])
    assert verify(a).damage == []


def test_what_others_write_there_meanwhile_stays(tmp_path: Path, at_odds: list[Path]) -> None:
    a, b = at_odds

    def build(step: str, done: int, total: int) -> None:
        if step.startswith("compare") and done == total:
            store = Cache(a).store(CONTRACT)
            store.put(vectors_of(TEXTS[200:250]))
            store.finish()

    merge_caches([b], a, prefer="last", on_step=build)
    merged = Cache(a)
    assert np.array_equal(merged.lookup(TEXTS[200:250]), vectors_of(TEXTS[200:250]).vectors)
    # What was there before and has lost is gone all the same.
    assert all(rows_with(merged, text) == 1 for text in [*TEXTS[:120], *TEXTS[200:250]])


@pytest.mark.parametrize("what", ["corpus", "view", "teacher"])
def test_nothing_replaces_what_others_have_written_there_meanwhile(tmp_path: Path, what: str) -> None:
    cache_of(tmp_path / "a", [vectors_of(TEXTS[:9])], corpus=("both", TEXTS[:9]))
    b = cache_of(tmp_path / "b", [vectors_of(TEXTS[:9])], corpus=("both", TEXTS[:9]))
    add_view(b.corpus("both"), "crop")
    add_corpus(b, "mine", TEXTS[:5])
    b.register_teacher("other", CONTRACT, {"spec": "tiny"})
    # Neither the name of the corpus nor that of the view or the teacher is taken yet.
    strange = example_contract(16)

    def write(step: str, done: int, total: int) -> None:
        if step.startswith("compare") and done == total:
            here = Cache(tmp_path / "a")
            if what == "corpus":
                add_corpus(here, "mine", TEXTS[20:30])
            elif what == "view":
                add_view(here.corpus("both"), "crop=crop:0.5")
            else:
                here.register_teacher("other", strange, {"spec": "strange"})

    with pytest.raises(InputError, match=f"another process has written {what} .*which stays: run the same"):
        merge_caches([tmp_path / "b"], tmp_path / "a", prefer="last", on_step=write)
    here = Cache(tmp_path / "a")
    if what == "corpus":
        assert here.corpus("mine").texts() == TEXTS[20:30]
    elif what == "view":
        assert here.corpus("both").view("crop").texts() != b.corpus("both").view("crop").texts()
    else:
        assert here.teacher("other").contract == strange
    # Said again, the merge knows of it, and it loses by what was asked for.
    merge_caches([tmp_path / "b"], tmp_path / "a", prefer="last")
    assert Cache(tmp_path / "a").corpus("mine").texts() == TEXTS[:5]
    assert Cache(tmp_path / "a").teacher("other").contract == CONTRACT


def test_of_three_each_is_weighed_against_the_winner(tmp_path: Path) -> None:
    cache_of(tmp_path / "a", [vectors_of(TEXTS[:30])])
    cache_of(tmp_path / "b", [other_vectors(TEXTS[10:20])])
    cache_of(tmp_path / "c", [other_vectors(TEXTS[10:40], seed=9)])
    caches = [tmp_path / name for name in "abc"]
    done = merge_caches(caches, tmp_path / "all", prefer=caches[2])
    merged = Cache(tmp_path / "all")
    assert np.array_equal(merged.lookup(TEXTS[10:40]), other_vectors(TEXTS[10:40], seed=9).vectors)
    assert np.array_equal(merged.lookup(TEXTS[:10]), vectors_of(TEXTS[:10]).vectors)
    assert sum(conflict.keys for conflict in done.conflicts) == 30
    assert {conflict.sides[0].cache for conflict in done.conflicts} == {str(caches[2])}


def test_of_one_vector_in_two_codecs_the_finer_is_kept(tmp_path: Path) -> None:
    cache_of(tmp_path / "a", [vectors_of(TEXTS[:50])], codec="int8")
    cache_of(tmp_path / "b", [vectors_of(TEXTS[30:60])], codec="float32")
    (teacher,) = merge_caches([tmp_path / "a", tmp_path / "b"], tmp_path / "all", prefer="first").teachers
    merged = Cache(tmp_path / "all")
    assert teacher.coarser == 20
    assert np.array_equal(merged.lookup(TEXTS[30:60]), vectors_of(TEXTS[30:60]).vectors)
    assert np.array_equal(merged.lookup(TEXTS[:30]), Cache(tmp_path / "a").lookup(TEXTS[:30]))
    assert all(rows_with(merged, text) == 1 for text in TEXTS[:60])


def test_a_cut_shard_says_what_the_whole_one_said(tmp_path: Path) -> None:
    cache_of(tmp_path / "a", [vectors_of(TEXTS[:300])], codec="pq")
    cache_of(tmp_path / "b", [other_vectors(TEXTS[:40])])
    merge_caches([tmp_path / "a", tmp_path / "b"], tmp_path / "all", prefer="last")
    merged, source = Cache(tmp_path / "all"), Cache(tmp_path / "a")
    (cut,) = [shard for shard in merged.store(CONTRACT).shards if shard.codec.name == "pq"]
    (whole,) = source.store(CONTRACT).shards
    assert len(cut) == 260
    assert cut.header.provenance == whole.header.provenance
    assert cut.header.error == whole.header.error
    assert np.array_equal(merged.lookup(TEXTS[40:300]), source.lookup(TEXTS[40:300]))
    assert verify(merged.folder).damage == []


def test_what_was_never_read_is_never_read(tmp_path: Path) -> None:
    # A key in two shards of one cache: the shard with the smaller name is read.
    made = cache_of(tmp_path / "a", [vectors_of(TEXTS[:40]), other_vectors(TEXTS[:20])])
    read = made.lookup(TEXTS[:40])
    cache_of(tmp_path / "b", [vectors_of(TEXTS[40:60])])
    (teacher,) = merge_caches([tmp_path / "a", tmp_path / "b"], tmp_path / "all").teachers
    assert teacher.unread == 20
    assert np.array_equal(Cache(tmp_path / "all").lookup(TEXTS[:40]), read)
    assert all(rows_with(Cache(tmp_path / "all"), text) == 1 for text in TEXTS[:60])


def test_what_one_cache_reads_and_another_does_not_is_a_conflict(tmp_path: Path) -> None:
    both = [vectors_of(TEXTS[:20]), other_vectors(TEXTS[:20])]
    made = cache_of(tmp_path / "a", both)
    # The second cache has the very shard that the first has and does not read.
    unread = next(shard for shard, own in made.store(CONTRACT).own_rows() if not own.any())
    other = both[1] if "device" in unread.header.provenance else both[0]
    cache_of(tmp_path / "b", [other])
    with pytest.raises(MergeConflictError, match="20 texts with two"):
        merge_caches([tmp_path / "a", tmp_path / "b"], tmp_path / "all")
    merge_caches([tmp_path / "a", tmp_path / "b"], tmp_path / "all", prefer="last")
    assert np.array_equal(Cache(tmp_path / "all").lookup(TEXTS[:20]), other.vectors)


def test_links_share_the_disk(tmp_path: Path, apart: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    merge_caches(apart, tmp_path / "all", link=True)
    for name in shard_names(Cache(apart[0])):
        inside = f"teachers/{CONTRACT.id}/shards/{name}.arrow"
        assert (tmp_path / "all" / inside).samefile(apart[0] / inside)
    assert files(tmp_path / "all") == {**files(apart[0]), **files(apart[1])}

    def refuse(*_: object, **__: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(InputError, match="leave --link out"):
        merge_caches(apart, tmp_path / "other", link=True)


def test_a_damaged_source_is_refused(tmp_path: Path, apart: list[Path]) -> None:
    shard = next((apart[1] / "teachers" / CONTRACT.id / "shards").iterdir())
    flip_middle(shard)
    with pytest.raises(CorruptCacheError, match="damaged"):
        merge_caches(apart, tmp_path / "all")
    assert not (tmp_path / "all").exists()


def test_damaged_parts_and_tables_are_found_as_they_are_copied(tmp_path: Path, apart: list[Path]) -> None:
    part = next((apart[1] / "corpora" / "b").glob("*.arrow"))
    data = bytearray(part.read_bytes())
    data[-1] ^= 1
    part.write_bytes(data)
    with pytest.raises(CorruptCacheError, match="damaged"):
        merge_caches(apart, tmp_path / "all")
    # Neither is it there, nor anything that says so.
    assert Cache(tmp_path / "all").corpus_names() == ["a"]


@pytest.mark.parametrize(
    ("caches", "into"),
    [(["a", "a"], "c"), (["a"], "a"), (["a", "b"], "a"), (["a"], "a/inside"), ([], "c")],
)
def test_caches_that_cannot_be_merged(
    tmp_path: Path, apart: list[Path], caches: list[str], into: str
) -> None:
    with pytest.raises(InputError, match=r"named twice|no cache to merge"):
        merge_caches([tmp_path / name for name in caches], tmp_path / into)
    assert len(apart) == 2


def test_a_folder_of_other_things_is_refused_before_the_work(tmp_path: Path, apart: list[Path]) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("dear reader")
    with pytest.raises(CacheFormatError, match="is no cache"):
        merge_caches(apart, tmp_path / "other")
    with pytest.raises(InputError, match=r"--prefer c: expected first, last or one of the caches"):
        merge_caches(apart, tmp_path / "all", prefer="c")


def kill_and_go_on(
    make: Callable[[Path], object], folder: Path, stride: int, begun_with: list[Path] | None = None
) -> int:
    """Kill ``make`` at every so many steps, let it go on, and compare; return how often it was killed."""
    if begun_with is not None:
        merge_caches(begun_with, folder / "clean")
    make(folder / "clean")
    kills = 0
    for step in range(1, 2000, stride):
        target = folder / f"killed-{step}"
        if begun_with is not None:
            merge_caches(begun_with, target)
        with cut_off_at(step) as steps:
            make(target)
        if len(steps) < step:
            return kills
        kills += 1
        make(target)
        assert files(target) == files(folder / "clean"), step
        assert verify(target).damage == []
    return kills


def test_killed_at_any_step_the_same_call_ends_it(tmp_path: Path, at_odds: list[Path]) -> None:
    add_view(add_corpus(Cache(at_odds[1]), "a", TEXTS[:30]), "crop")

    def make(target: Path) -> object:
        return merge_caches(at_odds, target, prefer="last", keep_both=True)

    assert kill_and_go_on(make, tmp_path, 23) > 2


@pytest.mark.parametrize("step", [14, 30])
def test_killed_while_it_writes_lmdb_the_same_call_ends_it(
    tmp_path: Path, at_odds: list[Path], step: int
) -> None:
    cache_of(tmp_path / "c", [vectors_of(TEXTS[150:170])], kind="lmdb")

    def make(target: Path) -> object:
        return merge_caches([tmp_path / "c", *at_odds], target, prefer="last")

    make(tmp_path / "clean")
    with cut_off_at(step) as steps:
        make(tmp_path / "killed")
    assert len(steps) == step
    make(tmp_path / "killed")
    # Where pages of an LMDB file lie depends on how often it was written.
    assert shard_names(Cache(tmp_path / "clean")) == shard_names(Cache(tmp_path / "killed"))
    assert verify(tmp_path / "killed").damage == []


def test_killed_while_a_cache_that_was_there_loses(tmp_path: Path, at_odds: list[Path]) -> None:
    a, b = at_odds

    def make(target: Path) -> object:
        return merge_caches([b], target, prefer="last")

    assert kill_and_go_on(make, tmp_path, 13, begun_with=[a]) > 2
