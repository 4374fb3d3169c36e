"""Explanations name the teachers that have a text, the field that differs, or the text that is nearly it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from small_caches import TEXTS, add_corpus, add_teacher, add_view, batch

from embedcache.cache import Cache
from embedcache.cli.main import cli
from embedcache.errors import TeacherError
from embedcache.explain import explain


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    """Return a cache of ten texts, of which teacher ``near`` has six and ``far`` none."""
    cache = Cache.create(tmp_path / "c")
    add_corpus(cache, "words", [*TEXTS[:9], TEXTS[0]])
    add_teacher(cache, "near", [batch(TEXTS[:6])], codec="int8")
    add_teacher(cache, "far", [batch(["nothing"], dimension=12)], dimension=12)
    return cache


def test_a_text_with_a_vector_says_how_it_is_stored(cache: Cache) -> None:
    found = explain(cache, TEXTS[0])
    near = {one.name: one for one in found.teachers}["near"]
    assert (found.cached, near.codec, near.tokens) == (True, "int8", len(TEXTS[0].split()))
    assert near.shard == cache.store(cache.teacher("near").contract).shards[0].name
    assert [one.codec for one in found.teachers if one.name == "far"] == [None]
    assert [(one.corpus, one.first_rows) for one in found.rows] == [("words", (0, 9))]


def test_a_row_without_a_vector_and_a_text_of_a_view(cache: Cache) -> None:
    view = add_view(cache.corpus(), "crop=crop")
    found = explain(cache, TEXTS[8])
    assert (found.cached, found.rows[0].first_rows) == (False, (8,))
    found = explain(cache, view.texts()[0])
    assert ("words", "crop") in [(one.corpus, one.view) for one in found.rows]


@pytest.mark.parametrize("change", [str.upper, lambda text: f" {text} ", lambda text: f"{text}!"])
def test_a_text_that_is_nearly_one_of_a_corpus_is_shown_it(
    cache: Cache, change: Callable[[str], str]
) -> None:
    found = explain(cache, change(TEXTS[3]))
    assert (found.cached, [(one.text, one.row) for one in found.near]) == (False, [(TEXTS[3], 3)])
    found = explain(cache, "quite another text")
    assert (list(found.rows), list(found.near)) == ([], [])


def test_the_field_that_differs_from_the_teacher_asked_for_is_named(cache: Cache) -> None:
    contract = cache.teacher("near").contract
    cache.register_teacher("z-same", replace(contract, max_length=3), {})
    for name in ("near", contract.id[:6]):
        found = explain(cache, TEXTS[0], name)
        assert found.cached
        # The fewer fields differ, the nearer.
        assert [one.name for one in found.teachers] == ["near", "z-same", "far"]
    same = {one.name: one for one in found.teachers}["z-same"]
    assert same.differences["max_length"] == (3, contract.max_length)
    assert not explain(cache, TEXTS[0], "z-same").cached


def test_a_teacher_that_the_cache_does_not_know_is_loaded(cache: Cache, tiny_teacher: Path) -> None:
    found = explain(cache, TEXTS[0], str(tiny_teacher))
    assert (found.cached, "weights" in found.teachers[0].differences) == (False, True)
    with pytest.raises(TeacherError):
        explain(cache, TEXTS[0], "nobody")


def test_the_command(cache: Cache, tmp_path: Path) -> None:
    def run(*words: str, folder: Path = cache.folder) -> str:
        return CliRunner().invoke(cli, ["explain", *words, "--cache", str(folder)]).output

    assert ": cached\n" in run(TEXTS[0], "--teacher", "near")
    assert "by another teacher only" in run(TEXTS[0], "--teacher", "far")
    assert "row 0" in run(TEXTS[0].upper())
    assert json.loads(run(TEXTS[6], "--json"))["cached"] is False
    assert ": not cached" in run("x", folder=Cache.create(tmp_path / "empty").folder)
