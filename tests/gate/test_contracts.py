"""Vectors are the library's own, to a tolerance per codec; another contract under a name is an error."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from building import build, content, write_lines
from gate_helpers import DIMENSION, MODEL, REAL, SOURCES, copied
from sentence_transformers import SentenceTransformer

from embedcache.errors import ContractMismatchError
from embedcache.testing import fake_teacher, sentences

# Codec -> most that a component may differ by, and least cosine. Both, because coarse codecs lose length too.
TOLERANCES = {
    "float32": (1e-5, 0.999999),
    "float16": (5e-4, 0.99999),
    "int8": (5e-3, 0.9998),
    "pq": (0.5, 0.9),
}


@pytest.mark.parametrize("codec", TOLERANCES)
def test_stored_vectors_are_those_of_sentence_transformers(
    tmp_path: Path, tiny_teacher: Path, codec: str
) -> None:
    texts = [*sentences(290), *sentences(10, seed=1, longest=80)]
    source = write_lines(tmp_path / "corpus.txt", texts)
    cache = build(source, tmp_path / "cache", tiny_teacher, codec=codec, compute_dtype="float32", threads=1)
    expected = SentenceTransformer(str(tiny_teacher), device="cpu").encode(texts)
    found = cache.lookup(texts)
    most, least = TOLERANCES[codec]
    assert np.abs(found - expected).max() <= most
    cosines = (found * expected).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(expected, axis=1)
    assert cosines.min() >= least


@pytest.mark.parametrize(
    ("field", "value", "before"),
    [
        ("max_length", 16, 64),
        ("prompt", "query: ", ""),
        ("pooling", "cls", "mean"),
        ("normalize", False, True),
        ("truncate_dim", 4, None),
    ],
)
def test_another_setting_under_the_same_name_names_field_and_values(
    tmp_path: Path, field: str, value: object, before: object
) -> None:
    cache = copied("real", tmp_path)
    files = content(cache)
    with pytest.raises(ContractMismatchError) as caught:
        build(SOURCES / "pairs.tsv", cache, MODEL, **{**REAL, "output": "embedding", field: value})
    message = str(caught.value).lower()
    assert all(str(word).lower() in message for word in (field, value, before))
    assert content(cache) == files


def test_other_weights_under_the_same_name_are_refused(tmp_path: Path) -> None:
    cache = copied("fake", tmp_path)
    files = content(cache)
    with pytest.raises(ContractMismatchError, match=r"weights .*0000.*0000"):
        build(SOURCES / "lines.txt", cache, fake_teacher(DIMENSION, name="halves", seed=9))
    assert content(cache) == files
