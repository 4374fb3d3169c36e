"""``ls``, ``info`` and ``explain`` tell of views: which there are, how they were made, what is encoded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cache_with_views import NAMES, TEXTS, build_all
from check_helpers import run

from embedcache.cache import Cache
from embedcache.fsio import read_sealed_json, write_sealed_json


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    folder = tmp_path_factory.mktemp("views")
    return build_all(folder / "cache", folder)


def test_ls_counts_them(cache: Cache) -> None:
    code, shown = run("ls", "--cache", cache.folder, "--json")
    assert code == 0
    (corpus,) = json.loads(shown)["corpora"]
    assert (corpus["name"], corpus["views"]) == ("pairs", len(NAMES))
    assert "views" in run("ls", "--cache", cache.folder)[1]


def test_info_of_a_corpus_says_how_they_were_made(cache: Cache) -> None:
    corpus = json.loads(run("info", "pairs", "--cache", cache.folder, "--json")[1])["corpus"]
    views = {view["name"]: view for view in corpus["views"]}
    assert list(views) == list(NAMES)
    assert views["crop"] == {
        "name": "crop",
        "recipe": "crop, share 0.1, seed 0",
        "rows changed": len(TEXTS) - 1,
        "rows kept: one word": 1,
    }
    assert views["column-french"]["rows kept: empty cell"] == -(-len(TEXTS) // 7)
    _, shown = run("info", "pairs", "--cache", cache.folder)
    assert f"name: crop, recipe: crop, share 0.1, seed 0, rows changed: {len(TEXTS) - 1}" in shown


def test_info_of_a_teacher_says_which_it_encoded(cache: Cache) -> None:
    teacher = json.loads(run("info", "fake", "--cache", cache.folder, "--json")[1])["teacher"]
    assert teacher["views_encoded"] == {"pairs, crop": {"own texts": len(TEXTS) - 1, "missing": 0}}
    assert teacher["coverage"]["pairs"]["missing"] == 0


def test_info_says_that_a_view_is_of_other_rows(tmp_path: Path) -> None:
    stale = build_all(tmp_path / "cache", tmp_path)
    recipe = stale.corpora_folder / "pairs" / "views" / "crop" / "recipe.json"
    write_sealed_json(recipe, {**read_sealed_json(recipe), "of": "0" * 64})
    corpus = json.loads(run("info", "pairs", "--cache", stale.folder, "--json")[1])["corpus"]
    assert [view["name"] for view in corpus["views"] if "not read" in view] == ["crop"]
    teacher = json.loads(run("info", "fake", "--cache", stale.folder, "--json")[1])["teacher"]
    assert teacher["views_encoded"] == {}


def test_explain_says_in_which_view_a_text_stands(cache: Cache) -> None:
    crop, words = (cache.corpus().view(name).texts()[2] for name in ("crop", "delete-words-0.3-1"))
    _, shown = run("explain", crop, "--teacher", "fake", "--cache", cache.folder)
    assert "cached" in shown
    assert "in view crop of corpus pairs, row 2 (counted from 0)" in shown
    _, shown = run("explain", words, "--teacher", "fake", "--cache", cache.folder)
    assert "not cached" in shown
    assert "in view delete-words-0.3-1 of corpus pairs, row 2" in shown
    assert "--embed-views" in shown
