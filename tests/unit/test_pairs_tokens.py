"""Pairs of texts are given to a model as its own tokenizer gives two texts, from ids to vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from flat_build import build
from pair_helpers import joined, pairs
from student_teachers import make_teacher

from distill.data.collate import pad_texts
from distill.data.tokens import tokenise_corpus
from distill.data.triples import tokenise
from distill.students.student import forward
from embedcache.cache import Cache
from embedcache.errors import InputError
from embedcache.pairs import join_pair
from embedcache.teacher.encode import Encoder, encode_texts, padded_features
from embedcache.teacher.load import Teacher, load_teacher
from embedcache.teacher.tokenize import FastTokenizer, fast_tokenizer

TEXTS = [*joined(6), "the red cat", join_pair("a dog " * 50, "the bird"), join_pair("it", "the stone " * 60)]
SPLIT = [text.split("\x1f") for text in TEXTS]


@pytest.fixture(scope="module", params=["bert", "mpnet"])
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Teacher:
    folder = tmp_path_factory.mktemp(request.param)
    make_teacher(request.param, folder / "parts").save(str(folder / "model"), create_model_card=False)
    return load_teacher(folder / "model", name=request.param, device="cpu")


def expected(teacher: Teacher, parts: list[str]) -> np.ndarray:
    """The vector by transformers' own tokenizer, model and a mean over the tokens."""
    tokenizer, model = teacher.model.tokenizer, teacher.model[0].model
    features = tokenizer(*parts, truncation="longest_first", max_length=64, return_tensors="pt")
    with torch.inference_mode():
        vector = model(**features).last_hidden_state.mean(dim=1)[0].numpy()
    return vector / np.linalg.norm(vector) if teacher.contract.normalize else vector


def test_vectors_of_pairs_are_those_of_the_models_own_tokenizer(kind: Teacher) -> None:
    found = encode_texts(kind, TEXTS)
    wanted = np.stack([expected(kind, parts) for parts in SPLIT])
    np.testing.assert_allclose(found, wanted, atol=2e-5)
    glued = encode_texts(kind, [" ".join(parts) for parts in SPLIT])
    assert np.abs(found - glued)[[0, 1, 2]].max() > 1e-2
    swapped = encode_texts(kind, [join_pair(*reversed(parts)) for parts in SPLIT[:6]])
    assert np.abs(found[:6] - swapped).max() > 1e-2


def test_token_types_change_the_vector_where_the_model_looks_at_them(kind: Teacher) -> None:
    fast = fast_tokenizer(kind.model, 64, "")
    assert fast is not None
    tokenized = fast(TEXTS[:3])
    features = padded_features(tokenized, np.arange(3), fast)
    ids, mask, types = (features[name] for name in ("input_ids", "attention_mask", "token_type_ids"))
    assert types.unique().tolist() == [0, 1]
    with torch.no_grad():
        plain, typed = forward(kind.model, ids, mask), forward(kind.model, ids, mask, types)
    if kind.name == "bert":
        assert (plain - typed).abs().max() > 1e-2
    else:
        assert torch.equal(plain, typed)
    np.testing.assert_allclose(typed.numpy(), encode_texts(kind, TEXTS[:3]), atol=2e-5)


@pytest.mark.parametrize("max_length", [64, 12, 0])
def test_ids_and_types_are_the_tokenizers_own_and_truncation_is_seen(kind: Teacher, max_length: int) -> None:
    own = kind.model.tokenizer
    found = FastTokenizer(own, max_length)(TEXTS)
    for row, parts in enumerate(SPLIT):
        limit = {"truncation": True, "max_length": max_length} if max_length else {"truncation": False}
        wanted = own(*parts, **limit, return_token_type_ids=True)
        whole = own(*parts, truncation=False, verbose=False)["input_ids"]
        ids = found.ids[found.offsets[row] : found.offsets[row + 1]].tolist()
        assert ids == wanted["input_ids"]
        assert found.truncated[row] == (len(ids) < len(whole))
        types = (np.arange(len(ids)) >= found.first_tokens[row]).astype(int).tolist()
        assert types == wanted["token_type_ids"]
    assert found.first is not None
    assert found.first[6] == found.lengths[6]
    assert found.truncated.any() == bool(max_length)


def test_single_texts_are_as_they_were(kind: Teacher) -> None:
    found = FastTokenizer(kind.model.tokenizer, 64)(["the red cat", "a dog"])
    assert found.first is None
    assert found.first_tokens.tolist() == found.lengths.tolist()


def test_a_prompt_comes_before_the_first_text_alone(loaded_teacher: Teacher) -> None:
    fast = fast_tokenizer(loaded_teacher.model, 64, "query: ")
    assert fast is not None
    wanted = loaded_teacher.model.tokenizer("query: the cat", "a dog")["input_ids"]
    assert fast([join_pair("the cat", "a dog")]).ids.tolist() == wanted


def test_pairs_are_refused_where_there_is_no_form_for_them(loaded_teacher: Teacher) -> None:
    tokenizer = loaded_teacher.model.tokenizer
    static = FastTokenizer(tokenizer, 0, special_tokens=False)
    with pytest.raises(InputError, match="no form for pairs"):
        static([join_pair("a", "b")])
    assert len(static(["a cat"]).ids)
    with pytest.raises(InputError, match=r"--max-length 4: .* expected at least 5"):
        FastTokenizer(tokenizer, 4)([join_pair("a", "b")])
    assert FastTokenizer(tokenizer, 5)([join_pair("a cat", "b")]).lengths.tolist() == [5]
    with pytest.raises(InputError, match="more than once"):
        FastTokenizer(tokenizer, 64)(["a\x1fb\x1fc"])


def test_pairs_that_the_fast_way_would_change_are_refused(
    loaded_teacher: Teacher, monkeypatch: pytest.MonkeyPatch
) -> None:
    preprocess = loaded_teacher.model.preprocess

    def without_types(texts, **options):
        features = preprocess(texts, **options)
        return {**features, "token_type_ids": torch.zeros_like(features["token_type_ids"])}

    monkeypatch.setattr(loaded_teacher.model, "preprocess", without_types)
    fast = fast_tokenizer(loaded_teacher.model, 64, "")
    assert fast is not None
    assert len(fast(["the cat"]).ids)
    with pytest.raises(InputError, match="no form for pairs"):
        fast([join_pair("a", "b")])


def test_without_a_fast_tokenizer_pairs_are_the_same(loaded_teacher: Teacher) -> None:
    encoder = Encoder(loaded_teacher, compute_dtype="float32")
    fast = encoder.encode(TEXTS).vectors
    encoder.tokenizer = None
    np.testing.assert_allclose(encoder.encode(TEXTS).vectors, fast, atol=2e-5)


def test_training_is_given_the_token_types(tmp_path: Path, loaded_teacher: Teacher) -> None:
    lines = ["one\ttwo", *("\t".join(pair) for pair in pairs(20))]
    (tmp_path / "pairs.tsv").write_text("\n".join(lines), encoding="utf-8")
    cache: Cache = build(
        tmp_path / "pairs.tsv",
        teacher=loaded_teacher,
        cache=tmp_path / "cache",
        text_column="one",
        text2_column="two",
        compute_dtype="float32",
        codec="float32",
    )
    texts = joined(20)
    fast = fast_tokenizer(loaded_teacher.model, 64, "")
    assert fast is not None
    arrays = tokenise_corpus(cache, cache.corpus(), fast)
    assert arrays.first is not None
    assert tokenise_corpus(cache, cache.corpus(), fast).first.tolist() == arrays.first.tolist()
    (in_memory,) = tokenise([texts], fast)
    assert in_memory.first is not None
    assert in_memory.first.tolist() == arrays.first.tolist()
    rows = np.array([3, 0, 19])
    ids, mask, types = pad_texts((arrays,), np.zeros((1, 3), dtype=np.int64), rows)
    assert types is not None
    with torch.no_grad():
        found = forward(loaded_teacher.model, ids, mask, types).numpy()
        untyped = forward(loaded_teacher.model, ids, mask).numpy()
    wanted = cache.lookup([texts[row] for row in rows])
    np.testing.assert_allclose(found, wanted, atol=2e-5)
    assert np.abs(untyped - wanted).max() > 1e-2


def test_damaged_first_tokens_are_computed_anew(tmp_path: Path, loaded_teacher: Teacher) -> None:
    lines = ["one\ttwo", *("\t".join(pair) for pair in pairs(5))]
    (tmp_path / "pairs.tsv").write_text("\n".join(lines), encoding="utf-8")
    columns = {"text_column": "one", "text2_column": "two"}
    cache = build(tmp_path / "pairs.tsv", teacher=loaded_teacher, cache=tmp_path / "cache", **columns)
    fast = fast_tokenizer(loaded_teacher.model, 64, "")
    assert fast is not None
    before = tokenise_corpus(cache, cache.corpus(), fast).first
    (path,) = cache.derived_folder.glob("tokens/*/first.bin")
    expected_first = before.tolist()
    path.write_bytes(path.read_bytes()[:-4])
    assert tokenise_corpus(cache, cache.corpus(), fast).first.tolist() == expected_first
