"""Views from a stranger: whatever their files say, nothing outside the cache is read, and nobody crashes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hostile_child import CORPUS, TEXTS, build_corpus
from hostile_helpers import EVERYTHING, OPENING, judge, one, reseal

from embedcache.check import repair, verify
from embedcache.corpus.corpus import Corpus
from embedcache.fsio import write_sealed_json

VIEWS = f"corpora/{CORPUS}/views"
READING_VIEWS = frozenset({"info", "query", "views"})
"""The operations that read the texts or the description of a view."""

READING_RECIPES = READING_VIEWS | {"info-corpus"}


@pytest.fixture(scope="module")
def honest_views(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("honest")
    source = folder / f"{CORPUS}.txt"
    source.write_text("".join(f"{text}\n" for text in TEXTS))
    # Of a file that was written just now nothing is noted.
    os.utime(source, (1e9, 1e9))
    build_corpus(folder / "cache", source, codec="float16", store="arrow", views=["crop", "delete-words"])
    return folder


@pytest.fixture
def cache(honest_views: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(honest_views, tmp_path, dirs_exist_ok=True)) / "cache"


def recipe_of(cache: Path) -> Path:
    return cache / VIEWS / "crop" / "recipe.json"


def set_in(cache: Path, **fields: object) -> None:
    """Change fields of a recipe and seal it again."""
    reseal(recipe_of(cache), lambda value: value["recipe"].update(fields))


def test_an_honest_cache_with_views_is_used_by_everything(cache: Path) -> None:
    judgement = judge(cache, EVERYTHING)
    assert judgement.refused == {}
    assert judgement.damage == []
    assert judgement.result("views") == [
        ["crop", "crop, share 0.1, seed 0", len(TEXTS)],
        ["delete-words", "delete-words, share 0.1, seed 0", len(TEXTS)],
    ]
    assert judgement.result("query")[-1] == 2 * len(TEXTS)


@pytest.mark.parametrize("name", ["../delete-words", "..", "/etc", "original", "crop/../crop", "", "x" * 101])
def test_a_recipe_by_a_name_that_leads_elsewhere_is_refused(cache: Path, name: str) -> None:
    set_in(cache, name=name)
    judgement = judge(cache, EVERYTHING)
    judgement.assert_refused(READING_RECIPES, "names no view", "repair")
    assert len(judgement.damage) == 1


def test_a_folder_by_a_name_that_no_view_has_is_not_read(cache: Path) -> None:
    for name in ("original", "a view", ".hidden", "x" * 101):
        shutil.copytree(cache / VIEWS / "crop", cache / VIEWS / name)
    judgement = judge(cache, EVERYTHING)
    assert judgement.refused == {}
    assert judgement.damage == []
    assert [view for view, *_ in judgement.result("views")] == ["crop", "delete-words"]
    assert any("foreign" not in line and "does not know" in line for line in judgement.result("verify"))


def test_parts_by_names_that_lead_elsewhere_are_refused(cache: Path) -> None:
    description = cache / VIEWS / "crop" / "corpus.json"
    secret = cache.parent / "secret.arrow"
    shutil.copy(one(cache, f"{VIEWS}/delete-words/*.arrow"), secret)
    reseal(description, lambda value: value["parts"][0].update(sha256="../../../../../secret"))
    judgement = judge(cache, EVERYTHING)
    judgement.assert_refused(READING_VIEWS, "is no sha256", "--replace-views")


@pytest.mark.parametrize("place", ["views", "views/crop", "views/crop/recipe.json", "views/crop/corpus.json"])
def test_links_in_the_place_of_views_are_refused(cache: Path, place: str) -> None:
    path = cache / "corpora" / CORPUS / place
    elsewhere = cache.parent / "elsewhere"
    shutil.move(path, elsewhere)
    path.symlink_to(elsewhere)
    judgement = judge(cache)
    judgement.assert_refused(OPENING, "symbolic link", "delete the link")
    assert any("symbolic link" in line for line in judgement.damage)
    before = {str(one): one.lstat().st_mtime_ns for one in sorted(cache.rglob("*"))}
    assert {mend.outcome for mend in repair(cache, quarantine=True).mends} == {"not repaired"}
    assert {str(one): one.lstat().st_mtime_ns for one in sorted(cache.rglob("*"))} == before


def test_a_newer_recipe_asks_for_a_newer_embedcache(cache: Path) -> None:
    reseal(recipe_of(cache), lambda value: value.update(version=2))
    judge(cache, EVERYTHING).assert_refused(READING_RECIPES, "format version 2", "upgrade embedcache")


CHANGES: dict[str, dict[str, Any]] = {
    "of": {"of": "a line\nand another"},
    "no-of": {"of": None},
    "digest": {"digest": "\x1b[2J" * 20},
    "counts": {"counts": {"changed": 10**4000}},
    "negative": {"counts": {"changed": -1}},
    "fractions": {"counts": {"changed": 1.5}},
    "list": {"counts": [1, 2]},
    "recipe": {"recipe": []},
    "version": {"version": "\n\n"},
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_recipe_of_nonsense_is_refused(cache: Path, change: str) -> None:
    reseal(recipe_of(cache), lambda value: value.update(CHANGES[change]))
    judge(cache, EVERYTHING).assert_refused(READING_RECIPES, "recipe.json")


RECIPES: dict[str, dict[str, Any]] = {
    "kind": {"kind": "a\nb"},
    "no-kind": {"kind": 5},
    "column": {"kind": "column"},
    "parameters": {"parameters": {"share": [1]}},
    "parameter": {"kind": "new", "parameters": {"a\nb": 1}},
    "models": {"models": {"\x1b[2J": "x"}},
    "model": {"models": {"m": 5}},
    "sample": {"sample": "many"},
}


@pytest.mark.parametrize("change", RECIPES)
def test_recipes_that_no_recipe_is_are_refused(cache: Path, change: str) -> None:
    set_in(cache, **RECIPES[change])
    judge(cache, EVERYTHING).assert_refused(READING_RECIPES, "recipe.json", "is damaged")


def test_a_column_may_have_any_name_and_shows_in_one_line(cache: Path) -> None:
    set_in(cache, kind="column", parameters={"column": "a\nb\x1b[2J"}, seed=None)
    judgement = judge(cache, EVERYTHING)
    assert judgement.refused == {}
    assert judgement.result("views")[0][1] == r"column a\nb\x1b[2J"


def test_a_view_of_fewer_rows_is_refused(cache: Path) -> None:
    """Rows beyond its end must never be asked of it."""
    other = build_corpus(cache.parent / "other", _source(cache.parent), views=["crop"])
    target = cache / VIEWS / "crop"
    shutil.rmtree(target)
    shutil.copytree(other.folder / "corpora" / "short" / "views" / "crop", target)
    reseal(recipe_of(cache), lambda value: value.update(of=Corpus(cache / "corpora" / CORPUS).info.digest))
    judge(cache, EVERYTHING).assert_refused(READING_VIEWS, "other rows than its recipe was written for")
    (damage,) = verify(cache).damage
    assert "it has 3 rows, and the corpus 300" in damage.found


def _source(folder: Path) -> Path:
    source = folder / "short.txt"
    source.write_text("".join(f"{text}\n" for text in TEXTS[:3]))
    return source


def test_a_view_of_another_view_is_not_followed(cache: Path) -> None:
    inner = cache / VIEWS / "crop" / "views" / "inner"
    shutil.copytree(cache / VIEWS / "delete-words", inner)
    write_sealed_json(inner / "recipe.json", {"version": 1})
    judgement = judge(cache, EVERYTHING)
    assert judgement.refused == {}
    assert judgement.damage == []
