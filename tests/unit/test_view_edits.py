"""Crop and deletion: which words go depends on the text and the recipe, and never do all of them."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedcache.testing import sentences
from embedcache.views.edits import edit_maker
from embedcache.views.kept import Kept, Made
from embedcache.views.recipe import parse_views
from embedcache.views.stream import Draws
from embedcache.views.words import put, words_of_share

TEXTS = sentences(300, longest=30)
SPECS = ["crop", "crop:0.5", "delete-words", "delete-words:0.9", "delete-one-word"]


def made(spec: str, texts: list[str], seed: int = 0) -> list[Made]:
    (recipe,) = parse_views([spec], seed=seed)
    return edit_maker(recipe)(texts)


@pytest.mark.parametrize("spec", SPECS)
def test_a_text_is_made_the_same_whatever_stands_beside_it(spec: str) -> None:
    whole = made(spec, TEXTS)
    assert [one for text in TEXTS for one in made(spec, [text])] == whole
    assert made(spec, TEXTS[::-1]) == whole[::-1]
    assert made(spec, TEXTS, seed=1) != whole


@given(st.text(max_size=200), st.sampled_from(SPECS), st.integers(0, 1 << 62))
def test_some_words_go_and_the_others_keep_their_order(text: str, spec: str, seed: int) -> None:
    words = text.split()
    (new,) = made(spec, [text], seed)
    if len(words) < 2:
        assert new is Kept.ONE_WORD
        return
    assert isinstance(new, str)
    left = new.split()
    assert 0 < len(left) < len(words)
    rest = iter(words)
    assert all(word in rest for word in left)
    if spec.startswith("crop"):
        assert any(words[start : start + len(left)] == left for start in range(len(words)))


@pytest.mark.parametrize(
    ("spec", "words", "left"),
    [
        ("crop", 2, 1),
        ("crop", 10, 9),
        ("crop", 14, 13),
        ("crop", 15, 13),
        ("crop", 100, 90),
        ("crop:0.99", 3, 1),
        ("delete-words", 20, 18),
        ("delete-words", 5, 4),
        ("delete-one-word", 2, 1),
        ("delete-one-word", 50, 49),
    ],
)
def test_how_many_words_are_left(spec: str, words: int, left: int) -> None:
    (new,) = made(spec, [" ".join(str(number) for number in range(words))])
    assert isinstance(new, str)
    assert len(new.split()) == left


@pytest.mark.parametrize("text", ["", "word", "  word  ", "猫は家を見る", "🐈"])
def test_a_text_of_one_word_stays(text: str) -> None:
    assert {one for spec in SPECS for one in made(spec, [text])} == {Kept.ONE_WORD}


def test_a_very_long_text_is_no_problem() -> None:
    text = "слово word 🐈 " * 80_000
    for spec in SPECS:
        (new,) = made(spec, [text])
        assert isinstance(new, str)
        assert 0 < len(new) < len(text)


def test_samples_differ_from_each_other() -> None:
    for kind in ("crop", "delete-words", "delete-one-word"):
        samples = [edit_maker(recipe)(TEXTS) for recipe in parse_views([f"{kind}*4"])]
        for one, other in combinations(samples, 2):
            assert sum(a != b for a, b in zip(one, other, strict=True)) > len(TEXTS) / 4


def test_the_texts_of_a_recipe_never_change() -> None:
    # Caches hold them: another text for the same recipe would be another view under an old name.
    text = "one two three four five six seven eight nine ten eleven twelve"
    assert made("crop:0.3", [text]) == ["three four five six seven eight nine ten"]
    assert made("delete-words:0.3", [text]) == ["two three four five six seven nine ten"]
    assert made("delete-one-word", [text], seed=3) == [
        "one two three four five six seven nine ten eleven twelve"
    ]


def test_every_place_is_as_likely() -> None:
    texts = [f"a b c d {number}" for number in range(4000)]
    gone = Counter(
        min(set("abcd") - set(str(new).split()), default="number") for new in made("delete-one-word", texts)
    )
    assert set(gone) == {"a", "b", "c", "d", "number"}
    assert all(abs(count - 800) < 120 for count in gone.values())


def test_draws_are_even_and_do_not_repeat_themselves() -> None:
    draw = Draws(b"salt").of("text")
    numbers = [draw.below(10) for _ in range(20_000)]
    assert all(abs(count - 2000) < 250 for count in Counter(numbers).values())
    assert numbers[:8] != numbers[8:16]
    assert draw.below(1) == 0


@given(st.integers(1, 300), st.data())
def test_a_sample_has_no_number_twice(count: int, data: st.DataObject) -> None:
    size = data.draw(st.integers(0, count))
    found = Draws(b"salt").of(str(size)).sample(count, size)
    assert len(found) == len(set(found)) == size
    assert all(0 <= number < count for number in found)


@pytest.mark.parametrize(
    ("words", "share", "count"), [(1, 0.1, 1), (14, 0.1, 1), (15, 0.1, 2), (100, 0.15, 15)]
)
def test_a_share_is_rounded_and_at_least_one(words: int, share: float, count: int) -> None:
    assert words_of_share(words, share) == count


@pytest.mark.parametrize(
    ("old", "new", "result"),
    [
        ("cat", "puss", "puss"),
        ("Cat,", "puss", "Puss,"),
        ("(CAT)", "puss", "(PUSS)"),
        ("I", "we", "We"),
        ("--", "puss", "--"),
        ("“Über!”", "über", "“Über!”"),
    ],
)
def test_a_word_takes_the_place_of_another_with_its_punctuation_and_case(
    old: str, new: str, result: str
) -> None:
    words = [old]
    put(words, 0, new)
    assert words == [result]
