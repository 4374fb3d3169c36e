"""Figures of a cache are those of its rows and vectors, in lines and in full."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from small_caches import LABELS, ROWS, TEXTS, add_corpus, add_teacher, add_view, batch, make_cache

from embedcache.cache import Cache
from embedcache.cli.main import cli
from embedcache.errors import InputError
from embedcache.fsio import read_sealed_json, write_sealed_json
from embedcache.info import MOST_LABELS, CorpusLine, Spread, TeacherLine, describe


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return make_cache(tmp_path_factory.mktemp("info") / "c")


@given(st.lists(st.integers(0, 1000), min_size=1))
def test_a_spread_is_that_of_the_numbers(numbers: list[int]) -> None:
    spread = Spread.of({number: numbers.count(number) for number in numbers})
    assert spread is not None
    assert (spread.least, spread.most) == (min(numbers), max(numbers))
    assert spread.median == statistics.median_low(numbers)
    assert spread.mean == pytest.approx(statistics.fmean(numbers))
    assert sum(number <= spread.p95 for number in numbers) >= 0.95 * len(numbers)


def test_a_corpus_is_described(cache: Cache) -> None:
    (one,) = describe(cache, "news").corpora
    assert (one.rows, one.duplicates, one.digest) == (ROWS, 1, cache.corpus("news").info.digest)
    assert one.characters == Spread.of({n: [*map(len, TEXTS)].count(n) for n in map(len, TEXTS)})
    assert dict(one.labels) == {label: LABELS.count(label) for label in range(3)}
    assert (one.distinct_labels, set(one.columns)) == (3, {"original", "id", "label"})
    assert [(view.name, sum(view.counts.values()), view.is_stale) for view in one.views] == [
        ("crop", ROWS, False), ("other", ROWS, False)
    ]  # fmt: skip


def test_a_teacher_is_described(cache: Cache) -> None:
    (one,) = describe(cache, "int8").teachers
    store = cache.store(cache.teacher("int8").contract)
    tokens = [len(text.split()) for text in TEXTS[:-1]]
    assert one.tokens == Spread.of({n: tokens.count(n) for n in tokens})
    assert (one.truncated, one.shards) == (sum(n >= 9 for n in tokens), 2)
    assert (one.line.vectors, one.line.bytes, one.line.store) == (ROWS - 1, store.bytes_on_disk, "arrow")
    assert one.contract == store.contract.to_json()
    assert one.codecs["int8"]["rows"] == ROWS - 1
    assert 0.99 < one.codecs["int8"]["worst_cosine"] < one.codecs["int8"]["mean_cosine"] < 1
    assert list(one.provenance) == [{"rows": ROWS - 1, "compute_dtype": "float32"}]


def test_coverage_counts_rows_of_corpora_and_views(tmp_path: Path) -> None:
    cache = Cache.create(tmp_path / "c")
    corpus = add_corpus(cache, "c", [*TEXTS[:9], TEXTS[0]])
    add_view(corpus, "crop=crop")
    teacher = add_teacher(cache, "t", [batch(TEXTS[:4]), batch(TEXTS[:2], seed=1)])
    cache.register_teacher("u", teacher.contract, {})
    (one, other) = describe(cache).teachers
    assert one.coverage == {"c": (5, 10), "c/crop": (0, 10)}
    assert (one.line.vectors, one.tokens and one.tokens.most) == (4, max(len(t.split()) for t in TEXTS[:4]))
    assert (one.also_called, other.also_called) == (["u"], ["t"])


def test_only_the_commonest_labels_are_listed(tmp_path: Path) -> None:
    cache = Cache.create(tmp_path / "c")
    add_corpus(cache, "c", TEXTS[:100], labels=[f"l{n // 2}" for n in range(100)])
    (one,) = describe(cache).corpora
    assert (len(one.labels), one.distinct_labels) == (MOST_LABELS, 50)


def test_an_unknown_name_and_an_empty_cache(cache: Cache, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no teacher 'x'.*corpora: news, plain"):
        describe(cache, "x")
    assert describe(cache, cache.teacher("pq").contract.id[:8]).teachers[0].line.name == "pq"
    found = describe(Cache.create(tmp_path / "c"))
    assert (list(found.corpora), list(found.teachers)) == ([], [])


def test_lines_are_short(cache: Cache) -> None:
    assert CorpusLine.of(cache.corpus("plain")) == CorpusLine(
        "plain", 5, cache.corpus("plain").info.digest[:12], False, 1
    )
    line = TeacherLine.of(cache, cache.teacher("pq"))
    assert (line.vectors, line.width, line.codec, line.store) == (ROWS - 1, 8, "pq", "lmdb")


def run(cache: Cache, *words: str) -> Result:
    done = CliRunner().invoke(cli, [*words, "--cache", str(cache.folder)])
    assert done.exit_code == 0, done.output
    return done


def test_ls_and_info_print_tables_and_json(cache: Cache) -> None:
    listed = json.loads(run(cache, "ls", "--json").stdout)
    assert [one["name"] for one in listed["corpora"]] == ["news", "plain"]
    assert len(listed["teachers"]) == 4
    for words in (("ls",), ("info",), ("info", "news"), ("info", "int8")):
        shown = run(cache, *words).stdout
        assert words[-1] in shown or "news" in shown
        assert "{" not in shown
    assert "320" in run(cache, "info").stdout
    assert "mean cosine" in run(cache, "info", "int8").stdout
    found = json.loads(run(cache, "info", "int8", "--json").stdout)
    assert (found["corpora"], found["teachers"][0]["contract"]["dimension"]) == ([], 8)


def test_damage_of_one_teacher_does_not_hide_the_others(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "c")
    (cache.teacher_folder(cache.teacher("pq").contract) / "vectors.mdb").unlink()
    shown = run(cache, "ls").stdout
    assert "damaged" in shown
    assert "embedcache repair" in shown
    assert "int8" in shown
    (one,) = describe(cache, "pq").teachers
    assert (one.line.vectors, one.coverage) == (None, {})
    assert one.contract["dimension"] == 8
    assert "damaged" in run(cache, "info", "pq").stdout


def test_a_view_of_other_rows_is_marked(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "c")
    recipe = cache.corpora_folder / "plain" / "views" / "crop" / "recipe.json"
    write_sealed_json(recipe, {**read_sealed_json(recipe), "of": "0" * 64})
    assert [view.is_stale for view in describe(cache, "plain").corpora[0].views] == [True]
