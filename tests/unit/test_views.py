"""Views: recipes, their results on a text, and stored views beside their corpus."""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
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
from embedcache.corpus.view_store import store_view
from embedcache.errors import CorruptCacheError, InputError, MissingExtraError, TeacherError
from embedcache.keys import key_array
from embedcache.testing import fake_teacher, sentences, tiny_encoder
from embedcache.views import models
from embedcache.views.edits import edit_maker, words_of_share
from embedcache.views.models import find_model
from embedcache.views.plan import PlannedView, ViewOptions, plan_views
from embedcache.views.recipe import Kept, Made, Maker, Recipe, parse_views
from embedcache.views.synonyms import synonym_maker

SENTENCES = sentences(200, longest=30)
EDITS = ["crop", "crop:0.5", "delete-words", "delete-words:0.9", "delete-one-word"]


def recipe_of(spec: str, seed: int = 0) -> Recipe:
    (recipe,) = parse_views([spec], seed=seed)
    return recipe


# Recipes


@pytest.mark.parametrize(
    ("spec", "name", "kind", "parameters"),
    [
        ("crop", "crop", "crop", {"share": 0.1}),
        ("crop:share=0.2", "crop-0.2", "crop", {"share": 0.2}),
        ("short=crop:0.5", "short", "crop", {"share": 0.5}),
        (
            "synonym:lexicon=a:1,share=0.3",
            "synonym-0.3-a_1",
            "synonym",
            {"share": 0.3, "senses": 1, "lexicon": "a:1"},
        ),
        ("column:a b/c*4=d:e", "column-a_b_c_4_d_e", "column", {"column": "a b/c*4=d:e"}),
        ("x=back-translation:de,beams=4", "x", "back-translation", {"language": "de", "beams": 4}),
    ],
)
def test_a_spec_is_a_recipe_with_a_name(spec: str, name: str, kind: str, parameters: dict[str, Any]) -> None:
    recipe = recipe_of(spec)
    assert (recipe.name, recipe.kind, recipe.parameters) == (name, kind, parameters)


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
     "crop*0", "synonym:lexicon=tiny", "translation:de*2", "column", "back-translation", "translation:../x",
     "original=crop", "back-translation:de,beams=0", "a" * 101 + "=crop"],
)  # fmt: skip
def test_an_invalid_recipe_is_refused(spec: str) -> None:
    with pytest.raises(InputError, match="view"):
        parse_views([spec])


@given(st.text(max_size=60))
def test_any_text_is_a_recipe_whose_name_can_be_a_folder_or_refused(spec: str) -> None:
    with suppress(InputError):
        for recipe in parse_views([spec, f"column:{spec}"]):
            assert Path(recipe.name).name == recipe.name
            assert recipe.name not in (".", "..")


# Edits


def made(spec: str, texts: list[str], seed: int = 0) -> list[Made]:
    return edit_maker(recipe_of(spec, seed))(texts)


@pytest.mark.parametrize("spec", EDITS)
def test_an_edit_depends_on_the_text_and_the_seed_alone(spec: str) -> None:
    whole = made(spec, SENTENCES)
    assert [one for text in SENTENCES for one in made(spec, [text])] == whole
    assert made(spec, SENTENCES, seed=1) != whole
    assert made(spec, ["", "word", "  word  ", "猫は家を見る", "🐈"]) == [Kept.ONE_WORD] * 5
    (long,) = made(spec, ["слово word 🐈 " * 20_000])
    assert 0 < len(str(long)) < 280_000


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


# Synonyms


@pytest.fixture
def lexicon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[str]:
    """Return the name of a lexicon of a few words: those of the parameter, if there is one."""
    import wn

    # Asking the public property for the old folder would make one in the user's home.
    monkeypatch.setattr(wn.config, "_data_directory", tmp_path)
    monkeypatch.setattr(wn.config, "_dbpath", tmp_path / "wn.db")
    synonyms = getattr(request, "param", view_helpers.SYNONYMS)
    wn.add(view_helpers.lexicon_file(tmp_path, synonyms), progress_handler=None)
    yield "tiny:1"
    wn._db.clear_connections()


def test_synonyms_take_the_place_of_words_with_their_case_and_punctuation(lexicon: str) -> None:
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


@pytest.mark.parametrize("lexicon", [view_helpers.COUNTED], indirect=True)
def test_only_content_words_are_replaced_and_by_what_they_mean_most(lexicon: str) -> None:
    texts = ["He said: are growing men slow?", "The Man", "man", "slowly slowly"]
    found = synonym_maker(recipe_of(f"synonym:0.9,lexicon={lexicon}"))(texts)
    assert found == [Kept.NO_SYNONYM, "The Adult male", "adult male", "tardily tardily"]
    more = synonym_maker(recipe_of(f"synonym:0.9,senses=2,lexicon={lexicon}"))(["man", "man man man man"])
    assert set(" ".join(map(str, more)).replace("adult male", "adult").split()) == {"adult", "valet"}


def test_synonyms_of_all_senses_by_an_earlier_version_are_another_view(lexicon: str, corpus: Corpus) -> None:
    recipe = recipe_of(f"synonym:lexicon={lexicon}")
    parameters = {name: value for name, value in recipe.parameters.items() if name != "senses"}
    old = replace(recipe, parameters=parameters)
    store_view(corpus, old, lambda first_row, texts: list(texts))
    assert corpus.view("synonym-tiny_1").recipe == old
    with pytest.raises(InputError, match="another view"):
        store_view(corpus, recipe, lambda first_row, texts: list(texts))


def test_a_lexicon_or_library_that_is_missing_is_an_error_before_anything_is_written(
    lexicon: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    for spec in ("synonym", f"synonym:lexicon={lexicon}"):
        with pytest.raises((InputError, MissingExtraError), match=r"wn download omw-en:1.4|pip install"):
            embedcache.build(["a text"], teacher=fake_teacher(), cache=cache, views=[spec])
        assert not cache.exists()
        monkeypatch.setitem(sys.modules, "wn", None)


# Models

READ = [*sentences(10, longest=16), "The Cat (sees) a House!", "CAT"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the folders of tiny models."""
    root = tmp_path_factory.mktemp("models")
    return {
        "masked": view_helpers.masked_model(root / "masked"),
        "en-de": view_helpers.translator(root / "en-de", seed=2),
        "de-en": view_helpers.translator(root / "de-en", seed=3),
    }


def planned(spec: str, folders: dict[str, Path], *, seed: int = 0) -> PlannedView:
    roles = [] if "translation" not in spec else ["en-de", "de-en"] if "back" in spec else ["en-de"]
    translators = {role: str(folders[role]) for role in roles}
    mask = None if roles else str(folders["masked"])
    (view,) = plan_views(ViewOptions([spec], seed, mask_model=mask, translators=translators, device="cpu"))
    return view


def maker(spec: str, folders: dict[str, Path], *, seed: int = 0) -> Maker:
    return planned(spec, folders, seed=seed).maker


@pytest.mark.parametrize("spec", ["mask-fill:0.5", "translation:de,beams=2", "back-translation:de"])
def test_batches_and_neighbours_do_not_show(
    spec: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = maker(spec, folders)
    whole = run(READ)
    monkeypatch.setattr(models, "BATCH_TOKENS", 1)
    monkeypatch.setattr(models, "MOST_LOGITS", 1)
    assert run(READ[::-1]) == whole[::-1]
    if spec.startswith("back"):
        there, back = maker("translation:de", folders), maker("translation:de", {"en-de": folders["de-en"]})
        assert [back([one])[0] if isinstance(one, str) else one for one in there(READ)] == whole
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


def test_a_recipe_carries_the_digests_of_its_models(folders: dict[str, Path], tmp_path: Path) -> None:
    digests = {name: find_model(str(folder)).digest for name, folder in folders.items()}
    assert planned("mask-fill", folders).recipe.models == {"mask-fill": digests["masked"]}
    back = planned("back-translation:de", folders).recipe.models
    assert list(back.items()) == [("en-de", digests["en-de"]), ("de-en", digests["de-en"])]
    # How a model decodes and what it reads count as much as its weights; its place does not.
    for name in ("README.md", "generation_config.json", "tokenizer.json"):
        copy = shutil.copytree(folders["en-de"], tmp_path / name)
        value = json.loads((copy / name).read_text()) if (copy / name).exists() else {}
        (copy / name).write_text(json.dumps({**value, "repetition_penalty": 2.0, "version": "9"}))
        assert (find_model(str(copy)).digest == digests["en-de"]) == (name == "README.md")


def test_a_model_that_cannot_do_its_work_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    plain = str(tiny_encoder(tmp_path / "plain", plain=True))
    for options in (
        ViewOptions(["mask-fill"], mask_model=plain),
        ViewOptions(["translation:de"], translators={"en-de": plain}),
    ):
        (view,) = plan_views(options)
        with pytest.raises(TeacherError, match=r"random|cannot load"):
            view.maker([])
    for missing in (tmp_path / "none", tmp_path):
        with pytest.raises(TeacherError):
            plan_views(ViewOptions(["mask-fill"], mask_model=str(missing)))
    translators = {"en-de": str(folders["en-de"]), "de-fr": "somewhere/else"}
    with pytest.raises(InputError, match="translators de-fr"):
        plan_views(ViewOptions(["translation:de"], translators=translators))


# Translators of several languages


@pytest.fixture
def generated(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[int], list[int]]]:
    """Return the tokens that models read and write, one pair a batch, which fills as they run."""
    from transformers import GenerationMixin

    seen: list[tuple[list[int], list[int]]] = []
    generate = GenerationMixin.generate

    def spy(self: Any, **settings: Any) -> Any:
        written = generate(self, **settings)
        seen.append((settings["input_ids"][0].tolist(), written[0].tolist()))
        return written

    monkeypatch.setattr(GenerationMixin, "generate", spy)
    return seen


@pytest.mark.parametrize(
    ("family", "language", "via", "codes"),
    [
        ("mbart", "en", "de", ("en_XX", "de_DE")),
        ("mbart50", "en", "de_DE", ("en_XX", "de_DE")),
        ("m2m100", "en", "de", ("__en__", "__de__")),
        ("nllb", "eng", "deu_Latn", ("eng_Latn", "deu_Latn")),
    ],
)
def test_a_translator_of_several_languages_reads_and_writes_those_of_the_view(
    family: str, language: str, via: str, codes: tuple[str, str], tmp_path: Path, generated: list[Any]
) -> None:
    from transformers import AutoTokenizer

    folder = str(view_helpers.multilingual(tmp_path / family, family))
    pairs = [f"{language}-{via}", f"{via}-{language}"]
    options = ViewOptions(
        [f"back-translation:{via}"], language=language, translators=dict.fromkeys(pairs, folder), device="cpu"
    )
    (view,) = plan_views(options)
    assert list(view.recipe.models) == pairs
    texts = view.maker(["cat", "a", "the", "CAT"])
    assert not any(code in str(text) for text in texts for code in codes)
    tokens = AutoTokenizer.from_pretrained(folder).convert_ids_to_tokens
    # The first mBART has the language behind the text, and starts with the one to write.
    source, target = (-1, 0) if family == "mbart" else (0, 1)
    found = {(tokens(read)[source], tokens(written)[target]) for read, written in generated}
    assert found == {codes, codes[::-1]}


def test_a_marian_model_of_several_languages_is_told_which(tmp_path: Path, generated: list[Any]) -> None:
    folder = str(view_helpers.multilingual(tmp_path / "marian", "marian"))
    for language in ("deu", "fra"):
        (view,) = plan_views(
            ViewOptions([f"translation:{language}"], translators={f"en-{language}": folder}, device="cpu")
        )
        view.maker(["the cat"])
    # The numbers that the vocabulary begins with.
    assert [read[0] for read, _ in generated] == [4, 5]


@pytest.mark.parametrize(
    ("family", "pair", "near"),
    [("mbart50", "en-deu", "de_DE"), ("nllb", "en-deu", "eng_Latn"), ("marian", "en-fr", "fra")],
)
def test_a_language_that_a_translator_does_not_know_is_an_error_with_near_ones(
    family: str, pair: str, near: str, tmp_path: Path
) -> None:
    folder = str(view_helpers.multilingual(tmp_path / family, family))
    spec = f"translation:{pair.partition('-')[2]}"
    (view,) = plan_views(ViewOptions([spec], translators={pair: folder}, device="cpu"))
    with pytest.raises(InputError, match=rf"near: .*{near}.*ViewOptions.language"):
        view.maker([])


# Stored views


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    """Return a corpus of several parts, whose views are made in chunks of three rows."""
    corpus_helpers.small_parts(monkeypatch)
    monkeypatch.setattr(view_store, "CHUNK_ROWS", 3)
    return stored(tmp_path / "corpora", TEXTS, IDS, LABELS)


def crop(corpus: Corpus, *, seed: int = 0, spec: str = "crop", **settings: Any) -> tuple[View, bool]:
    recipe = recipe_of(spec, seed)
    return store_view(corpus, recipe, lambda first_row, texts: edit_maker(recipe)(texts), **settings)


def expected(seed: int = 0) -> list[str]:
    news = zip(TEXTS, made("crop", TEXTS, seed), strict=True)
    return [text if isinstance(new, Kept) else new for text, new in news]


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
def test_damage_is_found_and_replacing_repairs_it(corpus: Corpus, name: str) -> None:
    crop(corpus)
    before = content(corpus.folder)
    path = sorted((corpus.folder / "views" / "crop").glob(name))[0]
    data = path.read_bytes()
    path.write_bytes(data[:-40] + bytes([data[-40] ^ 1]) + data[-39:])
    with pytest.raises(CorruptCacheError, match=rf"crop.*cache {corpus.folder.parent.parent}'"):
        corpus.view("crop").texts()
    crop(corpus, replace=True)
    assert content(corpus.folder) == before
    path.unlink()
    # A missing file is made again without being asked, but for the description of a view that is there.
    crop(corpus, replace=name == "corpus.json")
    assert content(corpus.folder) == before


@pytest.mark.parametrize("was_there", [False, True])
def test_killed_at_any_step_a_view_is_the_old_the_new_or_missing_and_the_same_call_finishes(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was_there: bool
) -> None:
    steps, step = 200, 0
    while step < steps:
        cut = Corpus(Path(shutil.copytree(corpus.folder, tmp_path / str(step) / "corpus")))
        if was_there:
            crop(cut)
        monkeypatch.setattr(fsio, "on_write_step", Failing(step, KeyboardInterrupt()))
        with suppress(KeyboardInterrupt):
            crop(cut, seed=1, replace=True)
            steps = step
        monkeypatch.setattr(fsio, "on_write_step", None)
        seen = {one.recipe.seed: one.texts() for one in map(cut.view, cut.view_names())}
        assert seen in ({}, {1: expected(seed=1)}, {0: expected()} if was_there else {})
        assert crop(cut, seed=1, replace=True)[0].texts() == expected(seed=1)
        step += 3
    assert 10 < steps < 200


def test_finished_chunks_of_a_model_survive_a_kill_unless_damaged(corpus: Corpus) -> None:
    recipe, seen, deadly = recipe_of("crop"), Counter[int](), [7]

    def make(first_row: int, texts: list[str]) -> list[Made]:
        if first_row in deadly:
            raise KeyboardInterrupt
        seen[first_row] += 1
        return edit_maker(recipe)(texts)

    with pytest.raises(KeyboardInterrupt):
        store_view(corpus, recipe, make, keep_drafts=True)
    damaged, *_ = drafts = sorted((corpus.folder / "views" / "crop").glob(".tmp-draft-*"))
    damaged.write_bytes(damaged.read_bytes().replace(b'"', b"'", 1))
    deadly.clear()
    assert store_view(corpus, recipe, make, keep_drafts=True)[0].texts() == expected()
    assert sorted(seen.values()) == [1, 1, 1, 1, 2]
    assert not any(draft.exists() for draft in drafts)
