"""Views: recipes, what they make of a text, and how views are stored beside their corpus."""

from __future__ import annotations

import errno
import json
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import corpus_helpers
import numpy as np
import pytest
import view_helpers
from corpus_helpers import IDS, LABELS, TEXTS, Failing, content, stored
from hypothesis import given
from hypothesis import strategies as st

import embedcache
from embedcache import fsio
from embedcache.corpus import view_store
from embedcache.corpus.corpus import Corpus, View
from embedcache.corpus.view_store import MakeRows, store_view
from embedcache.errors import (
    CacheFormatError,
    CorruptCacheError,
    InputError,
    MissingExtraError,
    StorageError,
    TeacherError,
)
from embedcache.fsio import read_sealed_json, write_sealed_json
from embedcache.keys import key_array
from embedcache.testing import fake_teacher, sentences, tiny_encoder
from embedcache.views import models
from embedcache.views.edits import Draw, edit_maker, put, words_of_share
from embedcache.views.models import find_model
from embedcache.views.plan import PlannedView, ViewOptions, plan_views
from embedcache.views.recipe import KINDS, Kept, Made, Maker, Recipe, parse_views
from embedcache.views.synonyms import synonym_maker

SENTENCES = sentences(200, longest=30)
EDITS = ["crop", "crop:0.5", "delete-words", "delete-words:0.9", "delete-one-word"]


def recipe_of(spec: str, seed: int = 0, **settings: Any) -> Recipe:
    (recipe,) = parse_views([spec], seed=seed, **settings)
    return recipe


# --- recipes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "name", "kind", "parameters"),
    [
        ("crop", "crop", "crop", {"share": 0.1}),
        ("crop:share=0.2", "crop-0.2", "crop", {"share": 0.2}),
        ("short=crop:0.5", "short", "crop", {"share": 0.5}),
        ("delete-one-word", "delete-one-word", "delete-one-word", {}),
        ("synonym:lexicon=a:1,share=0.3", "synonym-0.3-a_1", "synonym", {"share": 0.3, "lexicon": "a:1"}),
        ("column:a b/c*4=d:e", "column-a_b_c_4_d_e", "column", {"column": "a b/c*4=d:e"}),
        ("translation:de", "translation-de", "translation", {"language": "de", "beams": 1}),
        ("x=back-translation:de,beams=4", "x", "back-translation", {"language": "de", "beams": 4}),
    ],
)
def test_a_spec_is_a_recipe_with_a_name(spec: str, name: str, kind: str, parameters: dict[str, Any]) -> None:
    recipe = recipe_of(spec)
    assert (recipe.name, recipe.kind, recipe.parameters) == (name, kind, parameters)
    assert list(recipe.parameters) == list(KINDS[kind].arguments)
    assert (recipe.seed, recipe.sample) == (0 if KINDS[kind].random else None, 0)


def test_a_star_asks_for_samples_that_differ_in_nothing_else() -> None:
    recipes = parse_views(["crop:0.2*3"], seed=7)
    assert [one.name for one in recipes] == ["crop-0.2-1", "crop-0.2-2", "crop-0.2-3"]
    assert [(one.seed, one.sample) for one in recipes] == [(7, 1), (7, 2), (7, 3)]
    assert len({one.salt for one in recipes}) == 3
    # More of them later leave those that are there as they are.
    assert parse_views(["crop:0.2*5"], seed=7)[:3] == recipes


@pytest.mark.parametrize(
    "spec",
    ["", "cropp", "=crop", "crop:", "crop:1", "crop:nan", "crop:0.1,0.2", "crop:beams=2", "delete-one-word:2",
     "crop*0", "synonym:lexicon=tiny", "translation:de*2", "column", "column:", "back-translation",
     "translation:../x", "original=crop", "back-translation:de,beams=0", "a" * 101 + "=crop",
     "column:" + "a" * 101],
)  # fmt: skip
def test_what_is_no_recipe_is_refused(spec: str) -> None:
    with pytest.raises(InputError, match="view"):
        parse_views([spec])


def test_views_of_one_name_and_seeds_that_cannot_be_stored_are_refused() -> None:
    for specs in (["crop", "crop"], ["crop*2", "crop-1=delete-words"], ["column:a b", "column:a_b"]):
        with pytest.raises(InputError, match="two views"):
            parse_views(specs)
    for seed in (-1, 1 << 63):
        with pytest.raises(InputError, match="seed"):
            parse_views(["crop"], seed=seed)


@given(st.text(max_size=60))
def test_any_text_is_a_recipe_or_refused_in_words(spec: str) -> None:
    with suppress(InputError):
        for recipe in parse_views([spec, f"column:{spec}"]):
            # It becomes the name of a folder.
            assert Path(recipe.name).name == recipe.name
            assert recipe.name not in (".", "..")


def test_recipes_that_make_other_texts_differ_and_names_do_not_count() -> None:
    salts = [recipe_of(spec, seed).salt for spec, seed in (("y=crop", 0), ("crop:0.2", 0), ("crop", 1))]
    assert recipe_of("x=crop").salt == salts[0]
    assert len(set(salts)) == 3
    assert recipe_of("crop").describe() == "crop, share 0.1, seed 0"
    assert "\x1b" not in recipe_of("x=column:\x1b[2J").describe()


# --- edits -----------------------------------------------------------------------------------------------


def made(spec: str, texts: list[str], seed: int = 0) -> list[Made]:
    return edit_maker(recipe_of(spec, seed))(texts)


@pytest.mark.parametrize("spec", EDITS)
def test_an_edit_depends_on_the_text_and_the_seed_alone(spec: str) -> None:
    whole = made(spec, SENTENCES)
    assert [one for text in SENTENCES for one in made(spec, [text])] == whole
    assert made(spec, SENTENCES[::-1]) == whole[::-1]
    assert made(spec, SENTENCES, seed=1) != whole
    assert made(spec, ["", "word", "  word  ", "猫は家を見る", "🐈"]) == [Kept.ONE_WORD] * 5
    (long,) = made(spec, ["слово word 🐈 " * 20_000])
    assert 0 < len(str(long)) < 280_000


def test_the_texts_of_a_recipe_never_change() -> None:
    # Caches hold them: another text for the same recipe would be another view under an old name.
    text = "one two three four five six seven eight nine ten eleven twelve"
    assert made("crop:0.3", [text]) == ["three four five six seven eight nine ten"]
    assert made("delete-words:0.3", [text]) == ["two three four five six seven nine ten"]
    assert made("delete-one-word", [text], seed=3) == [
        "one two three four five six seven nine ten eleven twelve"
    ]


@given(st.text(max_size=200), st.sampled_from(EDITS), st.integers(0, 1 << 62))
def test_some_words_go_and_the_others_keep_their_order(text: str, spec: str, seed: int) -> None:
    words = text.split()
    (new,) = made(spec, [text], seed)
    if len(words) < 2:
        assert new is Kept.ONE_WORD
        return
    left = str(new).split()
    share = float(recipe_of(spec).parameters.get("share", 0.0))
    assert len(words) - len(left) == min(max(int(share * len(words) + 0.5), 1), len(words) - 1)
    rest = iter(words)
    assert all(word in rest for word in left)
    if spec.startswith("crop"):
        assert any(words[start : start + len(left)] == left for start in range(len(words)))


def test_draws_are_even_and_samples_have_no_number_twice() -> None:
    draw = Draw(b"salt", "text")
    numbers = [draw.below(10) for _ in range(20_000)]
    assert all(abs(count - 2000) < 250 for count in Counter(numbers).values())
    assert numbers[:8] != numbers[8:16]
    for count, size in ((1, 0), (1, 1), (300, 300), (300, 7)):
        found = Draw(b"salt", str(count)).sample(count, size)
        assert len(set(found)) == len(found) == size
        assert all(0 <= number < count for number in found)


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


# --- synonyms --------------------------------------------------------------------------------------------


@pytest.fixture
def lexicon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the name of a lexicon of a few words."""
    import wn

    # Asking the public property for the old folder would make one in the user's home.
    monkeypatch.setattr(wn.config, "_data_directory", tmp_path)
    monkeypatch.setattr(wn.config, "_dbpath", tmp_path / "wn.db")
    wn.add(view_helpers.lexicon_file(tmp_path), progress_handler=None)
    yield "tiny:1"
    wn._db.clear_connections()


def test_synonyms_take_the_place_of_words(lexicon: str) -> None:
    make = synonym_maker(recipe_of(f"synonym:0.5,lexicon={lexicon}"))
    found = make(["A Small CAT (sees) the house.", "nothing here", "roads", "road", "", "the cats"])
    words = str(found[0]).split()
    assert words[1] in ("Little", "Tiny")
    assert words[2] in ("PUSS", "KITTY")
    assert [words[0], *words[3:]] == ["A", "(sees)", "the", "home", "base."]
    assert found[1:] == [Kept.NO_SYNONYM, Kept.NO_SYNONYM, "route", Kept.NO_SYNONYM, Kept.NO_SYNONYM]
    samples = [synonym_maker(one) for one in parse_views([f"synonym:0.3,lexicon={lexicon}*4"])]
    texts = [text for text in SENTENCES if "small" in text or "cat" in text]
    assert len({tuple(make(texts)) for make in samples}) == 4
    assert samples[0](texts[::-1]) == samples[0](texts)[::-1]


def test_a_lexicon_or_library_that_is_missing_is_an_error_before_anything_is_written(
    lexicon: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    for spec in ("synonym", f"synonym:lexicon={lexicon}"):
        with pytest.raises((InputError, MissingExtraError), match=r"wn download oewn:2024|pip install"):
            embedcache.build(["a text"], teacher=fake_teacher(), cache=cache, views=[spec])
        assert not cache.exists()
        monkeypatch.setitem(sys.modules, "wn", None)


# --- models ----------------------------------------------------------------------------------------------

READ = [*sentences(24, longest=16), "The Cat (sees) a House!", "CAT"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the folders of tiny models."""
    root = tmp_path_factory.mktemp("models")
    return {
        "masked": view_helpers.masked_model(root / "masked"),
        "other": view_helpers.masked_model(root / "other", seed=1),
        "en-de": view_helpers.translator(root / "en-de", seed=2),
        "de-en": view_helpers.translator(root / "de-en", seed=3),
    }


def planned(spec: str, folders: dict[str, Path], *, seed: int = 0) -> PlannedView:
    roles = [] if "translation" not in spec else ["en-de", "de-en"] if "back" in spec else ["en-de"]
    translators = {role: str(folders[role]) for role in roles}
    (view,) = plan_views(
        ViewOptions([spec], seed, mask_model=str(folders["masked"]), translators=translators, device="cpu")
    )
    return view


def maker(spec: str, folders: dict[str, Path], *, seed: int = 0) -> Maker:
    return planned(spec, folders, seed=seed).maker


@pytest.mark.parametrize(
    "spec", ["mask-fill", "mask-fill:0.5", "translation:de", "translation:de,beams=2", "back-translation:de"]
)
def test_batches_and_neighbours_do_not_show(
    spec: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = maker(spec, folders)
    whole = run(READ)
    monkeypatch.setattr(models, "BATCH_TOKENS", 1)
    monkeypatch.setattr(models, "MOST_LOGITS", 1)
    assert run(READ) == whole
    assert run(READ[::-1]) == whole[::-1]
    assert [one for text in READ[:8] for one in run([text])] == whole[:8]
    assert len(set(whole)) > len(whole) / 4
    assert not any(isinstance(one, str) and not one.strip() for one in whole)


def test_masked_words_are_replaced_by_others_and_nothing_else_is_touched(folders: dict[str, Path]) -> None:
    for text, new in zip(READ, maker("mask-fill:0.2", folders)(READ), strict=True):
        words = text.split()
        changed = [(a, b) for a, b in zip(words, str(new).split(), strict=True) if a != b]
        numbers = sum(word.isdigit() for word in words)
        assert 1 <= len(changed) == min(words_of_share(len(words), 0.2), len(words) - numbers)
        for old, put_in in changed:
            assert old.strip("()!").casefold() != put_in.strip("()!").casefold()
            assert put_in.strip("()!").isalpha()
            assert [one for one in old if one in "()!"] == [one for one in put_in if one in "()!"]
            assert old.strip("()!")[0].isupper() == put_in.strip("()!")[0].isupper()
    assert maker("mask-fill", folders, seed=1)(READ) != maker("mask-fill", folders)(READ)


def test_what_a_model_cannot_read_stays(folders: dict[str, Path]) -> None:
    mask = maker("mask-fill", folders)
    assert mask(["!!!", "123 456", "", "the [MASK] cat", "🐈 🐎"]) == [Kept.NOTHING_TO_MASK] * 5
    # Of a long text words of the beginning are masked.
    text = " ".join(f"{word} cat" for word in sentences(5_000))
    (new,) = mask([text])
    changed = [
        place for place, (a, b) in enumerate(zip(text.split(), str(new).split(), strict=True)) if a != b
    ]
    assert changed
    assert max(changed) < 64
    translated = maker("translation:de", folders)(["cat " * 23, "cat " * 24, "cat " * 50_000])
    assert isinstance(translated[0], str)
    assert translated[1:] == [Kept.TOO_LONG, Kept.TOO_LONG]


def test_there_and_back_is_one_after_the_other(folders: dict[str, Path]) -> None:
    there = maker("translation:de", folders)(READ)
    swapped = {**folders, "en-de": folders["de-en"]}
    back = iter(maker("translation:de", swapped)([one for one in there if isinstance(one, str)]))
    expected = [next(back) if isinstance(one, str) else one for one in there]
    assert maker("back-translation:de", folders)(READ) == expected


def test_a_recipe_carries_the_digests_of_its_models(folders: dict[str, Path], tmp_path: Path) -> None:
    digests = {name: find_model(str(folder)).digest for name, folder in folders.items()}
    assert len(set(digests.values())) == 4
    copy = shutil.copytree(folders["masked"], tmp_path / "copy")
    assert planned("mask-fill", {"masked": copy}).recipe.models == {"mask-fill": digests["masked"]}
    back = planned("back-translation:de", folders).recipe.models
    assert list(back.items()) == [("en-de", digests["en-de"]), ("de-en", digests["de-en"])]
    # How a model decodes and what it reads count as much as its weights.
    for name in ("generation_config.json", "tokenizer.json"):
        changed = shutil.copytree(folders["en-de"], tmp_path / name)
        value = json.loads((changed / name).read_text())
        (changed / name).write_text(json.dumps({**value, "repetition_penalty": 2.0, "version": "9"}))
        assert find_model(str(changed)).digest != digests["en-de"]


def test_a_model_that_cannot_do_its_work_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    plain = str(tiny_encoder(tmp_path / "plain", plain=True))
    (tmp_path / "empty").mkdir()
    for options in (
        ViewOptions(["mask-fill"], mask_model=plain),
        ViewOptions(["translation:de"], translators={"en-de": plain}),
    ):
        (view,) = plan_views(options)
        with pytest.raises(TeacherError, match=r"random|cannot load"):
            view.maker([])
    for missing in (tmp_path / "none", tmp_path / "empty"):
        with pytest.raises(TeacherError):
            plan_views(ViewOptions(["mask-fill"], mask_model=str(missing)))
    translators = {"en-de": str(folders["en-de"]), "de-fr": "somewhere/else"}
    with pytest.raises(InputError, match="translators de-fr"):
        plan_views(ViewOptions(["translation:de"], translators=translators))
    (view,) = plan_views(
        ViewOptions(["translation:en"], language="de", translators={"de-en": str(folders["de-en"])})
    )
    assert list(view.recipe.models) == ["de-en"]


# --- stored views ----------------------------------------------------------------------------------------


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    """Return a corpus of several parts, whose views are made in chunks of three rows."""
    corpus_helpers.small_parts(monkeypatch)
    monkeypatch.setattr(view_store, "CHUNK_ROWS", 3)
    return stored(tmp_path / "corpora", TEXTS, IDS, LABELS)


def make_by(recipe: Recipe) -> MakeRows:
    maker = edit_maker(recipe)
    return lambda first_row, texts: maker(texts)


def crop(corpus: Corpus, *, seed: int = 0, spec: str = "crop", **settings: Any) -> tuple[View, bool]:
    recipe = recipe_of(spec, seed)
    return store_view(corpus, recipe, make_by(recipe), **settings)


def expected(spec: str = "crop", seed: int = 0) -> list[str]:
    news = zip(TEXTS, made(spec, TEXTS, seed), strict=True)
    return [text if isinstance(new, Kept) else new for text, new in news]


def never(first_row: int, texts: list[str]) -> list[Made]:
    raise AssertionError("made again")


def test_a_view_is_read_as_a_corpus_is_and_leaves_the_corpus_as_it_was(corpus: Corpus) -> None:
    before = content(corpus.folder)
    view, was_there = crop(corpus)
    assert not was_there
    opened = Corpus(corpus.folder).view("crop")
    assert opened.texts() == view.texts() == expected() != TEXTS
    rows = np.array([9, 0, 4])
    assert (opened.keys_of(rows) == key_array([expected()[row] for row in rows])).all()
    assert (opened.recipe, opened.record.of) == (recipe_of("crop"), corpus.info.digest)
    assert opened.record.counts == {"changed": 10}
    assert content(corpus.folder).items() >= before.items()
    crop(corpus, spec="a=crop:0.5")
    assert corpus.view_names() == ["a", "crop"]
    for name in ("../a", "none"):
        with pytest.raises(InputError, match=r"a, crop"):
            corpus.view(name)


def test_the_same_again_writes_nothing_and_makes_nothing(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    crop(corpus)
    monkeypatch.setattr(fsio, "on_write_step", Failing(0))
    assert store_view(corpus, recipe_of("crop"), never)[1]


def test_another_recipe_of_the_same_name_is_refused_or_replaces(corpus: Corpus) -> None:
    crop(corpus)
    before = content(corpus.folder)
    with pytest.raises(InputError, match=r"'crop'.*seed 0, not .*seed 1.*overwrite"):
        crop(corpus, seed=1)
    assert content(corpus.folder) == before
    assert not crop(corpus, seed=1, replace=True)[1]
    assert corpus.view("crop").texts() == expected(seed=1)


def test_a_column_is_read_again_and_what_changed_is_noticed(corpus: Corpus) -> None:
    def cells(prefix: str) -> MakeRows:
        return lambda first_row, texts: [Kept.EMPTY_CELL, *(f"{prefix} {text}" for text in texts[1:])]

    recipe = recipe_of("column:fr")
    view, _ = store_view(corpus, recipe, cells("old"))
    assert view.record.counts == {"changed": 5, "empty cell": 5}
    assert view.texts()[:2] == [TEXTS[0], f"old {TEXTS[1]}"]
    before = content(corpus.folder)
    assert store_view(corpus, recipe, cells("old"))[1]
    with pytest.raises(InputError, match="overwrite"):
        store_view(corpus, recipe, cells("new"))
    assert corpus.view(recipe.name).texts() == view.texts()
    assert content(corpus.folder).items() >= before.items()
    view, was_there = store_view(corpus, recipe, cells("new"), replace=True)
    assert not was_there
    assert view.texts()[1] == f"new {TEXTS[1]}"


def test_a_view_of_other_rows_or_labels_is_never_read(tmp_path: Path, corpus: Corpus) -> None:
    crop(corpus)
    changed = stored(tmp_path / "corpora", TEXTS, IDS, LABELS[::-1], replace=True)
    assert changed.views() == []
    with pytest.raises(InputError, match="other rows"):
        changed.view("crop")
    view, was_there = crop(changed, seed=5)
    assert not was_there
    assert view.record.of == changed.info.digest


@pytest.mark.parametrize("name", ["recipe.json", "corpus.json", "*.arrow"])
@pytest.mark.parametrize("damage", ["flip", "gone"])
def test_damage_is_found_and_replacing_mends_it(corpus: Corpus, name: str, damage: str) -> None:
    crop(corpus)
    before = content(corpus.folder)
    path = sorted((corpus.folder / "views" / "crop").glob(name))[0]
    data = path.read_bytes()
    path.unlink()
    if damage == "flip":
        path.write_bytes(data[:-40] + bytes([data[-40] ^ 1]) + data[-39:])
    if (name, damage) == ("recipe.json", "gone"):
        assert corpus.view_names() == []
    else:
        with pytest.raises(CorruptCacheError, match=rf"crop.*--cache {corpus.folder.parent.parent}'"):
            corpus.view("crop").texts()
    # A missing part is made again without being asked.
    crop(corpus, replace=(name, damage) != ("*.arrow", "gone"))
    assert content(corpus.folder) == before


STRANGE = [
    {"name": "../x"},
    {"name": "original"},
    {"kind": "a\nb"},
    {"kind": "column"},
    {"parameters": {"share": [1]}},
    {"parameters": {"share": True}},
    {"seed": "0"},
    {"sample": None},
    {"models": {"\x1b[2J": "x"}},
    {"more": 1},
]


@pytest.mark.parametrize("number", range(len(STRANGE)))
def test_a_recipe_of_a_stranger_is_not_trusted(corpus: Corpus, number: int) -> None:
    path = crop(corpus)[0].folder / "recipe.json"
    value = read_sealed_json(path)
    value["recipe"].update(STRANGE[number])
    write_sealed_json(path, value)
    with pytest.raises(CorruptCacheError, match=r"recipe\.json is damaged"):
        corpus.view("crop")


def test_rows_of_one_recipe_never_go_by_the_name_of_another(corpus: Corpus, tmp_path: Path) -> None:
    crop(corpus, spec="x=crop")
    crop(corpus, spec="y=delete-words")
    views = corpus.folder / "views"
    recipe = (views / "x" / "recipe.json").read_bytes()
    shutil.rmtree(views / "x")
    shutil.copytree(views / "y", views / "x")
    with pytest.raises(CorruptCacheError, match="a view called 'y'"):
        corpus.view("x")
    (views / "x" / "recipe.json").write_bytes(recipe)
    with pytest.raises(CorruptCacheError, match="a corpus called 'y'"):
        corpus.view("x")
    (views / "y").rename(tmp_path / "elsewhere")
    (views / "y").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CacheFormatError, match="symbolic link"):
        corpus.view("y")


@pytest.mark.parametrize(
    ("error", "keep_drafts"), [(OSError(errno.ENOSPC, "full"), True), (KeyboardInterrupt(), False)]
)
def test_killed_at_any_step_of_writing_the_same_call_ends_with_the_same_bytes(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, keep_drafts: bool
) -> None:
    whole = stored(tmp_path / "whole", TEXTS[-6:])
    counting = Failing(-1)
    monkeypatch.setattr(fsio, "on_write_step", counting)
    crop(whole, keep_drafts=keep_drafts)
    assert counting.steps > 10
    for step in range(0, counting.steps, 3):
        cut = stored(tmp_path / "cut" / str(step), TEXTS[-6:])
        monkeypatch.setattr(fsio, "on_write_step", Failing(step, error))
        with pytest.raises((StorageError, KeyboardInterrupt)):
            crop(cut, keep_drafts=keep_drafts)
        monkeypatch.setattr(fsio, "on_write_step", None)
        # Until it is complete it is not there.
        if cut.view_names():
            assert cut.view("crop").texts() == whole.view("crop").texts()
        crop(cut, keep_drafts=keep_drafts)
        left = content(cut.folder)
        assert {name: left[name] for name in left if ".tmp-" not in name} == content(whole.folder)


@pytest.mark.parametrize("step", range(0, 40, 3))
def test_killed_while_it_is_replaced_a_view_is_the_old_the_new_or_not_there(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    crop(corpus)
    monkeypatch.setattr(fsio, "on_write_step", Failing(step))
    with suppress(StorageError):
        crop(corpus, seed=1, replace=True)
    monkeypatch.setattr(fsio, "on_write_step", None)
    seen = {one.recipe.seed: one.texts() for one in map(corpus.view, corpus.view_names())}
    assert seen in ({}, {0: expected()}, {1: expected(seed=1)})
    assert crop(corpus, seed=1, replace=True)[0].texts() == expected(seed=1)


@pytest.mark.parametrize("damage", [False, True])
def test_what_a_model_made_before_a_kill_is_not_made_again_unless_damaged(
    corpus: Corpus, damage: bool
) -> None:
    recipe, seen, deadly = recipe_of("crop"), Counter[int](), [7]

    def make(first_row: int, texts: list[str]) -> list[Made]:
        if first_row in deadly:
            raise KeyboardInterrupt
        seen[first_row] += 1
        return edit_maker(recipe)(texts)

    with pytest.raises(KeyboardInterrupt):
        store_view(corpus, recipe, make, keep_drafts=True)
    assert corpus.view_names() == []
    drafts = sorted((corpus.folder / "views" / "crop").glob(".tmp-draft-*"))
    assert len(drafts) == 3
    if damage:
        drafts[0].write_bytes(drafts[0].read_bytes().replace(b'"', b"'", 1))
    deadly.clear()
    view, _ = store_view(corpus, recipe, make, keep_drafts=True)
    assert sorted(seen.values()) == [1] * (5 - damage) + [2] * damage
    assert not list(view.folder.glob(".tmp-*"))
    assert view.texts() == expected()
