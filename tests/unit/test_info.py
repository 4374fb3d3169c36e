"""Figures of a cache are those of its rows and vectors."""

from __future__ import annotations

import json
import statistics

import pytest
from check_helpers import run
from small_caches import KINDS, LABELS, ROWS, TEXTS, make_cache

from embedcache.cache import Cache
from embedcache.fsio import read_sealed_json, write_sealed_json
from embedcache.info import describe


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    """Return a cache whose one view of another corpus was made for other rows."""
    cache = make_cache(tmp_path_factory.mktemp("info") / "c")
    recipe = cache.corpora_folder / "plain" / "views" / "crop" / "recipe.json"
    write_sealed_json(recipe, {**read_sealed_json(recipe), "of": "0" * 64})
    return cache


def assert_spread(row: dict[str, object], numbers: list[int]) -> None:
    assert (row["least"], row["most"]) == (min(numbers), max(numbers))
    assert row["median"] == statistics.median_low(numbers)
    assert row["mean"] == pytest.approx(statistics.fmean(numbers))
    assert row["95 %"] == sorted(numbers)[-(-95 * len(numbers) // 100) - 1]


def test_a_corpus_is_described(cache: Cache) -> None:
    found = describe(cache, "news")
    (one,) = found["corpora"]
    assert (one["rows"], one["duplicates"], one["digest"]) == (ROWS, 1, cache.corpus("news").info.digest)
    assert_spread(found["characters"][0], [*map(len, TEXTS)])
    assert {row["label"]: row["rows"] for row in found["labels"]} == {n: LABELS.count(n) for n in range(3)}
    assert {row["view"]: (row["rows"], row["is_current"]) for row in found["views"]} == {
        name: ({"changed": ROWS}, True) for name in ("crop", "other")
    }
    assert [view["is_current"] for view in describe(cache, "plain")["views"]] == [False]


def test_a_teacher_is_described_by_name_and_contract(cache: Cache) -> None:
    store = cache.store(cache.teacher("int8").contract)
    found = describe(cache, "int8")
    assert describe(cache, store.contract.id[:8]) == found
    (one,), (spread,), (codec,) = found["teachers"], found["tokens"], found["codecs"]
    tokens = [len(text.split()) for text in TEXTS[:-1]]
    assert_spread(spread, tokens)
    assert spread["truncated"] == sum(n >= 9 for n in tokens)
    assert (one["vectors"], one["bytes"], one["shards"]) == (ROWS - 1, store.bytes_on_disk, 2)
    assert (one["store"], one["prompt"], one["names"]) == ("arrow", "int8", ["int8"])
    assert 0.99 < codec["worst_cosine"] < codec["mean_cosine"] < 1
    (provenance,) = found["provenance"]
    assert (provenance["provenance"], provenance["rows"]) == ({"compute_dtype": "float32"}, ROWS - 1)


def test_ls_and_info_print_tables_and_json(cache: Cache) -> None:
    given = ("--cache", cache.folder)
    listed = json.loads(run("ls", "--json", *given)[1])
    assert [one["corpus"] for one in listed["corpora"]] == ["news", "plain"]
    assert {one["teacher"]: one["store"] for one in listed["teachers"]} == KINDS
    for words, noun in {("ls",): "320", ("info",): "320", ("info", "news"): "news"}.items():
        code, shown = run(*words, *given)
        assert (code, noun in shown, "{" in shown) == (0, True, False)
    assert json.loads(run("info", "int8", "--json", *given)[1])["teachers"][0]["dimension"] == 8
