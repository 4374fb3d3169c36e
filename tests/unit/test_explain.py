"""Explanations name the teachers that have a text, the field that differs, or the text that is nearly it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from small_caches import TEXTS, add_corpus, add_teacher, add_view, batch

from embedcache.cache import Cache
from embedcache.cli.main import cli
from embedcache.errors import InputError, TeacherError
from embedcache.explain import MOST_TEXTS, explain, wanted_contract


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    """Return a cache of ten texts, of which teacher ``near`` has six and ``far`` none."""
    cache = Cache.create(tmp_path / "c")
    add_corpus(cache, "words", [*TEXTS[:9], TEXTS[0]])
    add_teacher(cache, "near", [batch(TEXTS[:6])], codec="int8")
    add_teacher(cache, "far", [batch(["nothing"], dimension=12)], dimension=12)
    return cache


def test_a_text_with_a_vector_says_how_it_is_stored(cache: Cache) -> None:
    found = explain(cache, [[TEXTS[0]]])
    (text,) = found.texts
    (row,) = text.stored
    assert (text.cached, row.teacher, row.codec, row.tokens) == (True, "near", "int8", len(TEXTS[0].split()))
    assert row.shard == cache.store(cache.teacher("near").contract).shards[0].name
    assert [(one.corpus, one.first_rows) for one in text.rows] == [("words", (0, 9))]
    assert {one.name: one.cached for one in found.teachers} == {"near": 1, "far": 0}


def test_a_row_without_a_vector_and_a_text_of_a_view(cache: Cache) -> None:
    view = add_view(cache.corpus(), "crop=crop")
    (text,) = explain(cache, [[TEXTS[8]]]).texts
    assert (text.cached, list(text.stored), text.rows[0].first_rows) == (False, [], (8,))
    (text,) = explain(cache, [view.texts()[:1]]).texts
    assert ("words", "crop") in [(one.corpus, one.view) for one in text.rows]


@pytest.mark.parametrize("change", [str.upper, lambda text: f" {text} ", lambda text: f"{text}!"])
def test_a_text_that_is_nearly_one_of_a_corpus_is_shown_it(cache: Cache, change: object) -> None:
    (text,) = explain(cache, [[change(TEXTS[3])]]).texts  # type: ignore[operator]
    assert (text.cached, [(one.text, one.row) for one in text.near]) == (False, [(TEXTS[3], 3)])
    (text,) = explain(cache, [["quite another text"]]).texts
    assert (list(text.rows), list(text.near)) == ([], [])


@pytest.mark.parametrize(
    ("settings", "field", "value"),
    [
        ({"pooling": "cls"}, "pooling", "cls"),
        ({"pooling": "last"}, "pooling", "lasttoken"),
        ({"prompt": "query: "}, "prompt", "query: "),
        ({"max_length": 7}, "max_length", 7),
        ({"normalize": False}, "normalize", False),
        ({"truncate_dim": 4}, "truncate_dim", 4),
    ],
)
def test_a_changed_setting_is_named_with_both_values_and_no_model_is_loaded(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, settings: dict[str, object], field: str, value: object
) -> None:
    monkeypatch.setattr("embedcache.teacher.load.load_teacher", None)
    stored = cache.teacher("near").contract
    for name in ("near", stored.id, stored.id[:6]):
        found = explain(cache, [[TEXTS[0]]], wanted_contract(cache, name, **settings))
        assert found.teachers[0].name == "near"
        assert found.teachers[0].differences[field] == (getattr(stored, field), value)
        assert (found.texts[0].cached, len(found.texts[0].stored)) == (False, 1)


def test_another_model_is_farther_than_other_settings(cache: Cache) -> None:
    contract = cache.teacher("near").contract
    cache.register_teacher("a-other", replace(contract, weights="2" * 64), {})
    cache.register_teacher("z-same", replace(contract, max_length=3, prompt="x", pooling="cls"), {})
    names = [one.name for one in explain(cache, [["x"]], contract).teachers]
    assert names.index("near") == 0
    assert names.index("z-same") < names.index("a-other")


def test_names_that_the_cache_does_not_know_are_loaded(cache: Cache, plain_teacher: Path) -> None:
    contract = wanted_contract(cache, str(plain_teacher), pooling="cls", max_length=16)
    assert (contract.pooling, contract.max_length) == ("cls", 16)
    with pytest.raises(TeacherError):
        wanted_contract(cache, "nobody")
    with pytest.raises(TeacherError, match="cls-before-pooler"):
        wanted_contract(cache, "near", pooling="max")
    with pytest.raises(InputError, match="near"):
        wanted_contract(cache)


def test_several_texts_are_counted_and_the_first_missing_ones_explained(cache: Cache) -> None:
    more = [f"new {n}" for n in range(9)]
    found = explain(cache, [TEXTS[:5], [*TEXTS[5:8], *more]])
    assert (found.rows, {one.name: one.cached for one in found.teachers}) == (17, {"near": 6, "far": 0})
    assert [one.text for one in found.texts] == [TEXTS[6], TEXTS[7], *more][:MOST_TEXTS]
    assert explain(cache, [TEXTS[:5]]).texts == []


def test_an_empty_cache(tmp_path: Path) -> None:
    found = explain(Cache.create(tmp_path / "c"), [["x"]])
    assert (list(found.teachers), found.texts[0].cached) == ([], False)


def run(cache: Cache, *words: object) -> Result:
    return CliRunner().invoke(cli, ["explain", *map(str, words), "--cache", str(cache.folder)])


def test_the_command(cache: Cache) -> None:
    shown = run(cache, TEXTS[0], "--teacher", "near").output
    assert ": cached" in shown
    assert "int8 in shard" in shown
    assert "similar in corpus words: row 0" in run(cache, TEXTS[0].upper()).output
    found = json.loads(run(cache, TEXTS[6], "--json").output)
    assert (found["rows"], len(found["texts"])) == (1, 1)
    assert run(cache).exit_code == 2
