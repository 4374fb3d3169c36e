"""A SentenceTransformer as teacher: its contract is that of its files; without files it is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

import embedcache
from embedcache import TeacherOptions
from embedcache.errors import TeacherError
from embedcache.testing import sentences

TEXTS = sentences(30)


def test_its_contract_is_that_of_its_files(tiny_teacher: Path, tmp_path: Path) -> None:
    model = SentenceTransformer(str(tiny_teacher), device="cpu")
    given = embedcache.build(TEXTS, teacher=model, cache=tmp_path / "given")
    named = embedcache.build(TEXTS, teacher=str(tiny_teacher), cache=tmp_path / "named")
    assert given.teacher().contract == named.teacher().contract
    assert given.teacher().name == named.teacher().name
    np.testing.assert_array_equal(given.lookup(TEXTS), named.lookup(TEXTS))
    # The model itself is as it was.
    assert model.encode(TEXTS[:1]).shape == (1, model.get_embedding_dimension())
    assert next(model.parameters()).dtype == torch.float32
    np.testing.assert_allclose(given.encode(["a new text"], model), model.encode(["a new text"]), atol=2e-2)


def test_its_truncation_is_part_of_the_contract(tiny_teacher: Path, tmp_path: Path) -> None:
    model = SentenceTransformer(str(tiny_teacher), device="cpu", truncate_dim=8)
    cache = embedcache.build(TEXTS, teacher=model, cache=tmp_path / "k")
    assert cache.teacher().contract.dimension == 8


def test_its_length_is_part_of_the_contract(tiny_teacher: Path, tmp_path: Path) -> None:
    model = SentenceTransformer(str(tiny_teacher), device="cpu")
    model.max_seq_length = 4
    cache = embedcache.build(TEXTS, teacher=model, cache=tmp_path / "k")
    assert cache.teacher().contract.max_length == 4
    np.testing.assert_allclose(cache.lookup(TEXTS), model.encode(TEXTS), atol=2e-2)
    named = TeacherOptions(str(tiny_teacher), max_length=4)
    same = embedcache.build(TEXTS, teacher=named, cache=tmp_path / "named")
    assert same.teacher().contract == cache.teacher().contract


def test_a_model_that_was_changed_is_refused(tiny_teacher: Path, tmp_path: Path) -> None:
    model = SentenceTransformer(str(tiny_teacher), device="cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    with pytest.raises(TeacherError, match=r"changed after it was loaded.*model\.save"):
        embedcache.build(TEXTS, teacher=model, cache=tmp_path / "k")
    assert not (tmp_path / "k").exists()
    model = SentenceTransformer(str(tiny_teacher), device="cpu")
    del model[len(model) - 1]  # it scales vectors to length one
    with pytest.raises(TeacherError, match=r"of length .*, not 1"):
        embedcache.build(TEXTS, teacher=model, cache=tmp_path / "k")


def test_a_cache_keeps_the_name_that_it_has_for_the_teacher(tiny_teacher: Path, tmp_path: Path) -> None:
    named = TeacherOptions(str(tiny_teacher), name="ours")
    embedcache.build(TEXTS, teacher=named, cache=tmp_path / "k", name="c")
    model = SentenceTransformer(str(tiny_teacher), device="cpu")
    cache = embedcache.build(TEXTS, teacher=model, cache=tmp_path / "k", name="c")
    assert [teacher.name for teacher in cache.teachers()] == ["ours"]
    assert cache.result.teacher == "ours"


def test_a_model_without_files_is_refused(tmp_path: Path) -> None:
    static = StaticEmbedding(Tokenizer(WordLevel({"a": 0}, "a")), embedding_dim=4)
    with pytest.raises(TeacherError, match=r"not loaded from.*model\.save"):
        embedcache.build(TEXTS, teacher=SentenceTransformer(modules=[static]), cache=tmp_path / "k")
