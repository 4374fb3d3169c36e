"""Figures of a cache are those of its rows and vectors."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest
from click.testing import CliRunner
from small_caches import KINDS, LABELS, ROWS, TEXTS, add_corpus, add_teacher, add_view, batch, make_cache

from embedcache.cache import Cache
from embedcache.cli.main import cli
from embedcache.errors import InputError
from embedcache.fsio import read_sealed_json, write_sealed_json
from embedcache.info import MOST_LABELS, describe


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return make_cache(tmp_path_factory.mktemp("info") / "c")


def run(cache: Cache, *words: str) -> str:
    done = CliRunner().invoke(cli, [*words, "--cache", str(cache.folder)])
    assert done.exit_code == 0, done.output
    return done.stdout


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
    assert [(row["view"], row["rows"], row["is_current"]) for row in found["views"]] == [
        ("crop", {"changed": ROWS}, True), ("other", {"changed": ROWS}, True)
    ]  # fmt: skip
    assert found["teachers"] == found["coverage"] == []


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
    assert codec["rows"] == ROWS - 1
    assert 0.99 < codec["worst_cosine"] < codec["mean_cosine"] < 1
    assert found["provenance"] == [
        {"teacher": "int8", "provenance": {"compute_dtype": "float32"}, "rows": ROWS - 1}
    ]
    assert found["corpora"] == []


def test_coverage_counts_rows_of_corpora_and_views(tmp_path: Path) -> None:
    cache = Cache.create(tmp_path / "c")
    corpus = add_corpus(cache, "c", [*TEXTS[:9], TEXTS[0]])
    add_view(corpus, "crop=crop")
    teacher = add_teacher(cache, "t", [batch(TEXTS[:4]), batch(TEXTS[:2], seed=1)])
    cache.register_teacher("u", teacher.contract, {})
    found = describe(cache, "u")
    assert [(one["corpus"], one["with_vector"], one["rows"]) for one in found["coverage"]] == [
        ("c", 5, 10), ("c/crop", 0, 10)
    ]  # fmt: skip
    assert (found["teachers"][0]["vectors"], found["teachers"][0]["names"]) == (4, ["t", "u"])
    assert found["tokens"][0]["most"] == max(len(text.split()) for text in TEXTS[:4])


def test_only_the_commonest_labels_are_listed(tmp_path: Path) -> None:
    cache = Cache.create(tmp_path / "c")
    add_corpus(cache, "c", TEXTS[:101], labels=[f"l{n // 2}" for n in range(100)] + ["l49"])
    rows = describe(cache)["labels"]
    assert (len(rows), rows[0]["label"], rows[0]["labels"]) == (MOST_LABELS, "l49", 50)


def test_a_view_of_other_rows_is_marked(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "c")
    recipe = cache.corpora_folder / "plain" / "views" / "crop" / "recipe.json"
    write_sealed_json(recipe, {**read_sealed_json(recipe), "of": "0" * 64})
    assert [view["is_current"] for view in describe(cache, "plain")["views"]] == [False]


def test_an_unknown_name_and_an_empty_cache(cache: Cache, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'x'.*news, plain, .*pq"):
        describe(cache, "x")
    empty = Cache.create(tmp_path / "c")
    assert not any(describe(empty).values())
    assert "no corpus" in run(empty, "ls")


def test_ls_and_info_print_tables_and_json(cache: Cache) -> None:
    listed = json.loads(run(cache, "ls", "--json"))
    assert [one["corpus"] for one in listed["corpora"]] == ["news", "plain"]
    assert {one["teacher"]: one["store"] for one in listed["teachers"]} == KINDS
    for words in (("ls",), ("info",), ("info", "news"), ("info", "int8")):
        shown = run(cache, *words)
        assert (words[-1] if len(words) > 1 else "320") in shown
        assert "{" not in shown
    assert json.loads(run(cache, "info", "int8", "--json"))["teachers"][0]["dimension"] == 8


def test_ls_names_all_codecs_of_a_teacher(tmp_path: Path) -> None:
    cache = Cache.create(tmp_path / "c")
    add_teacher(cache, "t", [batch(TEXTS[:4])], codec="float32")
    other = Cache.create(tmp_path / "other")
    store = other.store(add_teacher(other, "t", [batch(TEXTS[4:8])], codec="int8").contract)
    (shard,) = store.shards
    cache.container(store.contract).add(shard.name, store.container.open(shard.name))
    assert "float32, int8" in run(cache, "ls")
