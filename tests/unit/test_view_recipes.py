"""What a user types after --view, and what is stored of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedcache.errors import InputError
from embedcache.views.recipe import KINDS, Recipe, parse_views


def only(spec: str, **settings: object) -> Recipe:
    (recipe,) = parse_views([spec], **settings)  # type: ignore[arg-type]
    return recipe


@pytest.mark.parametrize(
    ("spec", "name", "kind", "parameters"),
    [
        ("crop", "crop", "crop", {"share": 0.1}),
        ("crop:0.1", "crop", "crop", {"share": 0.1}),
        ("crop:0.2", "crop-0.2", "crop", {"share": 0.2}),
        ("crop:share=0.2", "crop-0.2", "crop", {"share": 0.2}),
        ("short=crop:0.5", "short", "crop", {"share": 0.5}),
        ("delete-words", "delete-words", "delete-words", {"share": 0.1}),
        ("delete-one-word", "delete-one-word", "delete-one-word", {}),
        ("synonym", "synonym", "synonym", {"share": 0.1, "lexicon": "oewn:2024"}),
        (
            "synonym:lexicon=a:1,share=0.3",
            "synonym-0.3-a_1",
            "synonym",
            {"share": 0.3, "lexicon": "a:1"},
        ),
        ("mask-fill", "mask-fill", "mask-fill", {"share": 0.15}),
        ("column:fr", "column-fr", "column", {"column": "fr"}),
        ("column:a b/c*4=d:e", "column-a_b_c_4_d_e", "column", {"column": "a b/c*4=d:e"}),
        ("french=column:fr", "french", "column", {"column": "fr"}),
        ("translation:column=de", "translation-de", "column", {"column": "de"}),
        ("translation:de", "translation-de", "translation", {"language": "de", "beams": 1}),
        ("back-translation:de,beams=4", "back-translation-de-4", "back-translation", None),
        ("back-translation:fr", "back-translation-fr", "back-translation", None),
    ],
)
def test_a_spec_says_what_to_make_and_what_to_call_it(
    spec: str, name: str, kind: str, parameters: dict[str, object] | None
) -> None:
    recipe = only(spec)
    assert (recipe.name, recipe.kind, recipe.sample) == (name, kind, 0)
    if parameters is not None:
        assert recipe.parameters == parameters
    assert (recipe.seed == 0) is KINDS[kind].random
    assert (recipe.seed is None) is not KINDS[kind].random


def test_a_star_asks_for_samples_that_differ_in_nothing_else() -> None:
    recipes = parse_views(["crop:0.2*3"], seed=7)
    assert [one.name for one in recipes] == ["crop-0.2-1", "crop-0.2-2", "crop-0.2-3"]
    assert [one.sample for one in recipes] == [1, 2, 3]
    assert {one.seed for one in recipes} == {7}
    assert len({one.salt for one in recipes}) == 3
    # More of them later leave those that are there as they are.
    assert parse_views(["crop:0.2*5"], seed=7)[:3] == recipes


def test_the_language_of_a_round_trip_may_be_given_apart() -> None:
    assert only("back-translation", via="de").parameters["language"] == "de"
    assert only("back-translation:fr", via="de").parameters["language"] == "fr"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "unknown view ''"),
        ("cropp", "unknown view 'cropp': choose one of crop, delete-words"),
        ("=crop", "unknown view"),
        ("crop:", "takes share"),
        ("crop:0", "share '0'; expected a number above 0 and below 1"),
        ("crop:1", "above 0 and below 1"),
        ("crop:nan", "above 0 and below 1"),
        ("crop:x", "above 0 and below 1"),
        ("crop:0.1,0.2", "'0.2' is no argument; crop takes share"),
        ("crop:0.1,share=0.2", "no argument"),
        ("crop:beams=2", "crop takes share"),
        ("delete-one-word:2", "takes nothing"),
        ("crop*0", "0 samples; expected 1 to 1000"),
        ("crop*1001", "1001 samples"),
        ("crop*-1", "unknown view"),
        ("translation:de*2", "all samples of translation are the same"),
        ("column", "needs its column: write 'column:french'"),
        ("column:", "needs its column"),
        ("translation:column=", "needs its column"),
        ("back-translation", "needs its language"),
        ("translation:../x", "language '../x'"),
        ("back-translation:de,beams=0", "beams '0'"),
        ("original=crop", "cannot name a view"),
        ("a" * 101 + "=crop", "unknown view"),
        ("column:" + "a" * 101, "cannot name a view"),
    ],
)
def test_what_cannot_be_understood_is_refused(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        parse_views([spec])


@pytest.mark.parametrize(
    "specs", [["crop", "crop"], ["crop*2", "crop-1=delete-words"], ["column:a b", "column:a_b"]]
)
def test_two_views_of_one_name_are_refused(specs: list[str]) -> None:
    with pytest.raises(InputError, match="two views would be called"):
        parse_views(specs)


@pytest.mark.parametrize("seed", [-1, 1 << 63])
def test_a_seed_that_cannot_be_stored_is_refused(seed: int) -> None:
    with pytest.raises(InputError, match="--view-seed"):
        parse_views(["crop"], seed=seed)


@given(st.text(max_size=60))
def test_any_text_is_a_recipe_or_refused_in_words(spec: str) -> None:
    try:
        recipes = parse_views([spec, f"column:{spec}"])
    except InputError:
        return
    for recipe in recipes:
        # It becomes the name of a folder.
        assert Path(recipe.name).name == recipe.name
        assert recipe.name not in (".", "..")


@pytest.mark.parametrize("spec", [kind.example for kind in KINDS.values()])
def test_what_is_stored_gives_the_recipe_again(spec: str) -> None:
    for recipe in parse_views([spec], seed=5):
        value = json.loads(json.dumps(recipe.to_json()))
        assert Recipe.from_json(value) == recipe
        assert recipe.differences(Recipe.from_json(value)) == ""


@pytest.mark.parametrize(
    "change",
    [
        {"name": "../x"},
        {"name": "original"},
        {"name": 1},
        {"kind": None},
        {"parameters": {"share": [1]}},
        {"parameters": 1},
        {"seed": "0"},
        {"sample": None},
        {"models": {"a": 1}},
    ],
)
def test_a_foreign_file_is_not_trusted(change: dict[str, object]) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)):
        Recipe.from_json({**only("crop").to_json(), **change})


def test_differences_name_what_differs() -> None:
    assert only("x=crop").differences(only("x=crop", seed=1)) == "seed 0, not 1"
    assert "share 0.1, not 0.2" in only("x=crop").differences(only("x=crop:0.2"))
    assert only("x=crop").differences(only("y=crop")) == ""


def test_the_name_of_a_view_has_no_part_in_its_texts() -> None:
    assert only("x=crop").salt == only("y=crop").salt
    assert only("x=crop").salt != only("x=crop", seed=1).salt
    assert only("x=crop").salt != only("x=crop:0.2").salt
    assert only("x=crop").salt != only("x=delete-words").salt
