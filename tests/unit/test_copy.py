"""Copying caches: union, part and change of form; conflicts are decided before anything is written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from copy_helpers import CONTRACT, TEXTS, cache_of, files, other_vectors, shard_names, vectors_of
from damage import flip_middle
from hypothesis import given, settings
from hypothesis import strategies as st
from kill_helpers import cut_off_at
from small_caches import add_corpus, add_view

from embedcache.cache import Cache
from embedcache.cli.main import cli
from embedcache.codecs import Vectors
from embedcache.copying import CopyOptions, CopyResult, VectorConflictError, copy
from embedcache.errors import CacheFormatError, ContractMismatchError, CorruptCacheError, InputError
from embedcache.keys import key_array
from embedcache.projection import extend, write_derived
from embedcache.teacher.token_table import TokenTable, table_path
from embedcache.testing import example_contract
from embedcache.verify import verify

OTHER = example_contract(8, prompt="query: ")


def copied(target: Path, *sources: Path, dry_run: bool = False, **options: Any) -> CopyResult:
    return copy(sources, target, CopyOptions(**options), dry_run=dry_run)


def rows_of(cache: Cache) -> int:
    return sum(map(len, cache.store(CONTRACT).shards))


def codecs_of(cache: Cache) -> dict[str, int]:
    rows: dict[str, int] = {}
    for shard in cache.store(CONTRACT).shards:
        rows[shard.codec.name] = rows.get(shard.codec.name, 0) + len(shard)
    return rows


def vectors(texts: Sequence[str]) -> Vectors:
    return vectors_of(texts).vectors


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    """Two caches that have the same vectors of twenty texts; the first has a corpus with a view."""
    batches = [vectors_of(TEXTS[:60]), vectors_of(TEXTS[60:100])]
    first = cache_of(tmp_path / "a", batches, corpus=("a", TEXTS[:100]))
    add_view(first.corpus(), "crop")
    cache_of(tmp_path / "b", [vectors_of(TEXTS[80:200])], corpus=("b", TEXTS[80:200]))
    return tmp_path / "a", tmp_path / "b"


@pytest.fixture
def at_odds(tmp_path: Path) -> tuple[Path, Path]:
    """Two caches of which the second has other vectors for twenty texts of the first."""
    cache_of(tmp_path / "a", [vectors_of(TEXTS[:100])], corpus=("a", TEXTS[:100]))
    cache_of(tmp_path / "b", [vectors_of(TEXTS[100:120]), other_vectors(TEXTS[80:110])])
    return tmp_path / "a", tmp_path / "b"


@pytest.fixture
def whole(tmp_path: Path) -> Cache:
    """Two corpora, one with labels and a view, and two teachers."""
    batches = [vectors_of(TEXTS[start : start + 50]) for start in range(0, 200, 50)]
    cache = cache_of(tmp_path / "whole", batches, corpus=("plain", TEXTS[100:150]))
    news = add_corpus(cache, "news", TEXTS[:90], ids=True, labels=[row % 3 for row in range(90)])
    add_view(news, "crop")
    cache.register_teacher("other", OTHER, {"spec": "other"})
    store = cache.store(OTHER)
    store.put(other_vectors(TEXTS[:60]))
    store.finish()
    return cache


# Union


def test_a_union_has_the_files_of_both(tmp_path: Path, two: tuple[Path, Path]) -> None:
    before = [files(one) for one in two]
    done = copied(tmp_path / "all", *two)
    assert files(tmp_path / "all") == {**before[0], **before[1]}
    assert [files(one) for one in two] == before
    assert np.array_equal(Cache(tmp_path / "all").lookup(TEXTS[:200]), vectors(TEXTS[:200]))
    assert (done.teachers[0].rows, done.teachers[0].missing) == (200, 200)
    assert verify(tmp_path / "all").damage == []


def test_a_union_does_not_depend_on_order_or_steps(tmp_path: Path, two: tuple[Path, Path]) -> None:
    copied(tmp_path / "one", *two)
    copied(tmp_path / "two", two[1])
    copied(tmp_path / "two", two[0])
    copied(tmp_path / "three", *two[::-1])
    assert files(tmp_path / "one") == files(tmp_path / "two") == files(tmp_path / "three")


def test_a_repeated_copy_writes_nothing(tmp_path: Path, two: tuple[Path, Path]) -> None:
    copied(tmp_path / "all", *two)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "all").rglob("*")}
    (teacher,) = copied(tmp_path / "all", *two).teachers
    assert teacher.missing == 0
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "all").rglob("*")} == before


def test_a_dry_run_lists_what_is_missing(tmp_path: Path, two: tuple[Path, Path]) -> None:
    copied(tmp_path / "all", *two, dry_run=True)
    assert not (tmp_path / "all").exists()
    before = files(two[0])
    done = copied(two[0], two[1], dry_run=True)
    assert files(two[0]) == before
    assert (done.teachers[0].rows, done.teachers[0].missing) == (120, 100)
    assert [(one.name, one.is_missing) for one in done.corpora] == [("b", True)]
    assert [one.is_missing for one in copied(two[0], two[1]).corpora] == [True]
    assert [one.is_missing for one in copied(two[0], two[1], dry_run=True).corpora] == [False]


@pytest.mark.parametrize("codec", ["float32", "float16", "int8", "pq"])
def test_there_and_back_between_stores_gives_the_same_files(tmp_path: Path, codec: str) -> None:
    source = cache_of(tmp_path / "a", [vectors_of(TEXTS)], codec=codec, corpus=("all", TEXTS))
    copied(tmp_path / "lmdb", source.folder, store="lmdb")
    middle = Cache(tmp_path / "lmdb")
    assert middle.store(CONTRACT).kind == "lmdb"
    assert np.array_equal(middle.lookup(TEXTS), source.lookup(TEXTS))
    copied(tmp_path / "back", middle.folder, store="arrow")
    assert files(tmp_path / "back") == files(source.folder)


@pytest.mark.parametrize("kinds", [("lmdb", "arrow"), ("arrow", "lmdb")])
def test_stores_of_two_kinds_come_together_in_that_of_the_first(
    tmp_path: Path, kinds: tuple[str, str]
) -> None:
    for name, texts, kind in zip("ab", (TEXTS[:50], TEXTS[50:80]), kinds, strict=True):
        cache_of(tmp_path / name, [vectors_of(texts)], kind=kind)
    copied(tmp_path / "all", tmp_path / "a", tmp_path / "b")
    merged = Cache(tmp_path / "all")
    assert merged.store(CONTRACT).kind == kinds[0]
    assert np.array_equal(merged.lookup(TEXTS[:80]), vectors(TEXTS[:80]))
    assert verify(merged.folder).damage == []
    before = files(merged.folder)
    with pytest.raises(InputError, match=kinds[1]):
        copied(merged.folder, tmp_path / "b", store=kinds[1])
    assert files(merged.folder) == before


# Conflicts of vectors


def test_noise_is_no_conflict(tmp_path: Path) -> None:
    cache_of(tmp_path / "a", [vectors_of(TEXTS[:50])])
    cache_of(tmp_path / "b", [vectors_of(TEXTS[40:60], off=5e-4)])
    assert copied(tmp_path / "all", tmp_path / "a", tmp_path / "b").conflicts == ()
    assert len(shard_names(Cache(tmp_path / "all"))) == 2


def test_a_conflict_names_both_provenances_and_writes_nothing(
    tmp_path: Path, at_odds: tuple[Path, Path]
) -> None:
    with pytest.raises(
        VectorConflictError, match=r"20 texts.*device broken.*--prefer FIRST or LAST"
    ) as raised:
        copied(tmp_path / "all", *at_odds)
    assert not (tmp_path / "all").exists()
    (conflict,) = raised.value.conflicts
    assert (conflict.kept, conflict.left) == tuple(map(str, at_odds))
    assert conflict.kept_by == {"codec": "float32", "compute_dtype": "float32"}
    assert conflict.left_by["device"] == "broken"
    assert conflict.worst_cosine < 0.9 < conflict.expected_cosine
    assert copied(tmp_path / "all", *at_odds, dry_run=True).conflicts == raised.value.conflicts


@pytest.mark.parametrize("kind", ["arrow", "lmdb"])
@pytest.mark.parametrize("prefer", ["FIRST", "LAST"])
def test_the_preferred_vectors_are_kept_and_the_others_left_out(
    tmp_path: Path, at_odds: tuple[Path, Path], prefer: str, kind: str
) -> None:
    before = [files(one) for one in at_odds]
    copied(tmp_path / "all", *at_odds, prefer=prefer, store=kind)
    merged = Cache(tmp_path / "all")
    winner = Cache(at_odds[0] if prefer == "FIRST" else at_odds[1])
    assert np.array_equal(merged.lookup(TEXTS[80:100]), winner.lookup(TEXTS[80:100]))
    assert np.array_equal(merged.lookup(TEXTS[:80]), vectors(TEXTS[:80]))
    assert np.array_equal(merged.lookup(TEXTS[100:110]), Cache(at_odds[1]).lookup(TEXTS[100:110]))
    assert rows_of(merged) == len(merged.store(CONTRACT)) == 120
    assert verify(merged.folder).damage == []
    assert [files(one) for one in at_odds] == before
    names = shard_names(merged)
    copied(merged.folder, *at_odds, prefer=prefer)
    assert shard_names(merged) == names


def test_vectors_of_the_target_are_never_replaced(tmp_path: Path, at_odds: tuple[Path, Path]) -> None:
    a, b = at_odds
    before = files(a)
    for prefer in (None, "LAST"):
        with pytest.raises(VectorConflictError):
            copied(a, b, prefer=prefer)
        assert files(a) == before
    copied(a, b, prefer="FIRST")
    assert before.items() <= files(a).items()
    assert np.array_equal(Cache(a).lookup(TEXTS[:100]), vectors(TEXTS[:100]))
    assert len(Cache(a).store(CONTRACT)) == rows_of(Cache(a)) == 120


def test_the_finer_codec_wins_a_conflict(tmp_path: Path) -> None:
    cache_of(tmp_path / "a", [other_vectors(TEXTS[:50])], codec="int8")
    cache_of(tmp_path / "b", [vectors_of(TEXTS[30:60])], codec="float32")
    (conflict,) = copied(tmp_path / "all", tmp_path / "a", tmp_path / "b").conflicts
    assert (conflict.decided_by, conflict.rows) == ("finer codec", 20)
    merged = Cache(tmp_path / "all")
    assert codecs_of(merged) == {"int8": 30, "float32": 30}
    assert np.array_equal(merged.lookup(TEXTS[30:60]), vectors(TEXTS[30:60]))
    (cut,) = [shard for shard in merged.store(CONTRACT).shards if shard.codec.name == "int8"]
    (before,) = Cache(tmp_path / "a").store(CONTRACT).shards
    assert (cut.header.provenance, cut.header.error) == (before.header.provenance, before.header.error)


# Change of form


@pytest.mark.parametrize(("codec", "least"), [("float16", 0.99999), ("int8", 0.999), ("pq", 0.5)])
def test_another_codec_states_what_it_lost(tmp_path: Path, codec: str, least: float) -> None:
    source = cache_of(tmp_path / "a", [vectors_of(TEXTS[:200]), vectors_of(TEXTS[200:])])
    (teacher,) = copied(tmp_path / "out", source.folder, codec=codec).teachers
    new = Cache(tmp_path / "out")
    assert codecs_of(new) == {codec: len(TEXTS)}
    before, after = source.lookup(TEXTS), new.lookup(TEXTS)
    cosines = (before * after).sum(axis=1) / np.linalg.norm(after, axis=1)
    assert teacher.shards is not None
    assert least < teacher.shards.worst_cosine < 1
    assert teacher.shards.worst_cosine == pytest.approx(float(cosines.min()), abs=1e-6)
    (shard,) = new.store(CONTRACT).shards
    assert shard.header.error["worst_cosine"] == teacher.shards.worst_cosine
    assert verify(new.folder).damage == []


def test_lost_precision_does_not_come_back(tmp_path: Path) -> None:
    source = cache_of(tmp_path / "a", [vectors_of(TEXTS[:20])], codec="int8")
    copied(tmp_path / "out", source.folder, codec="float32")
    assert files(tmp_path / "out") == files(source.folder)


@pytest.mark.parametrize("codec", ["float32", "float16", "int8", "pq"])
@pytest.mark.parametrize("kind", ["arrow", "lmdb"])
def test_small_shards_become_full_ones(tmp_path: Path, codec: str, kind: str) -> None:
    source = cache_of(tmp_path / "a", [vectors_of(TEXTS[:280])], codec=codec, kind=kind)
    store = source.store(CONTRACT)
    for start in range(270, 320, 10):
        store.put(vectors_of(TEXTS[start : start + 10]))
    store.put(vectors_of(TEXTS[:20], provenance={"compute_dtype": "bfloat16"}))
    keys = key_array(TEXTS)
    copied(tmp_path / "out", source.folder, shard_rows=150)
    new = Cache(tmp_path / "out").store(CONTRACT)
    made: dict[object, list[int]] = {}
    for shard in new.shards:
        made.setdefault(shard.header.provenance["compute_dtype"], []).append(len(shard))
    # Each text once, of what was computed alike in one shard.
    assert sum(map(sum, made.values())) == len(TEXTS)
    assert all(sorted(rows)[1:] == [150] * (len(rows) - 1) for rows in made.values())
    places, old = new.locate(keys), source.store(CONTRACT)
    assert np.array_equal(new.vectors(places), old.vectors(old.locate(keys)))
    for after, before in zip(new.seen(places), old.seen(old.locate(keys)), strict=True):
        assert np.array_equal(after, before)
    names = [shard.name for shard in new.shards]
    copied(tmp_path / "again", tmp_path / "out", shard_rows=150)
    assert shard_names(Cache(tmp_path / "again")) == names


# Parts


def test_a_corpus_is_copied_with_the_vectors_of_its_texts(tmp_path: Path, whole: Cache) -> None:
    before = files(whole.folder)
    copied(tmp_path / "part", whole.folder, corpora=["news"])
    part = Cache(tmp_path / "part")
    assert part.corpus_names() == ["news"]
    assert part.corpus().info == whole.corpus("news").info
    assert part.corpus().view("crop").texts() == whole.corpus("news").view("crop").texts()
    assert np.array_equal(part.lookup(TEXTS[:90], "tiny"), vectors(TEXTS[:90]))
    assert np.array_equal(part.lookup(TEXTS[:60], "other"), whole.lookup(TEXTS[:60], "other"))
    assert rows_of(part) == 90
    # One shard is taken whole.
    assert len(set(shard_names(part)) & set(shard_names(whole))) == 1
    assert verify(part.folder).damage == []
    assert files(whole.folder) == before


def test_rows_are_copied_with_their_views_and_vectors(tmp_path: Path, whole: Cache) -> None:
    crops = whole.corpus("news").view("crop").texts()
    store = whole.store(CONTRACT)
    store.put(other_vectors(crops))
    store.finish()
    copied(tmp_path / "part", whole.folder, corpora=["news"], where="label = 1", teachers=["tiny"])
    part = Cache(tmp_path / "part")
    corpus = part.corpus()
    assert corpus.name.startswith("news-where-label-1-")
    assert corpus.texts() == TEXTS[1:90:3]
    assert corpus.labels() == [1] * 30
    assert corpus.view("crop").texts() == crops[1:90:3]
    assert np.array_equal(part.lookup(corpus.texts()), whole.lookup(corpus.texts(), "tiny"))
    assert np.array_equal(part.lookup(crops[1:90:3]), whole.lookup(crops[1:90:3], "tiny"))
    wanted = {*corpus.texts(), *crops[1:90:3]}
    assert len(part.store(CONTRACT)) == rows_of(part) == len(wanted)
    assert verify(part.folder).damage == []


@pytest.mark.parametrize(
    ("options", "noun"),
    [
        ({"teachers": ["none"]}, "none"),
        ({"corpora": ["none"]}, "none"),
        ({"corpora": ["news@ff"]}, "news@ff"),
        ({"corpora": ["news=a name"]}, "a name"),
        ({"where": "label = 1"}, "label"),
        ({"where": "label = 8", "corpora": ["news"]}, "no row"),
        ({"prefer": "first"}, "--prefer"),
        ({"shard_rows": 0}, "--shard-rows"),
        ({"codec": "float8"}, "float8"),
    ],
)
def test_what_is_not_there_is_an_error(
    tmp_path: Path, whole: Cache, options: dict[str, Any], noun: str
) -> None:
    with pytest.raises(InputError, match=noun):
        copied(tmp_path / "part", whole.folder, **options)
    assert not (tmp_path / "part").exists()


@pytest.mark.parametrize(("sources", "target"), [("a", "a"), ("ab", "a"), ("a", "a/inside")])
def test_a_cache_is_not_copied_into_itself(
    tmp_path: Path, two: tuple[Path, Path], sources: str, target: str
) -> None:
    with pytest.raises(InputError, match="itself"):
        copied(tmp_path / target, *(tmp_path / name for name in sources))
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "text.txt").write_text("dear reader")
    with pytest.raises(CacheFormatError):
        copied(tmp_path / "thesis", two[0])


# Names


def test_two_corpora_of_one_name_are_a_conflict(tmp_path: Path) -> None:
    a = cache_of(tmp_path / "a", [vectors_of(TEXTS[:9])], corpus=("news", TEXTS[:9]))
    b = cache_of(tmp_path / "b", [vectors_of(TEXTS[:9])], corpus=("news", TEXTS[:8]))
    with pytest.raises(InputError, match=r"'news' has 9 rows in .* 8 rows in"):
        copied(tmp_path / "all", a.folder, b.folder)
    assert not (tmp_path / "all").exists()
    digest = b.corpus().info.digest[:12]
    copied(tmp_path / "all", a.folder, b.folder, corpora=[f"news@{digest}"])
    assert Cache(tmp_path / "all").corpus().info == b.corpus().info
    with pytest.raises(InputError, match="'news' has"):
        copied(tmp_path / "all", a.folder)
    copied(tmp_path / "all", a.folder, corpora=["news=older"])
    assert Cache(tmp_path / "all").corpus("older").texts() == TEXTS[:9]
    copied(tmp_path / "all", a.folder, overwrite=True)
    assert Cache(tmp_path / "all").corpus("news").info == a.corpus().info
    assert verify(tmp_path / "all").damage == []


def test_views_come_from_all_sources_unless_they_differ(tmp_path: Path) -> None:
    caches = [cache_of(tmp_path / name, [], corpus=("news", TEXTS[:50])) for name in "abc"]
    for cache, spec in zip(caches, ("crop", "other=delete-words:0.5", "crop=crop:0.5"), strict=True):
        add_view(cache.corpus(), spec)
    a, b, c = (cache.folder for cache in caches)
    copied(tmp_path / "all", a, b)
    corpus = Cache(tmp_path / "all").corpus()
    assert corpus.view_names() == ["crop", "other"]
    for sources, target in (((a, c), "new"), ((c,), "all")):
        with pytest.raises(InputError, match="view 'crop' of corpus 'news' differs"):
            copied(tmp_path / target, *sources)
    copied(tmp_path / "all", c, overwrite=True)
    assert Cache(tmp_path / "all").corpus().view("crop").texts() == Cache(c).corpus().view("crop").texts()
    assert verify(tmp_path / "all").damage == []


def test_a_name_of_two_contracts_is_an_error_that_names_the_field(tmp_path: Path) -> None:
    a = cache_of(tmp_path / "a", [vectors_of(TEXTS[:9])])
    b = cache_of(tmp_path / "b", [vectors_of(TEXTS[:9])], contract=OTHER)
    for target, sources in (("all", (a, b)), ("a", (b,))):
        with pytest.raises(ContractMismatchError, match="prompt"):
            copied(tmp_path / target, *(one.folder for one in sources))
    assert not (tmp_path / "all").exists()
    copied(tmp_path / "a", b.folder, teachers=["tiny=query"])
    assert {one.name: one.contract for one in Cache(a.folder).teachers()} == {
        "tiny": CONTRACT,
        "query": OTHER,
    }
    copied(tmp_path / "all", a.folder, teachers=[OTHER.id[:12]])
    assert [one.name for one in Cache(tmp_path / "all").teachers()] == ["query"]


def test_what_belongs_to_a_teacher_is_copied_with_it(tmp_path: Path, whole: Cache) -> None:
    word = np.ones((3, 4), dtype=np.float32)
    TokenTable(word, ("a", "b", "c")).write(table_path(whole.folder, CONTRACT), CONTRACT)
    whole.remember_model(CONTRACT, "/models/tiny")
    small = write_derived(whole, whole.teacher("tiny"), "small", np.eye(3, 8, dtype=np.float32), "by hand")
    for _ in extend(whole, small, whole.corpus("plain")):
        pass
    copied(tmp_path / "out", whole.folder, teachers=["tiny", "small"])
    out = Cache(tmp_path / "out")
    assert np.array_equal(out.token_table(out.teacher("tiny")).word, word)
    assert out.model_source(out.teacher("tiny")) == "/models/tiny"
    assert np.array_equal(out.lookup(TEXTS[100:150], "small"), whole.lookup(TEXTS[100:150], "small"))
    assert verify(out.folder).damage == []


# Damage and interruption


@pytest.mark.parametrize("what", ["shards/*", "corpora/a/*.arrow", "corpora/a/views/crop/*.arrow"])
def test_a_damaged_source_is_refused(tmp_path: Path, two: tuple[Path, Path], what: str) -> None:
    flip_middle(next(two[0].rglob(what)))
    with pytest.raises(CorruptCacheError, match="damaged"):
        copied(tmp_path / "all", *two)
    # Killed or refused on the way, what is there is sound.
    assert not (tmp_path / "all").exists() or verify(tmp_path / "all").damage == []


def test_a_file_outside_a_source_is_not_copied(tmp_path: Path, two: tuple[Path, Path]) -> None:
    part = next(two[0].rglob("corpora/a/*.arrow"))
    part.rename(tmp_path / "outside")
    part.symlink_to(tmp_path / "outside")
    with pytest.raises((CorruptCacheError, CacheFormatError), match="link"):
        copied(tmp_path / "all", *two)


@pytest.mark.parametrize(
    "options",
    [
        {"prefer": "LAST"},
        {"codec": "int8", "prefer": "FIRST"},
        {"shard_rows": 30, "prefer": "LAST"},
        {"corpora": ["a"], "where": "row % 2 = 0", "prefer": "FIRST"},
    ],
    ids=str,
)
def test_killed_anywhere_the_same_copy_ends_alike(
    tmp_path: Path, at_odds: tuple[Path, Path], options: dict[str, Any]
) -> None:
    add_view(Cache(at_odds[0]).corpus(), "crop")
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


@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 90), st.integers(1, 40), st.booleans()), min_size=1, max_size=5),
    st.integers(1, 99),
    st.sampled_from(["arrow", "lmdb"]),
)
def test_parts_of_a_cache_come_together_again(
    tmp_path_factory: pytest.TempPathFactory, shards: list[tuple[int, int, bool]], edge: int, kind: str
) -> None:
    """Every look-up gives what it gave, even where a cache holds two vectors of a text."""
    folder = tmp_path_factory.mktemp("parts")
    batches = [
        (other_vectors if odd else vectors_of)(TEXTS[first : first + count]) for first, count, odd in shards
    ]
    whole = cache_of(folder / "whole", batches, kind=kind)
    add_corpus(whole, "front", TEXTS[: min(edge + 10, 130)])
    add_corpus(whole, "back", TEXTS[edge:130])
    held = [
        text
        for text, place in zip(TEXTS, whole.store(CONTRACT).locate(key_array(TEXTS)), strict=True)
        if place >= 0
    ]
    for name in ("front", "back"):
        copied(folder / name, whole.folder, corpora=[name])
    assert copied(folder / "all", folder / "front", folder / "back").conflicts == ()
    assert np.array_equal(Cache(folder / "all").lookup(held), whole.lookup(held))


# The command


def test_the_command(tmp_path: Path, at_odds: tuple[Path, Path]) -> None:
    def run(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(cli, ["copy", *map(str, at_odds), str(tmp_path / "all"), *arguments])
        assert (result.exit_code, type(result.exception)) in ((code, type(None)), (code, SystemExit)), result
        return result.stdout

    assert "undecided" in run("--dry-run", code=1)
    assert "nothing written" in run("--dry-run", "--prefer", "last")
    value = json.loads(run("--prefer", "LAST", "--codec", "float16", "--json"))
    assert value["teachers"][0]["rows"] == 120
    assert value["conflicts"][0]["decided_by"] == "--prefer LAST"
    assert "copied to" in run("--prefer", "LAST", "--codec", "float16")
    assert codecs_of(Cache(tmp_path / "all")) == {"float16": 120}
