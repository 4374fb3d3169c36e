"""Copying caches: union, part and change of form; conflicts are decided before anything is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage import flip_middle
from kill_helpers import cut_off_at
from small_caches import add_corpus, add_view

from embedcache.cache import Cache
from embedcache.contract import Contract
from embedcache.copying import CopyOptions, CopyResult, VectorConflictError, copy
from embedcache.errors import CacheFormatError, ContractMismatchError, CorruptCacheError, InputError
from embedcache.keys import key_array
from embedcache.projection import extend, write_derived
from embedcache.store import VectorBatch
from embedcache.teacher.token_table import TokenTable, table_path
from embedcache.testing import example_batch, example_contract, sentences
from embedcache.verify import verify

CONTRACT, OTHER = example_contract(8), example_contract(8, prompt="query: ")
TEXTS = list(dict.fromkeys(sentences(800)))[:320]
EXACT = example_batch(TEXTS, seed=3)
"""Vectors of the teacher."""


def batch(first: int, last: int, *, off: float = 0.0, dtype: str = "float32") -> VectorBatch:
    """The teacher's vectors of some texts, each moved by about ``off``."""
    moved = EXACT.vectors[first:last] + off * example_batch(TEXTS[first:last], seed=100).vectors
    moved /= np.linalg.norm(moved, axis=1, keepdims=True)
    rows = example_batch(TEXTS[first:last])
    return replace(rows, vectors=moved.astype(np.float32), provenance={"compute_dtype": dtype})


def broken(texts: Sequence[str]) -> VectorBatch:
    """Vectors that are not the teacher's, computed on a device of their own."""
    provenance = {"compute_dtype": "float32", "device": "broken"}
    return replace(example_batch(texts, seed=7), provenance=provenance)


def cache_of(
    folder: Path,
    *batches: VectorBatch,
    corpus: tuple[str, list[str]] | None = None,
    contract: Contract = CONTRACT,
    codec: str = "float32",
    kind: str = "arrow",
) -> Cache:
    """A cache of the teacher ``tiny``, with a shard for each batch, and of a corpus."""
    cache = Cache.create(folder)
    cache.register_teacher("tiny", contract, {"spec": "tiny"})
    store = cache.store(contract, codec, kind)
    for one in batches:
        store.put(one)
    store.finish()
    if corpus is not None:
        add_corpus(cache, *corpus)
    return cache


def copied(target: Path, *sources: Path, dry_run: bool = False, **options: Any) -> CopyResult:
    return copy(sources, target, CopyOptions(**options), dry_run=dry_run)


def files(folder: Path) -> dict[str, bytes]:
    """Files of a cache that are not derived: path -> bytes."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
    return {name: data for name, data in found.items() if not name.startswith("derived/")}


def rows_of(cache: Cache) -> Counter[str]:
    """Rows of the teacher ``tiny`` by codec, however often a key comes."""
    rows: Counter[str] = Counter()
    for shard in cache.store(CONTRACT).shards:
        rows[shard.codec.name] += len(shard)
    return rows


def is_exact(cache: Cache, first: int, last: int) -> bool:
    return np.array_equal(cache.lookup(TEXTS[first:last], "tiny"), batch(first, last).vectors)


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    """Two caches that have the same vectors of twenty texts; the first has a corpus with a view."""
    first = cache_of(tmp_path / "a", batch(0, 60), batch(60, 100), corpus=("a", TEXTS[:100]))
    add_view(first.corpus(), "crop")
    cache_of(tmp_path / "b", batch(80, 200), corpus=("b", TEXTS[80:200]))
    return tmp_path / "a", tmp_path / "b"


@pytest.fixture
def at_odds(tmp_path: Path) -> tuple[Path, Path]:
    """Two caches of which the second has other vectors for twenty texts of the first."""
    cache_of(tmp_path / "a", batch(0, 100), corpus=("a", TEXTS[:100]))
    cache_of(tmp_path / "b", batch(100, 120), broken(TEXTS[80:110]))
    return tmp_path / "a", tmp_path / "b"


@pytest.fixture
def whole(tmp_path: Path) -> Cache:
    """Two corpora, one with labels and a view, and two teachers."""
    batches = [batch(start, start + 50) for start in range(0, 200, 50)]
    cache = cache_of(tmp_path / "whole", *batches, corpus=("plain", TEXTS[100:150]))
    add_view(add_corpus(cache, "news", TEXTS[:90], ids=True, labels=[row % 3 for row in range(90)]), "crop")
    cache.register_teacher("other", OTHER, {"spec": "other"})
    cache.store(OTHER).put(broken(TEXTS[:60]))
    return cache


def test_a_union_has_the_files_of_both_in_any_order_and_number_of_steps(
    tmp_path: Path, two: tuple[Path, Path]
) -> None:
    before = [files(one) for one in two]
    (teacher,) = copied(tmp_path / "one", *two).teachers
    assert teacher.rows == 200
    copied(tmp_path / "two", two[1])
    copied(tmp_path / "two", two[0])
    copied(tmp_path / "three", *two[::-1])
    for name in ("one", "two", "three"):
        assert files(tmp_path / name) == {**before[0], **before[1]}
    assert [files(one) for one in two] == before
    assert is_exact(Cache(tmp_path / "one"), 0, 200)
    assert verify(tmp_path / "one").damage == []
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "one").rglob("*")}
    (teacher,) = copied(tmp_path / "one", *two).teachers
    assert (teacher.rows, teacher.copied) == (0, 0)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "one").rglob("*")} == times


def test_a_dry_run_lists_missing_vectors(tmp_path: Path, two: tuple[Path, Path]) -> None:
    copied(tmp_path / "all", *two, dry_run=True)
    assert not (tmp_path / "all").exists()
    before = files(two[0])
    done = copied(two[0], two[1], dry_run=True)
    assert files(two[0]) == before
    assert done.teachers[0].rows == 100
    assert done.corpora == {"b": 120}


@pytest.mark.parametrize("codec", ["float16", "pq"])
def test_there_and_back_between_stores_gives_the_same_files(tmp_path: Path, codec: str) -> None:
    source = cache_of(tmp_path / "a", batch(0, 320), codec=codec, corpus=("all", TEXTS))
    copied(tmp_path / "lmdb", source.folder, store="lmdb")
    middle = Cache(tmp_path / "lmdb")
    assert middle.store(CONTRACT).kind == "lmdb"
    assert np.array_equal(middle.lookup(TEXTS), source.lookup(TEXTS))
    copied(tmp_path / "back", middle.folder)
    assert files(tmp_path / "back") == files(source.folder)
    with pytest.raises(InputError, match="lmdb"):
        copied(tmp_path / "back", middle.folder, store="lmdb")


def test_a_conflict_beyond_noise_names_both_provenances_and_writes_nothing(
    tmp_path: Path, at_odds: tuple[Path, Path]
) -> None:
    cache_of(tmp_path / "noisy", batch(40, 60, off=5e-4))
    assert copied(tmp_path / "sound", at_odds[0], tmp_path / "noisy").conflicts == ()
    with pytest.raises(VectorConflictError, match=r"20 texts.*device broken.*prefer to FIRST"):
        copied(tmp_path / "all", *at_odds)
    assert not (tmp_path / "all").exists()
    (conflict,) = copied(tmp_path / "all", *at_odds, dry_run=True).conflicts
    assert (conflict.kept, conflict.left) == tuple(map(str, at_odds))
    assert conflict.kept_by == {"codec": "float32", "compute_dtype": "float32"}
    assert conflict.worst_cosine < 0.9


@pytest.mark.parametrize(("prefer", "kind"), [("FIRST", "arrow"), ("LAST", "lmdb")])
def test_the_preferred_vectors_are_kept_and_the_others_left_out(
    tmp_path: Path, at_odds: tuple[Path, Path], prefer: str, kind: str
) -> None:
    copied(tmp_path / "all", *at_odds, prefer=prefer, store=kind)
    merged, winner = Cache(tmp_path / "all"), Cache(at_odds[prefer == "LAST"])
    assert np.array_equal(merged.lookup(TEXTS[80:100]), winner.lookup(TEXTS[80:100]))
    assert is_exact(merged, 0, 80)
    assert np.array_equal(merged.lookup(TEXTS[100:110]), Cache(at_odds[1]).lookup(TEXTS[100:110]))
    assert rows_of(merged) == {"float32": 120}
    names = merged.container(CONTRACT).names()
    copied(merged.folder, *at_odds, prefer=prefer)
    assert merged.container(CONTRACT).names() == names


def test_vectors_of_the_target_are_never_replaced(at_odds: tuple[Path, Path]) -> None:
    a, b = at_odds
    before = files(a)
    with pytest.raises(VectorConflictError):
        copied(a, b)
    assert files(a) == before
    copied(a, b, prefer="LAST")
    assert before.items() <= files(a).items()
    assert is_exact(Cache(a), 0, 100)
    assert rows_of(Cache(a)) == {"float32": 120}


@pytest.mark.parametrize("into_target", [False, True])
def test_the_finer_codec_wins_a_conflict(tmp_path: Path, into_target: bool) -> None:
    a = cache_of(tmp_path / "a", broken(TEXTS[:50]), codec="int8").folder
    b = cache_of(tmp_path / "b", batch(30, 60), codec="float32").folder
    target, sources = (a, (b,)) if into_target else (tmp_path / "all", (a, b))
    (conflict,) = copied(target, *sources).conflicts
    assert (conflict.decided_by, conflict.rows) == ("finer codec", 20)
    assert rows_of(Cache(target)) == {"int8": 50 if into_target else 30, "float32": 30}
    assert is_exact(Cache(target), 30, 60)


@pytest.mark.parametrize(("codec", "least"), [("int8", 0.999), ("pq", 0.5)])
def test_another_codec_reports_its_loss(tmp_path: Path, codec: str, least: float) -> None:
    source = cache_of(tmp_path / "a", batch(0, 200), batch(200, 320))
    copied(tmp_path / "out", source.folder, codec=codec)
    new = Cache(tmp_path / "out")
    assert rows_of(new) == {codec: len(TEXTS)}
    before, after = source.lookup(TEXTS), new.lookup(TEXTS)
    cosines = (before * after).sum(axis=1) / np.linalg.norm(after, axis=1)
    (shard,) = new.store(CONTRACT).shards
    assert least < shard.header.error["worst_cosine"] < 1
    assert shard.header.error["worst_cosine"] == pytest.approx(float(cosines.min()), abs=1e-6)
    # Lost precision does not come back.
    copied(tmp_path / "back", new.folder, codec="float32")
    assert files(tmp_path / "back") == files(new.folder)


@pytest.mark.parametrize(("codec", "kind"), [("float32", "arrow"), ("pq", "lmdb")])
def test_small_shards_become_full_ones(tmp_path: Path, codec: str, kind: str) -> None:
    small = [batch(start, start + 10) for start in range(270, 320, 10)]
    batches = [batch(0, 280), *small, batch(0, 20, dtype="bfloat16")]
    source = cache_of(tmp_path / "a", *batches, codec=codec, kind=kind)
    copied(tmp_path / "out", source.folder, shard_rows=150)
    new, old, keys = Cache(tmp_path / "out").store(CONTRACT), source.store(CONTRACT), key_array(TEXTS)
    made: dict[object, list[int]] = {}
    for shard in new.shards:
        made.setdefault(shard.header.provenance["compute_dtype"], []).append(len(shard))
    # Each text once, of what was computed alike in one shard.
    assert sum(map(sum, made.values())) == len(TEXTS)
    assert all(sorted(rows)[1:] == [150] * (len(rows) - 1) for rows in made.values())
    places, before = new.locate(keys), old.locate(keys)
    assert np.array_equal(new.vectors(places), old.vectors(before))
    assert all(map(np.array_equal, new.seen(places), old.seen(before)))
    copied(tmp_path / "again", tmp_path / "out", shard_rows=150)
    assert Cache(tmp_path / "again").container(CONTRACT).names() == new.container.names()


def test_a_corpus_is_copied_with_the_vectors_of_its_texts(tmp_path: Path, whole: Cache) -> None:
    copied(tmp_path / "part", whole.folder, corpora=["news"])
    part = Cache(tmp_path / "part")
    assert part.corpus_names() == ["news"]
    assert part.corpus().info == whole.corpus("news").info
    assert part.corpus().view("crop").texts() == whole.corpus("news").view("crop").texts()
    assert is_exact(part, 0, 90)
    assert np.array_equal(part.lookup(TEXTS[:60], "other"), whole.lookup(TEXTS[:60], "other"))
    assert rows_of(part) == {"float32": 90}
    assert verify(part.folder).damage == []


def test_rows_are_copied_with_their_views_and_vectors(tmp_path: Path, whole: Cache) -> None:
    crops = whole.corpus("news").view("crop").texts()
    whole.store(CONTRACT).put(broken(crops))
    copied(tmp_path / "part", whole.folder, corpora=["news"], where="label = 1", teachers=["tiny"])
    part = Cache(tmp_path / "part")
    corpus = part.corpus()
    assert corpus.name.startswith("news-where-label-1-")
    assert corpus.texts() == TEXTS[1:90:3]
    assert corpus.labels() == [1] * 30
    assert corpus.view("crop").texts() == crops[1:90:3]
    for texts in (corpus.texts(), crops[1:90:3]):
        assert np.array_equal(part.lookup(texts), whole.lookup(texts, "tiny"))
    assert rows_of(part) == {"float32": len({*corpus.texts(), *crops[1:90:3]})}
    assert verify(part.folder).damage == []


WRONG: dict[str, dict[str, Any]] = {
    "none": {"teachers": ["none"]},
    "corpus no": {"corpora": ["no"]},
    "a name": {"corpora": ["news=a name"]},
    "label": {"where": "label = 1"},
    "no row": {"where": "label = 8", "corpora": ["news"]},
    "prefer": {"prefer": "first"},
    "shard_rows": {"shard_rows": 0},
    "float8": {"codec": "float8"},
}


def test_impossible_options_are_an_error(tmp_path: Path, whole: Cache) -> None:
    for noun, options in WRONG.items():
        with pytest.raises(InputError, match=noun):
            copied(tmp_path / "part", whole.folder, **options)
    assert not (tmp_path / "part").exists()


def test_a_copy_goes_neither_into_its_source_nor_into_another_folder(tmp_path: Path, whole: Cache) -> None:
    for target in (whole.folder, whole.folder / "inside"):
        with pytest.raises(InputError, match="itself"):
            copied(target, whole.folder)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "text.txt").write_text("dear reader")
    with pytest.raises(CacheFormatError):
        copied(tmp_path / "thesis", whole.folder)


def test_two_corpora_of_one_name_are_a_conflict(tmp_path: Path) -> None:
    a = cache_of(tmp_path / "a", batch(0, 9), corpus=("news", TEXTS[:9])).folder
    b = cache_of(tmp_path / "b", batch(0, 9), corpus=("news", TEXTS[:8])).folder
    for target, sources in (("all", (a, b)), ("a", (b,))):
        with pytest.raises(InputError, match=r"'news' has 9 rows in .* other 8 rows in"):
            copied(tmp_path / target, *sources)
    assert not (tmp_path / "all").exists()
    copied(a, b, corpora=["news=older"])
    assert Cache(a).corpus("older").texts() == TEXTS[:8]
    assert verify(a).damage == []


def test_views_come_from_all_sources_unless_they_differ(tmp_path: Path) -> None:
    caches = [cache_of(tmp_path / name, corpus=("news", TEXTS[:50])) for name in "abc"]
    for cache, spec in zip(caches, ("crop", "other=delete-words:0.5", "crop=crop:0.5"), strict=True):
        add_view(cache.corpus(), spec)
    a, b, c = (cache.folder for cache in caches)
    copied(tmp_path / "all", a)
    copied(tmp_path / "all", b)
    assert Cache(tmp_path / "all").corpus().view_names() == ["crop", "other"]
    assert verify(tmp_path / "all").damage == []
    for sources, target in (((a, c), "new"), ((c,), "all")):
        with pytest.raises(InputError, match="view 'crop' of corpus 'news' differs"):
            copied(tmp_path / target, *sources)


def test_a_name_of_two_contracts_is_an_error_that_names_the_field(tmp_path: Path) -> None:
    a = cache_of(tmp_path / "a", batch(0, 9)).folder
    b = cache_of(tmp_path / "b", batch(0, 9), contract=OTHER).folder
    for target, sources in (("all", (a, b)), ("a", (b,))):
        with pytest.raises(ContractMismatchError, match="prompt"):
            copied(tmp_path / target, *sources)
    copied(a, b, teachers=["tiny=query"])
    assert {one.name: one.contract for one in Cache(a).teachers()} == {"tiny": CONTRACT, "query": OTHER}
    copied(tmp_path / "all", a, teachers=[OTHER.id[:12]])
    assert [one.name for one in Cache(tmp_path / "all").teachers()] == ["query"]


def test_files_of_a_teacher_are_copied_with_it(tmp_path: Path, whole: Cache) -> None:
    word = np.ones((3, 4), dtype=np.float32)
    TokenTable(word, ("a", "b", "c")).write(table_path(whole.folder, CONTRACT), CONTRACT)
    whole.remember_model(CONTRACT, "/models/tiny")
    small = write_derived(whole, whole.teacher("tiny"), "small", np.eye(3, 8, dtype=np.float32), "by hand")
    assert extend(whole, small, whole.corpus("plain"))
    copied(tmp_path / "out", whole.folder, teachers=["tiny", "small"])
    out = Cache(tmp_path / "out")
    assert np.array_equal(out.token_table(out.teacher("tiny")).word, word)
    assert out.model_source(out.teacher("tiny")) == "/models/tiny"
    assert np.array_equal(out.lookup(TEXTS[100:150], "small"), whole.lookup(TEXTS[100:150], "small"))
    assert verify(out.folder).damage == []


@pytest.mark.parametrize(
    ("what", "way"),
    [("shards/*", "damaged"), ("corpora/a/*.arrow", "link"), ("corpora/a/views/crop/*.arrow", "damaged")],
)
def test_a_damaged_source_or_a_file_outside_is_refused(
    tmp_path: Path, two: tuple[Path, Path], what: str, way: str
) -> None:
    path = next(two[0].rglob(what))
    if way == "damaged":
        flip_middle(path)
    else:
        path.symlink_to(path.rename(tmp_path / "outside"))
    with pytest.raises((CorruptCacheError, CacheFormatError), match=way):
        copied(tmp_path / "all", *two)
    # A copy that is refused on the way leaves a sound cache or none.
    assert not (tmp_path / "all").exists() or verify(tmp_path / "all").damage == []


@pytest.mark.parametrize(
    "options", [{"codec": "int8"}, {"corpora": ["a"], "where": "row % 2 = 0"}], ids=["codec", "where"]
)
def test_killed_anywhere_the_same_copy_ends_alike(
    tmp_path: Path, at_odds: tuple[Path, Path], options: dict[str, Any]
) -> None:
    add_view(Cache(at_odds[0]).corpus(), "crop")
    options = {**options, "prefer": "FIRST"}
    copied(tmp_path / "clean", *at_odds, **options)
    clean, kills = files(tmp_path / "clean"), 0
    for stop in range(1, 2000, 11):
        with cut_off_at(stop) as steps:
            copied(tmp_path / f"killed-{stop}", *at_odds, **options)
        if len(steps) < stop:
            break
        kills += 1
        copied(tmp_path / f"killed-{stop}", *at_odds, **options)
        assert files(tmp_path / f"killed-{stop}") == clean, stop
    assert kills > 2
