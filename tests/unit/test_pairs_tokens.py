"""Training gives pairs of texts to a student with the token types that the teacher saw."""

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
from distill.students.build import forward
from embedcache.cache import Cache
from embedcache.teacher.encode import padded_features
from embedcache.teacher.load import Teacher, load_teacher
from embedcache.teacher.tokenize import fast_tokenizer
from embedcache.testing import encode_texts

TEXTS = joined(3)


@pytest.fixture(scope="module", params=["bert", "mpnet"])
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Teacher:
    folder = tmp_path_factory.mktemp(request.param)
    make_teacher(request.param, folder / "parts").save(str(folder / "model"), create_model_card=False)
    return load_teacher(folder / "model", name=request.param, device="cpu")


def test_token_types_change_the_vector_where_the_model_looks_at_them(kind: Teacher) -> None:
    fast = fast_tokenizer(kind.model, 64, "")
    assert fast is not None
    tokenized = fast(TEXTS)
    features = padded_features(tokenized, np.arange(3), fast)
    ids, mask, types = (features[name] for name in ("input_ids", "attention_mask", "token_type_ids"))
    assert types.unique().tolist() == [0, 1]
    with torch.no_grad():
        plain, typed = forward(kind.model, ids, mask), forward(kind.model, ids, mask, types)
    if kind.name == "bert":
        assert (plain - typed).abs().max() > 1e-2
    else:
        assert torch.equal(plain, typed)
    np.testing.assert_allclose(typed.numpy(), encode_texts(kind, TEXTS), atol=2e-5)


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
