"""Deep check: wrong vectors fail, right ones pass in every codec and compute dtype."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray
from small_caches import add_corpus

from embedcache.cache import Cache
from embedcache.cli.main import cli
from embedcache.codecs import CODEC_NAMES
from embedcache.doctor import Finding, examine
from embedcache.errors import ContractMismatchError, InputError, TeacherError
from embedcache.keys import key_array
from embedcache.live import Computing, compare_with_live
from embedcache.store import VectorBatch
from embedcache.teacher.encode import Encoder
from embedcache.teacher.load import Teacher
from embedcache.testing import FakeEncoder, fake_teacher, sentences, tiny_encoder

TEXTS = sentences(300, seed=5)


@pytest.fixture(scope="module")
def live(loaded_teacher: Teacher) -> NDArray[np.float32]:
    """The teacher's vectors of the texts."""
    return Encoder(loaded_teacher, compute_dtype="float32", threads=1).encode(TEXTS).vectors


def make_cache(
    folder: Path,
    teacher: Teacher,
    vectors: NDArray[np.float32],
    *,
    codec: str = "float32",
    dtype: str = "float32",
) -> Cache:
    cache = Cache.create(folder)
    cache.register_teacher(teacher.name, teacher.contract, {"spec": "gone"})
    add_corpus(cache, "corpus", TEXTS)
    tokens = np.full(len(TEXTS), 5, dtype=np.int32)
    store = cache.store(teacher.contract, codec)
    store.put(VectorBatch(key_array(TEXTS), vectors, tokens, tokens > 9, {"compute_dtype": dtype}))
    store.finish()
    return cache


def deep(cache: Cache, model: Path) -> Finding:
    computing = Computing(teacher_model=model, device="cpu", threads=1)
    return examine(cache, deep=300, computing=computing).findings[-1]


def turned(vectors: NDArray[np.float32], angle: float) -> NDArray[np.float32]:
    """Turn vectors of length one by an angle in radians."""
    aside = np.random.default_rng(0).standard_normal(vectors.shape)
    aside -= np.einsum("nd,nd->n", aside, vectors)[:, None] * vectors
    aside /= np.linalg.norm(aside, axis=1, keepdims=True)
    return np.float32(np.cos(angle) * vectors + np.sin(angle) * aside)


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_a_wrong_vector_is_bad_and_its_text_and_shard_are_named(
    tmp_path: Path, loaded_teacher: Teacher, live: NDArray[np.float32], tiny_teacher: Path, codec: str
) -> None:
    found = deep(make_cache(tmp_path / "right", loaded_teacher, live, codec=codec), tiny_teacher)
    assert (found.level, found.value) == ("ok", 0)
    vectors = live.copy()
    vectors[7] = -vectors[7]
    cache = make_cache(tmp_path / "wrong", loaded_teacher, vectors, codec=codec)
    found = deep(cache, tiny_teacher)
    assert (found.level, found.value) == ("bad", 1 / 300)
    assert found.examples == ((TEXTS[7],),)
    assert cache.store(loaded_teacher.contract).shards[0].name[:12] in found.advice


@pytest.mark.parametrize(
    ("stored_in", "run_in", "angle", "level"),
    [
        ("float32", "float32", 0.002, "ok"),
        ("bfloat16", "bfloat16", 0.06, "ok"),
        ("bfloat16", "bfloat16", 0.1, "look"),
        ("bfloat16", "bfloat16", 0.2, "bad"),
    ],
)
def test_two_runs_may_differ_by_the_noise_of_their_compute_dtypes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored_in: str, run_in: str, angle: float, level: str
) -> None:
    teacher = fake_teacher(64)
    exact = np.random.default_rng(1).standard_normal((len(TEXTS), 64))
    exact = np.float32(exact / np.linalg.norm(exact, axis=1, keepdims=True))
    row_of = {key: row for row, key in enumerate(key_array(TEXTS).tolist())}
    cache = make_cache(tmp_path / "c", teacher, turned(exact, angle), dtype=stored_in)
    encoder = FakeEncoder(teacher)
    monkeypatch.setattr(encoder, "_vectors", lambda keys: exact[[row_of[key] for key in keys.tolist()]])
    monkeypatch.setattr(FakeEncoder, "provenance", {"compute_dtype": run_in})
    assert compare_with_live(cache.store(teacher.contract), TEXTS, encoder).level == level


def test_another_model_a_missing_one_and_no_texts_are_refused(
    tmp_path: Path, loaded_teacher: Teacher, live: NDArray[np.float32], tiny_teacher: Path
) -> None:
    cache = make_cache(tmp_path / "c", loaded_teacher, live)
    with pytest.raises(ContractMismatchError, match="weights"):
        deep(cache, tiny_encoder(tmp_path / "other", seed=1))
    with pytest.raises(TeacherError, match="teacher_model"):
        examine(cache, deep=10)
    add_corpus(cache, "foreign", ["one text"])
    with pytest.raises(InputError, match="Build"):
        examine(cache, deep=10, corpus="foreign", computing=Computing(teacher_model=tiny_teacher))


def test_the_command_fails_where_a_vector_is_wrong(
    tmp_path: Path, loaded_teacher: Teacher, live: NDArray[np.float32], tiny_teacher: Path
) -> None:
    options = ["--deep", "--teacher-model", str(tiny_teacher), "--json"]
    for name, vectors, code in (("right", live, 0), ("wrong", live[::-1].copy(), 1)):
        cache = make_cache(tmp_path / name, loaded_teacher, vectors)
        done = CliRunner().invoke(cli, ["doctor", "--cache", str(cache.folder), *options])
        assert done.exit_code == code, done.output
        assert json.loads(done.stdout)["findings"][-1]["level"] == ("bad" if code else "ok")
