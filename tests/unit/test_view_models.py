"""Views by models and by a lexicon: functions of each text, and refusals that say what to install or name."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import view_helpers

from embedcache.errors import InputError, MissingExtraError, TeacherError
from embedcache.testing import sentences, tiny_encoder
from embedcache.views import models as models_module
from embedcache.views.kept import Kept, Made, Maker
from embedcache.views.masked import logits_at, mask_fill_maker
from embedcache.views.models import batches_of_one_length, find_model
from embedcache.views.plan import PlannedView, ViewOptions, plan_views
from embedcache.views.recipe import parse_views
from embedcache.views.synonym import synonym_maker
from embedcache.views.translate import translation_maker

TEXTS = [*sentences(24, longest=16), "The Cat (sees) a House!", "CAT"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {
        "masked": view_helpers.masked_model(root / "masked"),
        "other": view_helpers.masked_model(root / "other", seed=1),
        "en-de": view_helpers.translator(root / "en-de", seed=2),
        "de-en": view_helpers.translator(root / "de-en", seed=3),
    }


@pytest.fixture
def lexicon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    import wn

    # Asking the public property for the old folder would make one in the user's home.
    monkeypatch.setattr(wn.config, "_data_directory", tmp_path)
    monkeypatch.setattr(wn.config, "_dbpath", tmp_path / "wn.db")
    wn.add(view_helpers.lexicon_file(tmp_path), progress_handler=None)
    yield "tiny:1"
    wn._db.clear_connections()


def planned(spec: str, folders: dict[str, Path], *, seed: int = 0) -> list[PlannedView]:
    options = ViewOptions(
        [spec],
        seed=seed,
        mask_model=str(folders["masked"]),
        translators={
            role: str(folders[role])
            for role in ("en-de", "de-en")
            if "translation" in spec and (role == "en-de" or "back" in spec)
        },
        device="cpu",
    )
    return plan_views(options)


def maker(spec: str, folders: dict[str, Path], *, seed: int = 0, batch_tokens: int = 256) -> Maker:
    (view,) = planned(spec, folders, seed=seed)
    if view.recipe.kind == "mask-fill":
        return mask_fill_maker(view.recipe, view.models["mask-fill"], "cpu", batch_tokens=batch_tokens)
    return translation_maker(view.recipe, list(view.models.values()), "cpu", batch_tokens=batch_tokens)


@pytest.mark.parametrize(
    "spec", ["mask-fill", "mask-fill:0.5", "translation:de", "translation:de,beams=2", "back-translation:de"]
)
def test_batches_and_neighbours_do_not_show(spec: str, folders: dict[str, Path]) -> None:
    whole = maker(spec, folders)(TEXTS)
    assert maker(spec, folders, batch_tokens=1)(TEXTS) == whole
    assert maker(spec, folders, batch_tokens=1 << 16)(TEXTS) == whole
    run = maker(spec, folders)
    assert run(TEXTS[::-1]) == whole[::-1]
    assert [one for text in TEXTS[:8] for one in run([text])] == whole[:8]
    assert len(set(whole)) > len(whole) / 4
    assert not any(isinstance(one, str) and not one.strip() for one in whole)


def test_masked_words_are_replaced_by_others_and_nothing_else_is_touched(folders: dict[str, Path]) -> None:
    for text, new in zip(TEXTS, maker("mask-fill:0.2", folders)(TEXTS), strict=True):
        assert isinstance(new, str)
        old_words, new_words = text.split(), new.split()
        changed = [(a, b) for a, b in zip(old_words, new_words, strict=True) if a != b]
        numbers = sum(word.isdigit() for word in old_words)
        assert 1 <= len(changed) == min(max(int(0.2 * len(old_words) + 0.5), 1), len(old_words) - numbers)
        for old, put in changed:
            assert old.strip("()!").casefold() != put.strip("()!").casefold()
            assert put.strip("()!").isalpha()
            # Punctuation stays, and so does the case of the word.
            assert [one for one in old if one in "()!"] == [one for one in put if one in "()!"]
            assert old.strip("()!")[0].isupper() == put.strip("()!")[0].isupper()


@pytest.mark.parametrize("text", ["!!!", "123 456", "", "the [MASK] cat", "🐈 🐎"])
def test_where_there_is_no_word_to_mask_the_text_stays(text: str, folders: dict[str, Path]) -> None:
    assert maker("mask-fill", folders)([text]) == [Kept.NOTHING_TO_MASK]


def test_of_a_long_text_words_of_the_beginning_are_masked(folders: dict[str, Path]) -> None:
    text = " ".join(f"{word} cat" for word in sentences(20_000))
    (new,) = maker("mask-fill", folders)([text])
    assert isinstance(new, str)
    changed = [place for place, (a, b) in enumerate(zip(text.split(), new.split(), strict=True)) if a != b]
    assert changed
    assert max(changed) < 64
    assert maker("mask-fill", folders)(["x" * 1_000_000]) != [""]


@pytest.mark.parametrize("kind", ["Bert", "Roberta", "DistilBert", "Electra", "Albert", "MobileBert"])
def test_only_masks_go_through_the_vocabulary_and_come_out_as_they_would(kind: str) -> None:
    import torch
    import transformers

    sizes = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 16, "max_position_embeddings": 20, "initializer_range": 0.4}
    sizes |= {"embedding_size": 16} if kind in ("Electra", "Albert") else {}
    sizes |= {"embedding_size": 8, "intra_bottleneck_size": 16} if kind == "MobileBert" else {}
    sizes |= {"dim": 16, "n_layers": 1, "n_heads": 2} if kind == "DistilBert" else {}
    config = getattr(transformers, f"{kind}Config")(**sizes)
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        torch.manual_seed(0)
        model = getattr(transformers, f"{kind}ForMaskedLM")(config).eval()
        ids = torch.randint(4, 50, (3, 9))
        where = torch.rand(3, 9) < 0.3
        rows: list[int] = []
        projection = model.get_output_embeddings()
        counter = projection.register_forward_hook(lambda _, __, out: rows.append(out.shape[:-1].numel()))
        some = logits_at(model, ids, where)
        counter.remove()
        whole = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        model.get_output_embeddings = lambda: None
        unnamed = logits_at(model, ids, where)
    torch.testing.assert_close(unnamed, whole[where])
    assert whole.shape == (3, 9, 50), "it is left as it was"
    torch.testing.assert_close(some, whole[where])
    # The head of MobileBERT multiplies with the weights and never calls the layer.
    assert rows == ([] if kind == "MobileBert" else [int(where.sum())])


def test_which_words_are_masked_depends_on_seed_and_sample(folders: dict[str, Path]) -> None:
    made = [tuple(view.maker(TEXTS)) for view in planned("mask-fill*4", folders)]
    assert len(set(made)) == 4
    assert tuple(maker("mask-fill", folders, seed=1)(TEXTS)) != tuple(maker("mask-fill", folders)(TEXTS))


def test_what_a_translator_cannot_read_stays(folders: dict[str, Path]) -> None:
    made = maker("translation:de", folders)(["cat " * 23, "cat " * 24, "cat " * 300_000])
    assert isinstance(made[0], str)
    assert made[1:] == [Kept.TOO_LONG, Kept.TOO_LONG]


def test_there_and_back_is_one_after_the_other(folders: dict[str, Path]) -> None:
    there = maker("translation:de", folders)(TEXTS)
    swapped = {**folders, "en-de": folders["de-en"]}
    back = maker("translation:de", swapped)([one for one in there if isinstance(one, str)])
    rest = iter(back)
    expected: list[Made] = [next(rest) if isinstance(one, str) else one for one in there]
    assert maker("back-translation:de", folders)(TEXTS) == expected


def test_a_recipe_carries_the_digests_of_its_models(folders: dict[str, Path], tmp_path: Path) -> None:
    def digests(mask: Path) -> dict[str, str]:
        (view,) = plan_views(ViewOptions(["mask-fill"], mask_model=str(mask)))
        return dict(view.recipe.models)

    assert digests(folders["masked"]) != digests(folders["other"])
    copy = shutil.copytree(folders["masked"], tmp_path / "copy")
    assert digests(copy) == digests(folders["masked"])
    (back,) = planned("back-translation:de", folders)
    assert list(back.recipe.models) == ["en-de", "de-en"]
    # How a model decodes and what it reads count as much as its weights.
    for name in ("generation_config.json", "tokenizer.json"):
        changed = shutil.copytree(folders["en-de"], tmp_path / name)
        value = json.loads((changed / name).read_text())
        (changed / name).write_text(json.dumps({**value, "repetition_penalty": 2.0, "version": "9"}))
        assert find_model(str(changed)).digest != find_model(str(folders["en-de"])).digest


def test_a_model_without_the_head_it_needs_is_refused(tmp_path: Path) -> None:
    plain = tiny_encoder(tmp_path / "plain", plain=True)
    (view,) = plan_views(ViewOptions(["mask-fill"], mask_model=str(plain)))
    with pytest.raises(TeacherError, match="which would be random: name a model that was trained for this"):
        view.maker([])
    (view,) = plan_views(ViewOptions(["translation:de"], translators={"en-de": str(plain)}))
    with pytest.raises(TeacherError, match="cannot load"):
        view.maker([])


def test_a_model_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TeacherError, match="no alias"):
        plan_views(ViewOptions(["mask-fill"], mask_model=str(tmp_path / "none")))
    (tmp_path / "empty").mkdir()
    with pytest.raises(TeacherError, match="no model folder"):
        plan_views(ViewOptions(["mask-fill"], mask_model=str(tmp_path / "empty")))


def test_a_translator_that_no_view_needs_is_refused(folders: dict[str, Path]) -> None:
    with pytest.raises(InputError, match=r"--translator de-fr=...: no view translates so; they need en-de"):
        plan_views(
            ViewOptions(
                ["translation:de"], translators={"en-de": str(folders["en-de"]), "de-fr": "somewhere/else"}
            )
        )


def test_the_language_of_the_texts_names_the_pair(folders: dict[str, Path]) -> None:
    options = ViewOptions(["translation:en"], language="de", translators={"de-en": str(folders["de-en"])})
    (view,) = plan_views(options)
    assert list(view.recipe.models) == ["de-en"]


def test_texts_of_one_length_share_a_batch() -> None:
    batches: list[list[int]] = []
    batches_of_one_length([3, 1, 3, 2, 3, 0], 6, batches.append)
    assert batches == [[5], [1], [3], [0, 2], [4]]


def test_synonyms_take_the_place_of_words(lexicon: str) -> None:
    (recipe,) = parse_views([f"synonym:0.5,lexicon={lexicon}"])
    make = synonym_maker(recipe)
    made = make(["A Small CAT (sees) the house.", "nothing here", "roads", "road", "", "the cats"])
    assert isinstance(made[0], str)
    words = made[0].split()
    assert words[0] == "A"
    assert words[1] in ("Little", "Tiny")
    assert words[2] in ("PUSS", "KITTY")
    assert words[3:5] == ["(sees)", "the"]
    assert " ".join(words[5:]) == "home base."
    assert made[1:] == [Kept.NO_SYNONYM, Kept.NO_SYNONYM, "route", Kept.NO_SYNONYM, Kept.NO_SYNONYM]


def test_synonyms_are_drawn_by_seed_and_text_alone(lexicon: str) -> None:
    samples = parse_views([f"synonym:0.3,lexicon={lexicon}*4"])
    texts = [text for text in sentences(200) if "small" in text or "cat" in text]
    made = [synonym_maker(recipe)(texts) for recipe in samples]
    assert len({tuple(one) for one in made}) == 4
    make = synonym_maker(samples[0])
    assert make(texts[::-1]) == made[0][::-1]
    assert [one for text in texts for one in make([text])] == made[0]


def test_a_lexicon_that_is_not_there_says_how_to_get_it(lexicon: str) -> None:
    with pytest.raises(InputError, match=r"python -m wn download oewn:2024.*wn.add"):
        plan_views(ViewOptions(["synonym"]))
    with pytest.raises(InputError, match="names no version"):
        plan_views(ViewOptions(["synonym:lexicon=tiny"]))


def test_without_the_library_of_synonyms_its_install_line_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wn", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'embedcache\[views\]'"):
        plan_views(ViewOptions(["synonym"]))


def test_a_tokenizer_without_its_library_tells_the_install_line(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    def without(*arguments: object, **settings: object) -> None:
        raise ImportError("it needs sentencepiece\nand more")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", without)
    with pytest.raises(MissingExtraError, match=r"sentencepiece\); run: pip install 'embedcache\[views\]'"):
        models_module.load_model(find_model(str(folders["en-de"])), "AutoModelForSeq2SeqLM", "cpu")
