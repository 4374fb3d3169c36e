"""Explanations name the teachers that have a text, the field that differs, or the text that is nearly it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from check_helpers import run
from small_caches import TEXTS, add_corpus, add_teacher, add_view, batch

from embedcache.cache import Cache
from embedcache.errors import TeacherError
from embedcache.explain import explain


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    """Return a cache of ten texts, of which teacher ``near`` has six and ``far`` none."""
    cache = Cache.create(tmp_path / "c")
    add_view(add_corpus(cache, "words", [*TEXTS[:9], TEXTS[0]]), "crop=crop")
    add_teacher(cache, "near", [batch(TEXTS[:6])], codec="int8")
    add_teacher(cache, "far", [batch(["nothing"], dimension=12)], dimension=12)
    return cache


def test_a_text_says_where_it_is_and_how_its_vectors_are_stored(cache: Cache) -> None:
    found = explain(cache, TEXTS[0])
    teachers = {one.name: one for one in found.teachers}
    assert (found.cached, teachers["near"].codec, teachers["far"].codec) == (True, "int8", None)
    assert teachers["near"].tokens == len(TEXTS[0].split())
    assert teachers["near"].shard == cache.store(cache.teacher("near").contract).shards[0].name
    assert [(one.corpus, one.first_rows) for one in found.rows if not one.view] == [("words", (0, 9))]
    without = explain(cache, TEXTS[8])
    assert (without.cached, without.rows[0].first_rows) == (False, (8,))
    of_view = explain(cache, cache.corpus().view("crop").texts()[0])
    assert ("words", "crop") in [(one.corpus, one.view) for one in of_view.rows]


@pytest.mark.parametrize("text", [TEXTS[3].upper(), f" {TEXTS[3]} ", f"{TEXTS[3]}!", "quite another text"])
def test_a_text_that_is_nearly_one_of_a_corpus_is_shown_it(cache: Cache, text: str) -> None:
    found = explain(cache, text)
    near = [] if "another" in text else [(TEXTS[3], 3)]
    assert (found.cached, [(one.text, one.row) for one in found.near]) == (False, near)


def test_the_field_that_differs_from_the_teacher_asked_for_is_named(cache: Cache, tiny_teacher: Path) -> None:
    contract = cache.teacher("near").contract
    cache.register_teacher("z-same", replace(contract, max_length=3), {})
    for name in ("near", contract.id[:6]):
        found = explain(cache, TEXTS[0], name)
        assert found.cached
        # The fewer fields differ, the nearer.
        assert [one.name for one in found.teachers] == ["near", "z-same", "far"]
    assert found.teachers[1].differences["max_length"] == (3, contract.max_length)
    assert not explain(cache, TEXTS[0], "z-same").cached
    # A teacher that the cache does not know is loaded.
    found = explain(cache, TEXTS[0], str(tiny_teacher))
    assert (found.cached, "weights" in found.teachers[0].differences) == (False, True)
    with pytest.raises(TeacherError):
        explain(cache, TEXTS[0], "nobody")


def test_the_command(cache: Cache) -> None:
    for words, noun in {
        (TEXTS[0], "--teacher", "near"): ": cached\n",
        (TEXTS[0], "--teacher", "far"): "by another teacher only",
        (TEXTS[0].upper(),): "row 0",
        ("x",): ": not cached",
    }.items():
        assert noun in run("explain", *words, "--cache", cache.folder)[1]
    assert json.loads(run("explain", TEXTS[6], "--json", "--cache", cache.folder)[1])["cached"] is False
